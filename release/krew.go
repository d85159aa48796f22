package main

import (
	"fmt"
	"strings"
)

// packed is an archive of the plugin for a platform, with the name of the program in it.
type packed struct {
	platform
	file, sum, program string
}

// krewManifest returns the plugin's manifest for krew, whose index a release adds it to.
func krewManifest(version string, archives []packed) string {
	var b strings.Builder
	fmt.Fprintf(&b, `apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: annex
spec:
  version: %s
  homepage: https://%s
  shortDescription: Use actions, logs and shells of any API server's kinds
  description: |
    kubectl annex has one verb for each action and view of the kinds of a
    Kubernetes-style API server, and exec, logs, attach, port-forward and proxy
    for kinds that are not pods. It finds them by discovery.
  platforms:
`, version, library)
	for _, a := range archives {
		fmt.Fprintf(&b, `  - selector:
      matchLabels:
        os: %s
        arch: %s
    uri: %s/%s
    sha256: %s
    bin: %s
    files:
    - from: %[6]s
      to: .
    - from: LICENSE*
      to: .
`, a.os, a.arch, downloads(version), a.file, a.sum, a.program)
	}
	return b.String()
}

// downloads is the address of a release's files.
func downloads(version string) string { return "https://" + library + "/releases/download/" + version }
