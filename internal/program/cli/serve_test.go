package cli

import (
	"testing"

	"github.com/annexapi/annex/config"
)

func TestRelativeLogs(t *testing.T) {
	t.Chdir("/")
	for name, test := range map[string]struct{ audit, access, want string }{
		"none":            {"", "", ""},
		"standard output": {"-", "-", ""},
		"absolute":        {"/var/log/audit.log", "/var/log/access.log", ""},
		"relative":        {"audit.log", "logs/../access.log", "audit log: /audit.log\naccess log: /access.log\n"},
		"one of them":     {"/var/log/audit.log", "access.log", "access log: /access.log\n"},
	} {
		o := config.Options{
			Audit:     config.AuditOptions{Log: config.AuditLogOptions{Path: test.audit}},
			AccessLog: config.AccessLogOptions{Path: test.access},
		}
		if got := relativeLogs(o); got != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}
