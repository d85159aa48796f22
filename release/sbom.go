package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// spdxDocument is a bill of materials in the format SPDX 2.3.
type spdxDocument struct {
	Version       string             `json:"spdxVersion"`
	DataLicense   string             `json:"dataLicense"`
	ID            string             `json:"SPDXID"`
	Name          string             `json:"name"`
	Namespace     string             `json:"documentNamespace"`
	Creation      spdxCreation       `json:"creationInfo"`
	Packages      []spdxPackage      `json:"packages"`
	Relationships []spdxRelationship `json:"relationships"`
}

type spdxCreation struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

type spdxPackage struct {
	Name       string         `json:"name"`
	ID         string         `json:"SPDXID"`
	Version    string         `json:"versionInfo"`
	Location   string         `json:"downloadLocation"`
	Analyzed   bool           `json:"filesAnalyzed"`
	Concluded  string         `json:"licenseConcluded"`
	Declared   string         `json:"licenseDeclared"`
	Copyright  string         `json:"copyrightText"`
	Purpose    string         `json:"primaryPackagePurpose,omitempty"`
	Checksums  []spdxChecksum `json:"checksums,omitempty"`
	External   []spdxExternal `json:"externalRefs,omitempty"`
	SourceInfo string         `json:"sourceInfo,omitempty"`
}

type spdxChecksum struct {
	Algorithm string `json:"algorithm"`
	Value     string `json:"checksumValue"`
}

type spdxExternal struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type spdxRelationship struct {
	Element string `json:"spdxElementId"`
	Type    string `json:"relationshipType"`
	Related string `json:"relatedSpdxElement"`
}

const unstated = "NOASSERTION"

// billOfMaterials lists the modules that a program was linked from, and Go, as the linker recorded them in the program.
// name is the name of the file that the program is delivered in. Licences are not asserted: their texts are in that file.
func billOfMaterials(name string, program []byte, info *buildinfo.BuildInfo, when time.Time) ([]byte, error) {
	sum := sha256.Sum256(program)
	checksum := hex.EncodeToString(sum[:])
	modulePackage := func(id, path, version string) spdxPackage {
		return spdxPackage{
			Name: path, ID: id, Version: version, Location: unstated, Concluded: unstated, Declared: unstated, Copyright: unstated,
			External: []spdxExternal{{"PACKAGE-MANAGER", "purl", "pkg:golang/" + path + "@" + version}},
		}
	}
	root := modulePackage("SPDXRef-Program", info.Main.Path, info.Main.Version)
	root.Purpose = "APPLICATION"
	root.Checksums = []spdxChecksum{{"SHA256", checksum}}
	root.SourceInfo = "Built by " + info.GoVersion + " from " + info.Path
	standard := modulePackage("SPDXRef-Go", "stdlib", strings.TrimPrefix(info.GoVersion, "go"))
	document := spdxDocument{
		Version: "SPDX-2.3", DataLicense: "CC0-1.0", ID: "SPDXRef-DOCUMENT", Name: name,
		Namespace: "https://" + library + "/spdx/" + name + "-" + checksum,
		Creation:  spdxCreation{when.UTC().Format(time.RFC3339), []string{"Tool: annex-release"}},
		Packages:  []spdxPackage{root, standard},
		Relationships: []spdxRelationship{
			{"SPDXRef-DOCUMENT", "DESCRIBES", root.ID},
			{root.ID, "DEPENDS_ON", standard.ID},
		},
	}
	for i, dep := range info.Deps {
		if dep.Replace != nil {
			return nil, fmt.Errorf("bill of materials of %s: %s is replaced by %s", name, dep.Path, dep.Replace.Path)
		}
		p := modulePackage(fmt.Sprintf("SPDXRef-Module-%d", i+1), dep.Path, dep.Version)
		p.Purpose, p.SourceInfo = "LIBRARY", "Go module hash "+dep.Sum
		document.Packages = append(document.Packages, p)
		document.Relationships = append(document.Relationships, spdxRelationship{root.ID, "DEPENDS_ON", p.ID})
	}
	text, err := json.MarshalIndent(document, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("bill of materials of %s: %w", name, err)
	}
	return append(text, '\n'), nil
}
