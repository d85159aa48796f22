package main

import (
	"encoding/xml"
	"io"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

func TestRecord_showsCommandsAndTheirOutput(t *testing.T) {
	lines, err := record("! echo hidden\n# begin\n$ echo 'a <b>'; pwd\n$ { echo serves; sleep 60; } &\n@ serves\n$ printf 'x\\ty\\n'\n", "")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for i, line := range lines {
		got = append(got, line.text)
		if i > 0 && line.at < lines[i-1].at {
			t.Errorf("%q is shown before %q", line.text, lines[i-1].text)
		}
	}
	want := "# begin|$ echo 'a <b>'; pwd|a <b>|~|$ { echo serves; sleep 60; } &|serves|$ printf 'x\\ty\\n'|x\ty"
	if strings.Join(got, "|") != want {
		t.Errorf("it shows %q, not %q", strings.Join(got, "|"), want)
	}
}

func TestRecord_refusesMistakes(t *testing.T) {
	for scene, want := range map[string]string{
		"ls":                               `the scene has the line "ls"`,
		"$ sleep 9 &":                      "does not name the text",
		"$ echo no; false":                 "echo no; false: exit code 1\nno\n",
		"$ exit 3":                         "the shell ended",
		"$ { echo a; } &\n@ a\n$ (exit 4)": "exit code 4",
	} {
		if _, err := record(scene, ""); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: the error is %v, not %q", scene, err, want)
		}
	}
	if _, err := draw(nil); err == nil {
		t.Error("an empty scene is drawn")
	}
}

func TestDraw_isXMLWithoutScripts(t *testing.T) {
	var lines []shown
	for i := range rows + 4 {
		lines = append(lines, shown{at: longest, text: "<&> " + strings.Repeat("x", columns) + strconv.Itoa(i), kind: "output"})
	}
	picture, err := draw(lines)
	if err != nil {
		t.Fatal(err)
	}
	for decoder := xml.NewDecoder(strings.NewReader(picture)); ; {
		if _, err := decoder.Token(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatalf("%v\n%s", err, picture)
		}
	}
	if regexp.MustCompile(`<script|href|url\(|@import`).MatchString(picture) {
		t.Error("the picture loads or runs something")
	}
	if want := "translateY(-76px)"; !strings.Contains(picture, want) {
		t.Errorf("four lines more than the rows do not move the picture by %s", want)
	}
	if !strings.Contains(picture, "prefers-reduced-motion") {
		t.Error("the picture moves for people who want no motion")
	}
}
