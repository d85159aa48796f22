package etcd_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/annexapi/annex/store/etcd"
)

func TestValidate_validOptions(t *testing.T) {
	for name, options := range map[string]etcd.Options{
		"https":              {Endpoints: []string{"https://etcd-1:2379"}},
		"several":            {Endpoints: []string{"https://etcd-1:2379", "https://10.0.0.2:2379/"}},
		"loopback name":      {Endpoints: []string{"http://localhost:2379"}},
		"loopback address":   {Endpoints: []string{"http://127.0.0.1:2379", "http://[::1]:2379"}},
		"socket":             {Endpoints: []string{"unix:///run/etcd.sock"}},
		"relative socket":    {Endpoints: []string{"unix://kine.sock"}},
		"plain text allowed": {Endpoints: []string{"http://etcd-1:2379"}, Plaintext: true},
		"no compaction":      {Endpoints: []string{"https://etcd-1:2379"}, CompactionInterval: -1},
	} {
		if err := options.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestValidate_invalidOptions(t *testing.T) {
	noPEM := filepath.Join(t.TempDir(), "no.pem")
	if err := os.WriteFile(noPEM, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	const secure = "https://etcd-1:2379"
	for name, test := range map[string]struct {
		options etcd.Options
		want    string
	}{
		"no endpoint":         {etcd.Options{}, "no etcd endpoints"},
		"empty endpoint":      {etcd.Options{Endpoints: []string{""}}, "not a URL"},
		"no scheme":           {etcd.Options{Endpoints: []string{"10.0.0.1:2379"}}, "not a URL"},
		"a name for a scheme": {etcd.Options{Endpoints: []string{"etcd-1:2379"}}, `unknown scheme "etcd-1"`},
		"unknown scheme":      {etcd.Options{Endpoints: []string{"tcp://etcd-1:2379"}}, `unknown scheme "tcp"`},
		"no host":             {etcd.Options{Endpoints: []string{"https://:2379"}}, "no host"},
		"no port":             {etcd.Options{Endpoints: []string{"https://etcd-1"}}, "the port is missing"},
		"no socket":           {etcd.Options{Endpoints: []string{"unix://"}}, "no path"},
		"a path":              {etcd.Options{Endpoints: []string{secure + "/registry"}}, "must have only"},
		"a password":          {etcd.Options{Endpoints: []string{"https://me:secret@etcd-1:2379"}}, "must have only"},
		"plain text":          {etcd.Options{Endpoints: []string{"http://etcd-1:2379"}}, "plain text"},
		"plain text hidden":   {etcd.Options{Endpoints: []string{"http://127.0.0.1:1", "http://10.0.0.1:1"}}, "http://10.0.0.1:1"},
		"a name like local":   {etcd.Options{Endpoints: []string{"http://localhost.example.com:2379"}}, "plain text"},
		"two schemes":         {etcd.Options{Endpoints: []string{"http://127.0.0.1:2379", secure}}, "same scheme"},
		"unused files":        {etcd.Options{Endpoints: []string{"http://127.0.0.1:2379"}, CAFile: noPEM}, "would not be used"},
		"no CA file":          {etcd.Options{Endpoints: []string{secure}, CAFile: "/does/not/exist"}, "/does/not/exist"},
		"CA file not PEM":     {etcd.Options{Endpoints: []string{secure}, CAFile: noPEM}, noPEM},
		"key missing":         {etcd.Options{Endpoints: []string{secure}, CertFile: noPEM}, "must be set together"},
		"certificate missing": {etcd.Options{Endpoints: []string{secure}, KeyFile: noPEM}, "must be set together"},
		"pair not PEM":        {etcd.Options{Endpoints: []string{secure}, CertFile: noPEM, KeyFile: noPEM}, noPEM},
		"negative wait":       {etcd.Options{Endpoints: []string{secure}, HealthcheckTimeout: -time.Second}, "negative"},
	} {
		t.Run(name, func(t *testing.T) {
			err := test.options.Validate()
			if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want one line with %q", err, test.want)
			}
			if err != nil && strings.Contains(err.Error(), "secret") {
				t.Errorf("the error shows the password: %v", err)
			}
		})
	}
}
