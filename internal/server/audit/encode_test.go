package audit

import (
	"reflect"
	"strings"
	"testing"
	"time"

	authnv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/audit"

	"github.com/annexapi/annex/config"
)

// event returns an event in which all fields are set.
func event() *auditinternal.Event {
	at := time.Date(2026, 11, 22, 15, 4, 5, 123456789, time.FixedZone("", 3600))
	return &auditinternal.Event{
		Level:      auditinternal.LevelRequestResponse,
		AuditID:    "id",
		Stage:      auditinternal.StageResponseComplete,
		RequestURI: "/apis/x?a=<b>&c",
		Verb:       "create",
		User: authnv1.UserInfo{
			Username: "jane",
			UID:      "42",
			Groups:   []string{"staff", "g\u00e4ste"},
			Extra:    map[string]authnv1.ExtraValue{"k": {"v", "w"}, "a": nil, "b": {}},
		},
		ImpersonatedUser:       &authnv1.UserInfo{Username: "joe\n"},
		AuthenticationMetadata: &auditinternal.AuthenticationMetadata{ImpersonationConstraint: "c"},
		SourceIPs:              []string{"192.0.2.1", "2001:db8::1"},
		UserAgent:              "a \"b\" \\ \x7f \xff \u2028",
		ObjectRef: &auditinternal.ObjectReference{
			Resource:        "widgets",
			Namespace:       "default",
			Name:            "w",
			UID:             "1",
			APIGroup:        "g",
			APIVersion:      "v1",
			ResourceVersion: "2",
			Subresource:     "status",
		},
		ResponseStatus:           &metav1.Status{Code: 422, Reason: metav1.StatusReasonInvalid, Details: &metav1.StatusDetails{Name: "w"}},
		RequestObject:            &runtime.Unknown{Raw: []byte(`{"spec": {"size":"<small>"}}`), ContentType: runtime.ContentTypeJSON},
		ResponseObject:           &runtime.Unknown{Raw: []byte(`{"status":{}}`), ContentType: runtime.ContentTypeJSON},
		RequestReceivedTimestamp: metav1.NewMicroTime(at),
		StageTimestamp:           metav1.NewMicroTime(at.Add(time.Millisecond)),
		Annotations:              map[string]string{"authorization.k8s.io/decision": "allow", "a": "<b>"},
	}
}

func TestEncodeLine_likeUpstream(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*auditinternal.Event){
		"full":    func(*auditinternal.Event) {},
		"empty":   func(e *auditinternal.Event) { *e = auditinternal.Event{} },
		"a code":  func(e *auditinternal.Event) { e.ResponseStatus = &metav1.Status{Code: 200} },
		"no code": func(e *auditinternal.Event) { e.ResponseStatus = &metav1.Status{} },
		"empty parts": func(e *auditinternal.Event) {
			e.ImpersonatedUser, e.ObjectRef, e.AuthenticationMetadata = &authnv1.UserInfo{}, &auditinternal.ObjectReference{},
				&auditinternal.AuthenticationMetadata{}
		},
		"empty lists": func(e *auditinternal.Event) {
			e.SourceIPs, e.Annotations, e.User.Groups = []string{}, map[string]string{}, []string{}
		},
		"a part of a reference": func(e *auditinternal.Event) { e.ObjectRef = &auditinternal.ObjectReference{APIVersion: "v1"} },
		"groups only":           func(e *auditinternal.Event) { e.User = authnv1.UserInfo{Groups: []string{"a"}} },
	} {
		e := event()
		change(e)
		want, err := runtime.Encode(audit.Codecs.LegacyCodec(auditv1.SchemeGroupVersion), e)
		if err != nil {
			t.Fatal(err)
		}
		got, err := encodeLine(e)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != string(want) {
			t.Errorf("%s:\ngot  %swant %s", name, got, want)
		}
	}
	for _, value := range []any{*event(), event().User, *event().ObjectRef, *event().AuthenticationMetadata} {
		for v, i := reflect.ValueOf(value), 0; i < v.NumField(); i++ {
			if field := v.Type().Field(i); v.Field(i).IsZero() && field.Name != "TypeMeta" {
				t.Errorf("%s.%s is not compared: give event one, and encode it", v.Type(), field.Name)
			}
		}
	}
}

func TestEncode_bodyNotJSON(t *testing.T) {
	t.Parallel()
	e := event()
	e.RequestObject = &runtime.Unknown{Raw: []byte("{"), ContentType: runtime.ContentTypeJSON}
	if _, err := encode(e); err == nil {
		t.Error("it was encoded")
	}
}

func TestEncodeLine_escapesControlCharacters(t *testing.T) {
	t.Parallel()
	for name, encode := range map[string]func(*auditinternal.Event) ([]byte, error){"json": encodeLine, "legacy": encodeLegacy} {
		e := event()
		e.UserAgent, e.RequestURI = "a\nb\x1b[31m", "/x\r\ny"
		line, err := encode(e)
		if err != nil {
			t.Fatal(err)
		}
		text, ok := strings.CutSuffix(string(line), "\n")
		if !ok || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' }) {
			t.Errorf("%s: %q", name, line)
		}
	}
}

func TestOutput_largeEvent_isTruncated(t *testing.T) {
	t.Parallel()
	size := func(e *auditinternal.Event) int64 {
		line, err := encodeLine(e)
		if err != nil {
			t.Fatal(err)
		}
		return int64(len(line))
	}
	whole := event()
	short := event()
	short.RequestObject, short.ResponseObject = nil, nil
	short.Annotations[annotationTruncated] = "true"
	for _, test := range []struct {
		name string
		max  int64
		want *auditinternal.Event // nil means lost
	}{
		{"one that fits", size(whole), whole},
		{"one that is too large", size(whole) - 1, short},
		{"one that just fits without bodies", size(short), short},
		{"one that does not", size(short) - 1, nil},
	} {
		o := &output{encode: encodeLine, truncate: config.AuditTruncateOptions{Enabled: true, MaxEventSize: test.max}}
		given := event()
		got, err := o.encoded(given)
		var want []byte
		if test.want != nil {
			want, _ = encodeLine(test.want)
		}
		if string(got) != string(want) || (err != nil) != (test.want == nil) {
			t.Errorf("%s: got %s, %v\nwant %s", test.name, got, err, want)
		}
		if len(given.Annotations) != 2 || given.RequestObject == nil {
			t.Errorf("%s: the event itself has changed", test.name)
		}
	}
}

func BenchmarkEncode(b *testing.B) {
	e := event()
	e.RequestObject, e.ResponseObject, e.ImpersonatedUser, e.AuthenticationMetadata = nil, nil, nil, nil
	e.ResponseStatus, e.UserAgent, e.RequestURI = &metav1.Status{
		Code: 200,
	}, "kubectl/v1.37.2", "/apis/shop.example.com/v1/namespaces/default/widgets/w"
	e.User, e.Annotations = authnv1.UserInfo{
		Username: "jane",
		Groups:   []string{"staff"},
	}, map[string]string{
		"authorization.k8s.io/decision": "allow",
		"authorization.k8s.io/reason":   "",
	}
	b.Run("ours", func(b *testing.B) {
		for b.Loop() {
			if _, err := encodeLine(e); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("upstream", func(b *testing.B) {
		codec := audit.Codecs.LegacyCodec(auditv1.SchemeGroupVersion)
		for b.Loop() {
			if _, err := runtime.Encode(codec, e); err != nil {
				b.Fatal(err)
			}
		}
	})
}
