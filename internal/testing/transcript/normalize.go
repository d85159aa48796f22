//go:build unix

package transcript

import (
	"regexp"
	"strings"
)

// volatile matches irrelevant text that differs from run to run.
var volatile = []struct {
	pattern *regexp.Regexp
	word    string
}{
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "<uid>"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)`), "<time>"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+ \+0000`), "<time>"},
	{regexp.MustCompile(`/tmp/(LIVE|MERGED)-\d+`), "<$1>"},
	{regexp.MustCompile(`\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT`), "<date>"},
	// The header of a line of kubectl's log.
	{regexp.MustCompile(`(?m)^([IWE])\d{4} [\d:.]+ +\d+ ([\w.]+):\d+\]`), "$1 $2]"},
	{regexp.MustCompile(`(resourceVersion(\\?"|'|)[:=] ?\\?["']?)[1-9]\d*`), "$1<rv>"},
	{regexp.MustCompile(`(continue(\\?"|)[:=]\\?"?)[\w-]{16,}`), "$1<continue>"},
	{regexp.MustCompile(`(milliseconds=|Content-Length: )\d+`), "$1<n>"},
	{regexp.MustCompile(`(ResourceVersion in record \()\d+`), "$1<rv>"},
	{regexp.MustCompile(`( revision=)\d+`), "$1<rv>"},
	// An age is the last column, or a column before labels.
	{regexp.MustCompile(`(?m)(\s)\d+m?s +`), "$1<age>   "},
	{regexp.MustCompile(`(?m)(\s)\d+m?s$`), "$1<age>"},
	{regexp.MustCompile(`(Resource Version: +)\d+`), "$1<rv>"},
	{regexp.MustCompile(`go1\.\d+(\.\d+)?`), "<go>"},
	{regexp.MustCompile(`"platform": "[^"]+"`), `"platform": "<platform>"`},
	{regexp.MustCompile(`\([a-z]+/[a-z0-9]+\) kubernetes/\S+`), "(<platform>) kubernetes/<commit>"},
}

// Normalize replaces text that differs from run to run by words.
func (t *Terminal) Normalize(text string) string {
	text = strings.ReplaceAll(text, t.Server, "https://<server>")
	text = strings.ReplaceAll(text, strings.TrimPrefix(t.Server, "https://"), "<server>")
	text = strings.ReplaceAll(text, t.Dir, "<dir>")
	if t.Words != nil {
		text = t.Words.Replace(text)
	}
	for _, v := range volatile {
		text = v.pattern.ReplaceAllString(text, v.word)
	}
	return text
}
