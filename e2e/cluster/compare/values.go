package compare

import (
	"encoding/json"
	"strings"
)

// Strings returns values for changed fields that hold texts: names of all sorts, numbers, addresses, expressions, and members of
// enumerations.
func Strings() []string {
	return []string{
		"",
		" ",
		"*",
		"a",
		"A",
		"a_b",
		"a/b",
		"a//b",
		"a.b.c",
		"-a",
		"a b",
		"$",
		"..",
		"a\nb",
		"true",
		"1",
		"-1",
		"1.5",
		"1Gi",
		"http://x",
		"https://x/y?z=1",
		"Exact",
		"Deny",
		"*/*",
		"pods/*",
		"*/scale",
		"object.spec.x",
		"1 +",
		"variables.spec.x == 1",
		"params.x",
		"'a' in object",
		"authorizer",
		"string(1)",
		"oldObject == null",
		"'text'",
		strings.Repeat("x", 64),
		strings.Repeat("y", 254),
		"Always",
		"Never",
		"Exists",
		"In",
		"Gt",
		"Localhost",
		"RuntimeDefault",
		"None",
		"TCP",
		"HTTP",
		"Bidirectional",
		"Restart",
		"Unmasked",
		"CAP_SYS_ADMIN",
		"windows",
		"linux",
		"/abs",
		"../up",
		"..file",
		"localhost/p",
		"unconfined",
		"10.0.0.1",
		"010.0.0.1",
		"::ffff:1.2.3.4",
		"a\\b",
		"a\\b\\c",
		"net.ipv4.x",
		"kernel.shmmax",
		"metadata.labels",
		"metadata.labels['a b']",
		"metadata.name['x']",
		"spec.nodeName",
		"spec.host",
		"status.phase",
		"limits.cpu",
		"requests.hugepages-2Mi",
		"limits.memory",
		"cpu",
		"pods",
		"hugepages-2Mi",
		"hugepages-x",
		"kubernetes.io/x",
		"requests.x",
		"example.com/y",
		"A/b",
		"a:v1",
		"a:v1/b",
		"latest",
		"a@sha256:" + strings.Repeat("0", 64),
	}
}

// Clone returns a copy of a document.
func Clone(doc map[string]any) map[string]any {
	raw, err := json.Marshal(doc)
	if err != nil {
		panic(err) // it has been decoded from JSON
	}
	var copied map[string]any
	if err := json.Unmarshal(raw, &copied); err != nil {
		panic(err)
	}
	return copied
}
