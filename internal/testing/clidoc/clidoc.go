// Package clidoc keeps the tables of verbs and flags in pages equal to the command line. The text of such a table has
// one source, the help texts of the commands; the prose around the table belongs to the page.
//
// A page has the tables between comments. The first comment names the content:
//
//	<!-- verbs of annex create -->
//	<!-- flags of SERVER storage backup -->
//	<!-- flags of SERVER serve: Listening and certificates -->
//	<!-- flags of SERVER describe, besides those of SERVER serve -->
//
// and <!-- end --> ends it. The third example has the flags of one group. The fourth has the flags of all groups, and
// only names the flags shared with the other verb.
package clidoc

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/diff"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Reference is a set of pages that together have all verbs and flags of a program.
type Reference struct {
	Pages []string
	// By is the command that writes the tables anew, for the message of a failure.
	By string
	// Group is the annotation of a flag that names its group; commands with few flags have none.
	Group string
}

var table = regexp.MustCompile(
	`(?s)(<!-- (verbs|flags) of ([A-Za-z -]+?)(?:: ([^>]+?))?(?:, besides those of ([A-Za-z -]+?))? -->\n)(.*?)(<!-- end -->)`,
)

// Check fails the test if a table in the pages differs from the commands below root, or if a verb or a flag is in no
// table. With the environment variable UPDATE, the tables are written anew.
func (r Reference) Check(t *testing.T, root *cobra.Command) {
	t.Helper()
	said := map[string]bool{}
	for _, page := range r.Pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		now, mistakes := r.tables(root, string(text), said)
		for _, mistake := range mistakes {
			t.Errorf("%s: %s", page, mistake)
		}
		switch {
		case now == string(text):
		case os.Getenv("UPDATE") != "":
			if err := os.WriteFile(page, []byte(now), 0o644); err != nil {
				t.Fatal(err)
			}
		default:
			t.Errorf(
				"%s: the tables of flags and verbs are not what the commands say (%s writes them):\n%s",
				page,
				r.By,
				diff.Diff(page, text, "the commands", []byte(now)),
			)
		}
	}
	for _, missing := range unsaid(root, said) {
		t.Errorf("%s: in no table of %s", missing, strings.Join(r.Pages, ", "))
	}
}

// tables returns the page with correct tables. It records the verbs and flags in them.
func (r Reference) tables(root *cobra.Command, page string, said map[string]bool) (string, []string) {
	var mistakes []string
	return table.ReplaceAllStringFunc(page, func(all string) string {
		part := table.FindStringSubmatch(all)
		begin, what, path, group, besides, end := part[1], part[2], part[3], part[4], part[5], part[7]
		cmd := find(root, path)
		var others *cobra.Command
		if besides != "" {
			others = find(root, besides)
		}
		switch {
		case cmd == nil:
			mistakes = append(mistakes, path+" is no command")
			return all
		case besides != "" && others == nil:
			mistakes = append(mistakes, besides+" is no command")
			return all
		case what == "verbs":
			return begin + verbs(cmd, said) + end
		}
		rows := r.flags(cmd, group, others, said)
		if rows == "" {
			mistakes = append(mistakes, strings.TrimSpace(begin)+" has no flags")
		}
		return begin + rows + end
	}), mistakes
}

// find returns the command of that path, nil if there is none.
func find(root *cobra.Command, path string) *cobra.Command {
	words := strings.Fields(path)
	if words[0] != root.Name() {
		return nil
	}
	cmd := root
	for _, word := range words[1:] {
		i := slices.IndexFunc(cmd.Commands(), func(c *cobra.Command) bool { return c.Name() == word })
		if i < 0 {
			return nil
		}
		cmd = cmd.Commands()[i]
	}
	return cmd
}

func verbs(cmd *cobra.Command, said map[string]bool) string {
	text := "| verb | what it does |\n|---|---|\n"
	for _, c := range cmd.Commands() {
		if shown(c) {
			said[c.CommandPath()] = true
			text += fmt.Sprintf("| `%s` | %s |\n", strings.ReplaceAll(c.Use, "|", `\|`), cell(lower(c.Short)))
		}
	}
	return text
}

func shown(c *cobra.Command) bool { return c.IsAvailableCommand() && c.Name() != "completion" }

// lower turns the beginning of a sentence into the form inside of one.
func lower(text string) string {
	if len(text) > 1 && strings.ToUpper(text[1:2]) == text[1:2] {
		return text // an abbreviation
	}
	return strings.ToLower(text[:1]) + text[1:]
}

func (r Reference) flags(cmd *cobra.Command, group string, others *cobra.Command, said map[string]bool) string {
	var rows, shared []string
	each(cmd, func(f *pflag.Flag) {
		if ofAll := group == "" && others != nil; !ofAll && strings.Join(f.Annotations[r.Group], "") != group {
			return
		}
		said[cmd.CommandPath()+" --"+f.Name] = true
		if others != nil {
			if other := others.Flags().Lookup(f.Name); other != nil && other.Usage == f.Usage && other.DefValue == f.DefValue {
				shared = append(shared, "`--"+f.Name+"`")
				return
			}
		}
		name := "`--" + f.Name + "`"
		if f.Shorthand != "" {
			name = "`-" + f.Shorthand + "`, " + name
		}
		meaning, value := usage(f)
		rows = append(rows, fmt.Sprintf("| %s | %s | %s |\n", name, value, cell(meaning)))
	})
	text := ""
	if len(rows) > 0 {
		text = "| flag | default | meaning |\n|---|---|---|\n" + strings.Join(rows, "")
	}
	if len(shared) > 0 {
		if text != "" {
			text += "\n"
		}
		text += "As with `" + others.CommandPath() + "`: " + strings.Join(shared, ", ") + ".\n"
	}
	return text
}

// each calls do for each flag of the command itself, including flags for its subcommands.
func each(cmd *cobra.Command, do func(*pflag.Flag)) {
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden && f.Name != "help" {
			do(f)
		}
	})
}

var defaulted = regexp.MustCompile(` ?(\(|; )default:? ([^()]+)\)`)

// usage returns the meaning of a flag, and its default as a cell. A default that depends on something is at the end
// of the help text, in parentheses.
func usage(f *pflag.Flag) (meaning, value string) {
	meaning = f.Usage
	if part := defaulted.FindStringSubmatch(meaning); part != nil {
		instead := ""
		if part[1] == "; " {
			instead = ")"
		}
		return strings.Replace(meaning, part[0], instead, 1), cell(part[2])
	}
	value = strings.Trim(f.DefValue, "[]")
	if f.Value.Type() == "duration" {
		value = duration(value)
	}
	if value == "" {
		return meaning, ""
	}
	return meaning, "`" + value + "`"
}

// duration returns a duration as a person writes it: 5m, not 5m0s.
func duration(text string) string {
	switch {
	case strings.HasSuffix(text, "h0m0s"):
		return strings.TrimSuffix(text, "0m0s")
	case strings.HasSuffix(text, "m0s"):
		return strings.TrimSuffix(text, "0s")
	case text == "0s":
		return "0"
	}
	return text
}

var flagName = regexp.MustCompile(`(^|[\s(])(--[a-z][a-z-]*[a-z])`)

// cell returns a text within a table.
func cell(text string) string {
	text = strings.ReplaceAll(strings.ReplaceAll(text, "|", `\|`), "*", `\*`)
	return flagName.ReplaceAllString(text, "$1`$2`")
}

// unsaid returns the verbs and flags that are in no table.
func unsaid(cmd *cobra.Command, said map[string]bool) []string {
	var missing []string
	for _, c := range cmd.Commands() {
		if !shown(c) {
			continue
		}
		if !said[c.CommandPath()] {
			missing = append(missing, c.CommandPath())
		}
		each(c, func(f *pflag.Flag) {
			if name := c.CommandPath() + " --" + f.Name; !said[name] {
				missing = append(missing, name)
			}
		})
		missing = append(missing, unsaid(c, said)...)
	}
	return missing
}
