package writes

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/serializer/json"
)

// kinds are bodies with and without a kind that prefixKind can read.
var kinds = []string{
	`{"apiVersion":"a.example.com/v1","kind":"A","metadata":{}}`,
	"\n{ \"kind\" : \"A\" ,\t\"apiVersion\":\"v1\" , \"spec\":{\"kind\":\"B\"}}",
	`{"metadata":{},"apiVersion":"a/v1","kind":"A"}`,
	`{"apiVersion":"a/b/c","kind":"A"}`,
	`{"apiVersion":"v1"}`, `{"kind":"A"}`, `{"kind":"A","kind":"B","apiVersion":"v1"}`, `{"kind":"\u0041","apiVersion":"v1"}`,
	`{"kind":1,"apiVersion":"v1"}`, `{"kind":null,"apiVersion":"v1"}`, `{"Kind":"A","apiVersion":"v1"}`,
	`{}`, `[]`, `null`, ``, `{`, `{"kind"`, `{"kind":`, `{"kind":"A`, `{"kind":"A"`, `{"kind":"A",`, `nonsense`,
}

func TestFront_Interpret_readsAsUpstream(t *testing.T) {
	t.Parallel()
	for _, body := range kinds {
		compareKind(t, body)
	}
}

func compareKind(t *testing.T, body string) {
	theirs, theirErr := json.DefaultMetaFactory.Interpret([]byte(body))
	ours, err := prefixInterpreter{}.Interpret([]byte(body))
	if fmt.Sprint(theirs, theirErr) != fmt.Sprint(ours, err) {
		t.Errorf("%s: upstream's %v, %v, ours %v, %v", body, theirs, theirErr, ours, err)
	}
}
