package clidoc

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

func program() *cobra.Command {
	work := func(*cobra.Command, []string) {}
	root := &cobra.Command{Use: "SERVER"}
	serve := &cobra.Command{Use: "serve [DIR]", Short: "Serve the API", Run: work}
	serve.Flags().String("data-dir", "data", "where *things* are")
	serve.Flags().String("name", "", "what it is called (default: its own name)")
	serve.Flags().String("ca", "", "authorities (PEM; default: the system's)")
	serve.Flags().BoolP("quiet", "q", false, "say less, see --name")
	serve.Flags().StringSlice("plugins", nil, "a|b")
	serve.Flags().Duration("wait", time.Minute, "how long")
	_ = serve.Flags().SetAnnotation("wait", "group", []string{"Times"})
	serve.Flags().Bool("secret", false, "not for pages")
	_ = serve.Flags().MarkHidden("secret")
	look := &cobra.Command{Use: "look", Short: "Look at it", Run: work}
	look.Flags().String("data-dir", "data", "where *things* are")
	look.Flags().String("name", "", "another meaning")
	look.Flags().Duration("wait", time.Minute, "how long")
	_ = look.Flags().SetAnnotation("wait", "group", []string{"Times"})
	root.AddCommand(serve, look, &cobra.Command{Use: "worker", Hidden: true, Run: work})
	return root
}

const page = `# Page
<!-- verbs of SERVER -->
old
<!-- end -->
prose
<!-- flags of SERVER serve -->
<!-- end -->
<!-- flags of SERVER serve: Times -->
<!-- end -->
<!-- flags of SERVER look, besides those of SERVER serve -->
<!-- end -->
`

const wanted = "# Page\n" +
	"<!-- verbs of SERVER -->\n" +
	"| verb | what it does |\n|---|---|\n" +
	"| `look` | look at it |\n" +
	"| `serve [DIR]` | serve the API |\n" +
	"<!-- end -->\nprose\n" +
	"<!-- flags of SERVER serve -->\n" +
	"| flag | default | meaning |\n|---|---|---|\n" +
	"| `--ca` | the system's | authorities (PEM) |\n" +
	"| `--data-dir` | `data` | where \\*things\\* are |\n" +
	"| `--name` | its own name | what it is called |\n" +
	"| `--plugins` |  | a\\|b |\n" +
	"| `-q`, `--quiet` | `false` | say less, see `--name` |\n" +
	"<!-- end -->\n" +
	"<!-- flags of SERVER serve: Times -->\n" +
	"| flag | default | meaning |\n|---|---|---|\n" +
	"| `--wait` | `1m` | how long |\n" +
	"<!-- end -->\n" +
	"<!-- flags of SERVER look, besides those of SERVER serve -->\n" +
	"| flag | default | meaning |\n|---|---|---|\n" +
	"| `--name` |  | another meaning |\n" +
	"\nAs with `SERVER serve`: `--data-dir`, `--wait`.\n" +
	"<!-- end -->\n"

func TestReference_tables_matchCommands(t *testing.T) {
	t.Parallel()
	said := map[string]bool{}
	now, mistakes := Reference{Group: "group"}.tables(program(), page, said)
	if now != wanted || len(mistakes) > 0 {
		t.Errorf("%v\n%s\nwant\n%s", mistakes, now, wanted)
	}
	if missing := unsaid(program(), said); len(missing) > 0 {
		t.Errorf("missing: %v", missing)
	}
	again, _ := Reference{Group: "group"}.tables(program(), now, map[string]bool{})
	if again != now {
		t.Errorf("another run writes\n%s", again)
	}
}

func TestReference_missingOrWrong_isNamed(t *testing.T) {
	t.Parallel()
	said := map[string]bool{}
	_, mistakes := Reference{
		Group: "group",
	}.tables(
		program(),
		strings.NewReplacer("SERVER look", "SERVER gone", ": Times", ": Nothing").Replace(page),
		said,
	)
	if want := []string{"<!-- flags of SERVER serve: Nothing --> has no flags", "SERVER gone is no command"}; !slices.Equal(mistakes, want) {
		t.Errorf("mistakes %q, want %q", mistakes, want)
	}
	if missing, want := unsaid(
		program(),
		said,
	), []string{
		"SERVER look --data-dir",
		"SERVER look --name",
		"SERVER look --wait",
		"SERVER serve --wait",
	}; !slices.Equal(
		missing,
		want,
	) {
		t.Errorf("missing %q, want %q", missing, want)
	}
}
