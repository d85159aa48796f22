//go:build unix

package transcript

import (
	"strings"
	"testing"
)

func TestReplay_printsOutputs(t *testing.T) {
	for name, script := range map[string]struct{ before, after string }{
		"outputs are replaced, and text and empty lines are not": {
			"Two commands.\n\n$ echo new\n  old\n  older\n\n$ echo two; echo lines >&2\nThe end.\n",
			"Two commands.\n\n$ echo new\n  new\n\n$ echo two; echo lines >&2\n  two\n  lines\nThe end.\n",
		},
		"a here document, and an exit code": {
			"$ cat <<EOF; exit 3\n> more\n> EOF\n",
			"$ cat <<EOF; exit 3\n> more\n> EOF\n  more\n  [exit code 3]\n",
		},
		"a background command is told when it is ended": {
			"& [ready] echo ready; while [ ! -e made ]; do sleep 0.01; done; echo done; sleep 100\n$ touch made\n= done\n",
			"& [ready] echo ready; while [ ! -e made ]; do sleep 0.01; done; echo done; sleep 100\n$ touch made\n= done\n  ready\n  done\n",
		},
		"what is this run's own is a word": {
			"$ pwd; echo $SERVER 2b4a6d3c-0000-4000-8000-00000000000a 2026-01-02T03:04:05Z resourceVersion: 7 secret\n",
			"$ pwd; echo $SERVER 2b4a6d3c-0000-4000-8000-00000000000a 2026-01-02T03:04:05Z resourceVersion: 7 secret\n  <dir>\n  " +
				"https://<server> <uid> <time> resourceVersion: <rv> <its own>\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			terminal := &Terminal{Dir: t.TempDir(), Server: "https://127.0.0.1:1", Words: strings.NewReplacer("secret", "<its own>")}
			got, err := terminal.Replay(t.Context(), script.before)
			if err != nil || got != script.after {
				t.Errorf("%v\n%s\nis not\n%s", err, got, script.after)
			}
		})
	}
}

func TestReplay_unwaitableCommands_areRejected(t *testing.T) {
	for script, want := range map[string]string{
		"& echo ready\n": "it does not say [WHAT] it prints when it is ready",
		"= done\n":       "nothing runs in the background",
	} {
		terminal := &Terminal{Dir: t.TempDir()}
		if _, err := terminal.Replay(t.Context(), script); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", script, err)
		}
	}
}
