package generate

import (
	"os"
	"path/filepath"
	"testing"
)

func TestRun_header(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for name, test := range map[string]struct {
		text, want string
		bad        bool
	}{
		"lines":             {text: "// Copyright\n", want: "// Copyright\n\n"},
		"a block":           {text: "/*\nCopyright\n*/", want: "/*\nCopyright\n*/\n\n"},
		"no comment":        {text: "Copyright", bad: true},
		"code":              {text: "// Copyright\npackage v1\n", bad: true},
		"a comment unended": {text: "/* Copyright", bad: true},
		"the marker":        {text: marker, bad: true},
	} {
		got, err := readHeader(write("header.txt", test.text))
		if got != test.want || (err != nil) != test.bad {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}

	generatedText := marker + "\n\npackage v1\n"
	for text, want := range map[string]struct {
		header string
		ours   bool
	}{
		generatedText:                       {"", true},
		"// Copyright\n\n" + generatedText:  {"// Copyright\n\n", true},
		"/* a\nb */\n\n" + generatedText:    {"/* a\nb */\n\n", true},
		"package v1\n":                      {"", false},
		"package v1\n\n" + marker + "\n":    {"", false},
		"// another tool's\n\npackage v1\n": {"", false},
	} {
		if header, ours := headerOf(text); header != want.header || ours != want.ours {
			t.Errorf("%q: %q, %v", text, header, ours)
		}
	}

	file := write("zz.go", "// Copyright\n\n"+generatedText)
	for header, want := range map[string]string{"": "// Copyright\n\n" + generatedText, "// New\n\n": "// New\n\n" + generatedText} {
		if got, err := withHeader(file, generatedText, header); err != nil || got != want {
			t.Errorf("with %q: %q, %v", header, got, err)
		}
	}
	if got, err := withHeader(filepath.Join(dir, "none.go"), generatedText, ""); err != nil || got != generatedText {
		t.Errorf("a new file: %q, %v", got, err)
	}
}
