package plan

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/program/definition"
	"github.com/annexapi/annex/store/memory"
)

func TestCompleteSelfCertify_mistakes(t *testing.T) {
	t.Parallel()
	self := func(change func(*config.Options)) *config.Options {
		o := &config.Options{Aggregated: true, SelfCertify: config.SelfCertifyOptions{Enabled: true, ServiceNamespace: "shops"}}
		change(o)
		return o
	}
	for want, o := range map[string]*config.Options{
		"": self(func(*config.Options) {}),
		"Options.SelfCertify.Enabled requires an aggregated server: add " +
			"Options.Aggregated": self(func(o *config.Options) { o.Aggregated = false }),
		"Options.SelfCertify.Enabled and Options.TLSCertFile exclude " +
			"each other": self(func(o *config.Options) { o.TLSCertFile = "x" }),
		"Options.SelfCertify.Lifetime 29s is less than 30s":     self(func(o *config.Options) { o.SelfCertify.Lifetime = 29 * time.Second }),
		"Options.SelfCertify.Lifetime -1h0m0s is less than 30s": self(func(o *config.Options) { o.SelfCertify.Lifetime = -time.Hour }),
		"Options.SelfCertify.Enabled requires Options.SelfCertify.ServiceNamespace, because the server does not run " +
			"in a pod": self(func(o *config.Options) { o.SelfCertify.ServiceNamespace = "" }),
		`Options.SelfCertify.ServiceName "A": a lowercase RFC 1123 label`:                            self(func(o *config.Options) { o.SelfCertify.ServiceName = "A" }),
		`Options.SelfCertify.ServiceNamespace "a.b": must not contain dots`:                          self(func(o *config.Options) { o.SelfCertify.ServiceNamespace = "a.b" }),
		`Options.SelfCertify.Workload "shop": must be deployments/NAME or statefulsets/NAME`:         self(func(o *config.Options) { o.SelfCertify.Workload = "shop" }),
		`Options.SelfCertify.Workload "pods/shop": must be deployments/NAME or statefulsets/NAME`:    self(func(o *config.Options) { o.SelfCertify.Workload = "pods/shop" }),
		`Options.SelfCertify.Workload "deployments/": must be deployments/NAME or statefulsets/NAME`: self(func(o *config.Options) { o.SelfCertify.Workload = "deployments/" }),
		"Options.SelfCertify.ServiceName, Options.SelfCertify.ServiceNamespace, Options.SelfCertify.Lifetime and " +
			"Options.SelfCertify.Workload require " +
			"Options.SelfCertify.Enabled": self(func(o *config.Options) { o.SelfCertify.Enabled = false }),
	} {
		p := &Plan{Definition: &define.Server{Name: "shop"}, Options: *o}
		p.Mode, p.mode = modeOf(&define.Server{}, o)
		err := p.completeMode()
		if want == "" {
			if err != nil || p.Options.SelfCertify.ServiceName != "shop" || p.Options.SelfCertify.Lifetime != 720*time.Hour {
				t.Errorf("%+v, %v", o.SelfCertify, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func TestCompleteFairness_unbounded(t *testing.T) {
	t.Parallel()
	none := config.ServingOptions{MaxRequestsInFlight: -1, MaxMutatingRequestsInFlight: -1}
	for _, test := range []struct {
		name       string
		aggregated bool
		serving    config.ServingOptions
		fair       *bool
		want       bool
		wrong      bool
	}{
		{"in a cluster, no bound", true, none, nil, true, true},
		{"in a cluster, no bound and no priority levels", true, none, new(false), false, false},
		{"in a cluster, one bound", true, config.ServingOptions{MaxRequestsInFlight: -1}, nil, true, false},
		{"in a cluster", true, config.ServingOptions{}, nil, true, false},
		{"alone, no bound", false, none, nil, false, false},
		{"alone, no bound and priority levels", false, none, new(true), true, true},
		{"alone", false, config.ServingOptions{}, nil, false, false},
		{"alone, with priority levels", false, config.ServingOptions{}, new(true), true, false},
	} {
		o := config.Options{Aggregated: test.aggregated, Serving: test.serving, PriorityAndFairness: test.fair}
		p := &Plan{Definition: &define.Server{Name: "shop"}, Options: o}
		p.Mode, p.mode = modeOf(&define.Server{}, &o)
		if err := p.completeMode(); (err != nil) != test.wrong ||
			err != nil && !strings.Contains(err.Error(), "set one of them, or disable Options.PriorityAndFairness") {
			t.Errorf("%s: %v", test.name, err)
		}
		if got := p.Options.PriorityAndFairness; got == nil || *got != test.want {
			t.Errorf("%s: it is %v, want %v", test.name, got, test.want)
		}
	}
}

func TestResolve_standalone_refusesClusterOptions(t *testing.T) {
	t.Parallel()
	var o config.Options
	for part, fields := range map[string]reflect.Value{"Cluster": reflect.ValueOf(&o.Cluster).Elem(),
		"SelfCertify": reflect.ValueOf(&o.SelfCertify).Elem()} {
		for i := range fields.NumField() {
			field := fields.Field(i)
			switch field.Kind() {
			case reflect.Bool:
				field.SetBool(true)
			case reflect.String:
				field.SetString("x")
			case reflect.Int64:
				field.SetInt(1)
			case reflect.Slice:
				field.Set(reflect.MakeSlice(field.Type(), 0, 0)) // for open paths, an empty list means none
			default:
				t.Fatalf("a field of kind %s", field.Kind())
			}
			_, err := Resolve(
				&definition.Definition{Server: &define.Server{Name: "shop"}},
				config.Options{Storage: memory.Storage(), Cluster: o.Cluster, SelfCertify: o.SelfCertify},
				nil,
			)
			want := "Options." + part + "." + fields.Type().Field(i).Name + " requires an aggregated server: add Options.Aggregated"
			if err == nil || err.Error() != want {
				t.Errorf("%v, want %s", err, want)
			}
			field.SetZero()
		}
	}
}
