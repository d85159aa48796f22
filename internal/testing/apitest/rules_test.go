package apitest_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/annexapi/annex"
	rulesv1 "github.com/annexapi/annex/internal/testing/shop/rules/v1"
	rulesv1beta1 "github.com/annexapi/annex/internal/testing/shop/rules/v1beta1"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/internal/testing/shop/v1beta1"
)

const (
	ticketsPath     = "/apis/rules.example.com/v1/namespaces/default/tickets"
	ticketsBetaPath = "/apis/rules.example.com/v1beta1/namespaces/default/tickets"
)

func tickets() *annex.KindBuilder[rulesv1.Ticket] {
	return annex.KindOf[rulesv1.Ticket, rulesv1.TicketList]("tickets", rulesv1.API).
		Versions(annex.GeneratedVersion[rulesv1beta1.Ticket, rulesv1.Ticket](rulesv1beta1.API)).
		ValidationOptions(map[string]bool{"LongNotes": false})
}

func startRules(t *testing.T, k annex.Kind) *client {
	return start(t, annex.Server{Name: "rules", Groups: []annex.Group{{Name: "rules.example.com", Kinds: []annex.Kind{k}}}})
}

func ticket(name string, f ...map[string]any) map[string]any {
	return object("v1", "Ticket", name, append(f, fields{"apiVersion": "rules.example.com/v1"})...)
}

func ticketBeta(name string, f ...map[string]any) map[string]any {
	return object("v1beta1", "Ticket", name, append(f, fields{"apiVersion": "rules.example.com/v1beta1"})...)
}

// causes returns the causes of a rejection as field: message.
func causes(s metav1.Status) []string {
	var all []string
	for _, c := range s.Details.Causes {
		all = append(all, c.Field+": "+c.Message)
	}
	slices.Sort(all)
	return all
}

func TestDeclarativeValidation_allTags(t *testing.T) {
	t.Parallel()
	c := startRules(t, tickets())
	c.post(ticketsPath, ticket("good", spec(fields{
		"title": "t", "severity": 3, "owner": "me", "project": "p", "phase": "Open", "labels": []string{"a", "b"},
		"steps": []fields{{"name": "a", "minutes": 1}, {"name": "b"}}, "source": fields{"mail": "m"}, "secret": fields{"name": "s"},
		"note": "short", "word": "allowed", "grid": fields{"x": fields{"y": "z"}},
	}))).want(201)

	for name, test := range map[string]struct {
		spec fields
		want []string
	}{
		"required":  {fields{"title": ""}, []string{`spec.title: Required value`}},
		"maxLength": {fields{"title": strings.Repeat("x", 11)}, []string{`spec.title: Too long: may not be more than 10 characters`}},
		"minimum":   {fields{"severity": 0}, []string{`spec.severity: Invalid value: 0: must be greater than or equal to 1`}},
		"maximum":   {fields{"severity": 6}, []string{`spec.severity: Invalid value: 6: must be less than or equal to 5`}},
		"format": {fields{"owner": "No Name"}, []string{`spec.owner: Invalid value: "No Name": a lowercase RFC 1123 label must ` +
			`consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or ` +
			`'123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')`}},
		"enum":         {fields{"phase": "Lost"}, []string{`spec.phase: Unsupported value: "Lost": supported values: "Closed", "Open"`}},
		"maxItems":     {fields{"labels": []string{"a", "b", "c", "d"}}, []string{`spec.labels: Too many: 4: must have at most 3 items`}},
		"listType=set": {fields{"labels": []string{"a", "a"}}, []string{`spec.labels[1]: Duplicate value: "a"`}},
		"eachVal":      {fields{"labels": []string{"a", "longer"}}, []string{`spec.labels[1]: Too long: may not be more than 4 characters`}},
		"listMapKey":   {fields{"steps": []fields{{"name": "a"}, {"name": "a"}}}, []string{`spec.steps[1]: Duplicate value: {"name":"a"}`}},
		"in items": {fields{"steps": []fields{{"name": "a", "minutes": -1}}}, []string{`spec.steps[0].minutes: Invalid value: -1: ` +
			`must be greater than or equal to 0`}},
		"union, none": {fields{"source": fields{}}, []string{`spec.source: Invalid value: "": must specify one of: ` + "`mail`, `phone`"}},
		"union, both": {fields{"source": fields{"mail": "m", "phone": "p"}}, []string{`spec.source: Invalid value: "{mail, phone}": ` +
			`must specify exactly one of: ` + "`mail`, `phone`"}},
		"subfield":         {fields{"secret": fields{"name": "long"}}, []string{`spec.secret.name: Too long: may not be more than 3 characters`}},
		"ifDisabled":       {fields{"note": "too long"}, []string{`spec.note: Too long: may not be more than 5 characters`}},
		"customValidation": {fields{"word": "forbidden"}, []string{`spec.word: Invalid value: "forbidden": is that word`}},
		"several": {fields{"severity": 9, "labels": []string{"a", "a"}},
			[]string{`spec.labels[1]: Duplicate value: "a"`, `spec.severity: Invalid value: 9: must be less than or equal to 5`}},
	} {
		t.Run(name, func(t *testing.T) {
			if _, ok := test.spec["title"]; !ok {
				test.spec["title"] = "t"
			}
			refusal := c.post(ticketsPath, ticket("bad", spec(test.spec))).refused(422, metav1.StatusReasonInvalid)
			if got := causes(refusal); !slices.Equal(got, test.want) {
				t.Errorf("create: got %q, want %q", got, test.want)
			}
			if strings.HasPrefix(name, "union") {
				return // merged with the stored object, it is something else
			}
			patched := c.patch(mergePatch, ticketsPath+"/good", fields{"spec": test.spec}).refused(422, metav1.StatusReasonInvalid)
			if got := causes(patched); !slices.Equal(got, test.want) {
				t.Errorf("patch: got %q, want %q", got, test.want)
			}
		})
	}
	c.apply(ticketsPath+"/applied", "m", ticket("applied", spec(fields{"title": "t", "severity": 9}))).
		refused(422, metav1.StatusReasonInvalid, "spec.severity: Invalid value: 9: must be less than or equal to 5")
	c.patch(mergePatch, ticketsPath+"/good", fields{"spec": fields{"project": "other"}}).
		refused(422, metav1.StatusReasonInvalid, `spec.project: Invalid value: null: field is immutable`)
	c.patch(mergePatch, ticketsPath+"/good/status", fields{"status": fields{"replies": -1}}).
		refused(422, metav1.StatusReasonInvalid, "status.replies: Invalid value: -1: must be greater than or equal to 0")
	c.patch(mergePatch, ticketsPath+"/good/status", fields{"status": fields{"replies": 1}}).want(200)
	c.patch(mergePatch, ticketsBetaPath+"/good/status", fields{"status": fields{"replies": -1}}).
		refused(422, metav1.StatusReasonInvalid, "status.replies: Invalid value: -1")
}

// In upstream the rules are those of the version that a client chooses.
func TestDeclarativeValidation_everyVersion(t *testing.T) {
	t.Parallel()
	c := startRules(t, tickets())
	for name, test := range map[string]struct {
		spec fields
		want []string
	}{
		"a rule of the hub": {fields{"subject": "t", "severity": 6}, []string{`spec.severity: Invalid value: 6: must be less than ` +
			`or equal to 5`}},
		"a rule of this version": {fields{"subject": "t", "severity": 1}, []string{`spec.severity: Invalid value: 1: must be greater ` +
			`than or equal to 2`}},
		"paths are both versions'":    {fields{"subject": ""}, []string{`spec.subject: Required value`, `spec.title: Required value`}},
		"an equal error is told once": {fields{"subject": "t", "steps": []fields{{"name": ""}}}, []string{`spec.steps[0].name: Required value`}},
		"a rule that says nothing new": {fields{"subject": "t", "severity": 0}, []string{`spec.severity: Invalid value: 0: must be greater ` +
			`than or equal to 1`, `spec.severity: Invalid value: 0: must be greater than or equal to 2`}},
	} {
		t.Run(name, func(t *testing.T) {
			refusal := c.post(ticketsBetaPath, ticketBeta("bad", spec(test.spec))).refused(422, metav1.StatusReasonInvalid)
			if got := causes(refusal); !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
	c.post(ticketsBetaPath, ticketBeta("b", spec(fields{"subject": "t", "project": "p"}))).want(201)
	c.patch(mergePatch, ticketsBetaPath+"/b", fields{"spec": fields{"project": "q"}}).
		refused(422, metav1.StatusReasonInvalid, `spec.project: Invalid value: null: field is immutable`)
	c.apply(ticketsBetaPath+"/b", "m", ticketBeta("b", spec(fields{"subject": strings.Repeat("x", 11)})), "force=true").
		refused(422, metav1.StatusReasonInvalid, "spec.title: Too long")
}

// Values stored before a rule was added may stay, as long as no write changes them.
func TestDeclarativeValidation_ratcheting(t *testing.T) {
	t.Parallel()
	old := int32(9)
	k := tickets().PrepareForUpdate(func(_ context.Context, obj, before *rulesv1.Ticket) {
		if obj.Annotations["ratchet"] != "" {
			before.Spec.Severity, obj.Spec.Severity = &old, &old // as if it had been stored before
		}
	})
	c := startRules(t, k)
	c.post(ticketsPath, ticket("r", spec(fields{"title": "t", "severity": 3}))).want(201)
	c.patch(mergePatch, ticketsPath+"/r", fields{"metadata": fields{"annotations": fields{"ratchet": "yes"}}, "spec": fields{"title": "u"}}).
		want(200)
	c.patch(mergePatch, ticketsPath+"/r", fields{"spec": fields{"severity": 8}, "metadata": fields{"annotations": fields{"ratchet": nil}}}).
		refused(422, metav1.StatusReasonInvalid, "spec.severity: Invalid value: 8")
}

func TestDeclarativeValidation_withValidate_noDuplicates(t *testing.T) {
	t.Parallel()
	c := startRules(t, tickets().Validate(func(_ context.Context, obj *rulesv1.Ticket) field.ErrorList {
		errs := field.ErrorList{field.Forbidden(field.NewPath("spec"), "today")}
		if obj.Spec.Title == "" {
			errs = append(errs, field.Required(field.NewPath("spec", "title"), ""))
		}
		return errs
	}))
	refusal := c.post(ticketsPath, ticket("x", spec(fields{"title": ""}))).refused(422, metav1.StatusReasonInvalid)
	if got, want := causes(refusal), []string{"spec.title: Required value", "spec: Forbidden: today"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// An undeclared option turned every write of an object with the field into an internal error.
func TestValidationOptions_declaredOrNot(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		options map[string]bool
		code    int
	}{"unset": {nil, 422}, "off": {map[string]bool{"LongNotes": false}, 422}, "on": {map[string]bool{"LongNotes": true}, 201}} {
		t.Run(name, func(t *testing.T) {
			c := startRules(t, tickets().ValidationOptions(test.options))
			a := c.post(ticketsPath, ticket("x", spec(fields{"title": "t", "note": "too long"}))).want(test.code)
			if test.code == 422 {
				a.refused(422, metav1.StatusReasonInvalid, "spec.note: Too long: may not be more than 5 characters")
			}
			c.post(ticketsPath, ticket("y", spec(fields{"title": "t", "note": "short"}))).want(201)
		})
	}
}

func TestValidationOptions_thatNoTagNames(t *testing.T) {
	t.Parallel()
	kind := tickets().ValidationOptions(map[string]bool{"LongNote": true})
	_, err := annex.New(
		t.Context(),
		annex.Server{Name: "rules", Groups: []annex.Group{{Name: "rules.example.com", Kinds: []annex.Kind{kind}}}},
		annex.Options{},
	)
	want := `ValidationOptions: no tag names the option "LongNote"; the tags of its packages name LongNotes, Pagers`
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
}

func TestNew_missingConversions(t *testing.T) {
	t.Parallel()
	kind := annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API).
		Versions(annex.GeneratedVersion[v1beta1.Widget, v1.Widget](v1beta1.API))
	_, err := annex.New(
		t.Context(),
		annex.Server{Name: "shop", Groups: []annex.Group{{Name: "shop.example.com", Kinds: []annex.Kind{kind}}}},
		annex.Options{},
	)
	want := "package github.com/annexapi/annex/internal/testing/shop/v1beta1 has no generated conversions: " +
		"add +k8s:conversion-gen=github.com/annexapi/annex/internal/testing/shop/v1 to the package and run annex generate, or use Version"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
}
