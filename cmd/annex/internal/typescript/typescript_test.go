package typescript_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/annexapi/annex/cmd/annex/internal/typescript"
)

// document is a document with the kinds of one version, given by their names and schemas.
func document(schemas string) []byte {
	return []byte(`{"openapi": "3.0.0", "paths": {
		"/apis/x.example.com/v1/things": {"get": {"responses": {"200": {"content": {"application/json": {"schema": {
			"$ref": "#/components/schemas/com.example.x.v1.ThingList"}}}}}, "x-kubernetes-group-version-kind": {"kind": "Thing"}}}
	}, "components": {"schemas": {
		"com.example.x.v1.ThingList": {"properties": {"items": {"type": "array", "items": {
			"$ref": "#/components/schemas/com.example.x.v1.Thing"}}}},
		` + schemas + `}}}`)
}

func source(t *testing.T, schemas, name string) string {
	t.Helper()
	files, err := typescript.Generate(document(schemas))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if f.Name == name {
			return f.Source
		}
	}
	t.Fatalf("no file %s", name)
	return ""
}

func TestGenerate_types(t *testing.T) {
	text := source(t, `"com.example.x.v1.Thing": {"type": "object", "required": ["name"], "properties": {
		"name": {"type": "string", "description": "ends a comment: */ alert(1)"},
		"size": {"type": "string", "enum": ["small", "it's \"large\""]},
		"level": {"type": "integer", "enum": [1, 2]},
		"count": {"type": "integer", "default": 1},
		"port": {"x-kubernetes-int-or-string": true},
		"memory": {"allOf": [{"$ref": "#/components/schemas/io.k8s.apimachinery.pkg.api.resource.Quantity"}]},
		"labels": {"type": "object", "additionalProperties": {"type": "string"}},
		"any": {"x-kubernetes-preserve-unknown-fields": true},
		"maybe": {"type": "string", "nullable": true},
		"list": {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}},
		"inner": {"type": "object", "properties": {"x-y": {"type": "boolean"}}},
		"other": {"$ref": "#/components/schemas/com.example.shared.Record"},
		"missing": {"$ref": "#/components/schemas/com.example.missing"},
		"__proto__": {"type": "string"}
	}}, "com.example.shared.Record": {"type": "object", "properties": {"when": {
		"$ref": "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.Time"}}}`,
		"x.example.com/v1.ts")
	for _, want := range []string{
		"  /** ends a comment: *\\/ alert(1) */\n  name: string;", `  size?: 'small' | 'it\'s "large"';`,
		"  level?: 1 | 2;", "  count: number;",
		"  count?: number;", "  port?: rt.IntOrString;", "  memory?: rt.Quantity;", "  labels?: { [key: string]: string };", "  any?: unknown;",
		"  maybe?: string | null;", "  list?: ('a' | 'b')[];", "  inner?: {\n    'x-y'?: boolean;\n  };", "  other?: shared.Record;",
		"  missing?: unknown;",
		"  __proto__?: string;", "import type * as shared from '../shared.js';",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the types lack %q:\n%s", want, text)
		}
	}
}

func TestGenerate_mistakes(t *testing.T) {
	for text, want := range map[string]string{
		"no JSON":                           "read the OpenAPI document",
		`{"swagger": "2.0"}`:                "no OpenAPI 3 document",
		`{"openapi": "3.0.0", "paths": {}}`: "has no resources",
		`{"openapi": "3.0.0", "paths": {"/apis/x/v1/{any}": {}, "/version": {}}}`: "has no resources",
	} {
		if _, err := typescript.Generate([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func TestWrite_folderWithOtherFiles(t *testing.T) {
	dir := t.TempDir()
	files := []typescript.File{{Name: "x.example.com/v1.ts", Source: typescript.Header + "export {};\n"}}
	foreign := filepath.Join(dir, "mine.ts")
	if err := os.WriteFile(foreign, []byte("export const mine = 1;\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := typescript.Write(dir, files, false); err == nil || !strings.Contains(err.Error(), "was not written by annex generate") {
		t.Errorf("a folder with another file: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "x.example.com")); err == nil {
		t.Error("a refused run has written")
	}
	if _, err := typescript.Write(foreign, files, false); err == nil || !strings.Contains(err.Error(), "is a file") {
		t.Errorf("a file as folder: %v", err)
	}
}

func TestWrite_filesOfEarlierRuns(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "api")
	old := []typescript.File{{Name: "old/v1.ts", Source: typescript.Header}, {Name: "index.ts", Source: typescript.Header}}
	if _, err := typescript.Write(dir, old, false); err != nil {
		t.Fatal(err)
	}
	hidden := filepath.Join(dir, ".gitattributes")
	if err := os.WriteFile(hidden, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	files := old[1:]
	written, err := typescript.Write(dir, files, true)
	if err != nil || len(written) != 2 || written[0].Changed || !written[1].Removed {
		t.Errorf("check: %v, %v", written, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "old", "v1.ts")); err != nil {
		t.Errorf("a check has removed a file: %v", err)
	}
	if _, err := typescript.Write(dir, files, false); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "old")); err == nil {
		t.Error("the folder of an earlier run is still there")
	}
	if _, err := os.Stat(hidden); err != nil {
		t.Errorf("a hidden file is gone: %v", err)
	}
}
