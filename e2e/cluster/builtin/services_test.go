package builtin

import (
	"maps"
	"net/http"
	"testing"
)

// A control plane only has Services that lead outside.
func TestServices_externalName(t *testing.T) {
	b := &both{t: t, theirs: connect(t, host.Admin()), ours: connect(t, start(t))}
	const path = "/api/v1/namespaces/default/services"
	type object = map[string]any
	spec := func(changes object) object {
		all := object{"type": "ExternalName", "externalName": "example.com"}
		maps.Copy(all, changes)
		return all
	}
	port := func(changes object) object {
		all := object{"name": "a", "port": 443}
		maps.Copy(all, changes)
		return all
	}
	ports := func(all ...any) object { return spec(object{"ports": all}) }
	annotated := func(annotations object) object { return object{"annotations": annotations} }
	for what, test := range map[string]struct {
		metadata, spec object
		code           int
	}{
		"a name":               {spec: spec(nil), code: http.StatusCreated},
		"a name that is whole": {spec: spec(object{"externalName": "example.com."}), code: http.StatusCreated},
		"an address":           {spec: spec(object{"externalName": "192.0.2.1"}), code: http.StatusCreated},
		"no name":              {spec: spec(object{"externalName": ""}), code: http.StatusUnprocessableEntity},
		"a dot":                {spec: spec(object{"externalName": "."}), code: http.StatusUnprocessableEntity},
		"a name that is none":  {spec: spec(object{"externalName": "Example_com"}), code: http.StatusUnprocessableEntity},
		"a URL":                {spec: spec(object{"externalName": "https://example.com"}), code: http.StatusUnprocessableEntity},
		"a port":               {spec: ports(object{"port": 443}), code: http.StatusCreated},
		"two ports": {spec: ports(port(nil),
			port(object{"name": "b", "port": 80, "targetPort": "http", "appProtocol": "example.com/http"})), code: http.StatusCreated},
		"ports without names":        {spec: ports(object{"port": 443}, object{"port": 80}), code: http.StatusUnprocessableEntity},
		"ports of one name":          {spec: ports(port(nil), port(object{"port": 80})), code: http.StatusUnprocessableEntity},
		"one port twice":             {spec: ports(port(nil), port(object{"name": "b"})), code: http.StatusUnprocessableEntity},
		"one port of two protocols":  {spec: ports(port(nil), port(object{"name": "b", "protocol": "UDP"})), code: http.StatusCreated},
		"a port that is none":        {spec: ports(port(object{"port": 70000})), code: http.StatusUnprocessableEntity},
		"port 0":                     {spec: ports(port(object{"port": 0})), code: http.StatusUnprocessableEntity},
		"a port's name that is none": {spec: ports(port(object{"name": "A_"})), code: http.StatusUnprocessableEntity},
		"a protocol that is none":    {spec: ports(port(object{"protocol": "tcp"})), code: http.StatusUnprocessableEntity},
		"a target that is none":      {spec: ports(port(object{"targetPort": 70000})), code: http.StatusUnprocessableEntity},
		"a target's name that is none": {spec: ports(port(object{"targetPort": "a_name_that_is_too_long"})),
			code: http.StatusUnprocessableEntity},
		"an application's protocol of none": {spec: ports(port(object{"appProtocol": "a b"})), code: http.StatusUnprocessableEntity},
		"ports of nodes": {spec: ports(port(object{"nodePort": 30000}),
			port(object{"name": "b", "port": 80, "nodePort": 30000})), code: http.StatusUnprocessableEntity},
		"a selector":              {spec: spec(object{"selector": object{"a": "b"}}), code: http.StatusCreated},
		"a selector that is none": {spec: spec(object{"selector": object{"a b": "_"}}), code: http.StatusUnprocessableEntity},
		"a cluster's address":     {spec: spec(object{"clusterIP": "10.0.0.1"}), code: http.StatusUnprocessableEntity},
		"addresses of a cluster": {spec: spec(object{"clusterIP": "None", "clusterIPs": []any{"None"}}),
			code: http.StatusUnprocessableEntity},
		"families of addresses": {spec: spec(object{"ipFamilies": []any{"IPv4"}, "ipFamilyPolicy": "SingleStack"}),
			code: http.StatusUnprocessableEntity},
		"affinity": {spec: spec(object{"sessionAffinity": "ClientIP"}), code: http.StatusCreated},
		"affinity for ever": {spec: spec(object{"sessionAffinity": "ClientIP",
			"sessionAffinityConfig": object{"clientIP": object{"timeoutSeconds": 86401}}}), code: http.StatusUnprocessableEntity},
		"affinity that is none": {spec: spec(object{"sessionAffinity": "Cookie"}), code: http.StatusUnprocessableEntity},
		"affinity's time without it": {spec: spec(object{"sessionAffinityConfig": object{"clientIP": object{"timeoutSeconds": 0}}}),
			code: http.StatusCreated},
		"addresses outside": {spec: spec(object{"externalIPs": []any{"192.0.2.1", "2001:DB8::1"}}), code: http.StatusCreated},
		"addresses that are none": {spec: spec(object{"externalIPs": []any{"x", "010.0.0.1", "::ffff:192.0.2.1"}}),
			code: http.StatusUnprocessableEntity},
		"addresses of this machine": {spec: spec(object{"externalIPs": []any{"127.0.0.1", "0.0.0.0", "169.254.0.1", "224.0.0.1"}}),
			code: http.StatusUnprocessableEntity},
		"traffic from outside": {spec: spec(object{"externalTrafficPolicy": "Local"}), code: http.StatusUnprocessableEntity},
		"traffic from inside":  {spec: spec(object{"internalTrafficPolicy": "Local"}), code: http.StatusCreated},
		"traffic of no kind":   {spec: spec(object{"internalTrafficPolicy": "Near"}), code: http.StatusUnprocessableEntity},
		"traffic nearby":       {spec: spec(object{"trafficDistribution": "PreferClose"}), code: http.StatusCreated},
		"traffic to the zone":  {spec: spec(object{"trafficDistribution": "PreferSameZone"}), code: http.StatusCreated},
		"traffic to nowhere":   {spec: spec(object{"trafficDistribution": "Anywhere"}), code: http.StatusUnprocessableEntity},
		"a balancer's address": {spec: spec(object{"loadBalancerIP": "192.0.2.1"}), code: http.StatusCreated},
		"a balancer's class": {spec: spec(object{"loadBalancerClass": "example.com/x",
			"allocateLoadBalancerNodePorts": true}), code: http.StatusUnprocessableEntity},
		"a balancer's callers": {spec: spec(object{"loadBalancerSourceRanges": []any{" 192.0.2.0/24", "192.0.2.1/24", "x"}}),
			code: http.StatusUnprocessableEntity},
		"a balancer's callers in annotation": {metadata: annotated(object{"service.beta.kubernetes.io/load-balancer-source-ranges": "x, 192.0.2.0/24"}), spec: spec(nil), code: http.StatusUnprocessableEntity},
		"a balancer's check":                 {spec: spec(object{"healthCheckNodePort": 30000}), code: http.StatusUnprocessableEntity},
		"topology twice": {metadata: annotated(object{"service.kubernetes.io/topology-mode": "Auto",
			"service.kubernetes.io/topology-aware-hints": "Disabled"}), spec: spec(nil), code: http.StatusUnprocessableEntity},
		"topology, as it was": {metadata: annotated(object{"service.kubernetes.io/topology-aware-hints": "Disabled"}),
			spec: spec(nil), code: http.StatusCreated},
		"not ready addresses":             {spec: spec(object{"publishNotReadyAddresses": true}), code: http.StatusCreated},
		"a field that is not there":       {spec: spec(object{"url": "x"}), code: http.StatusCreated},
		"a name of its own that is none":  {metadata: object{"name": "A.b"}, spec: spec(nil), code: http.StatusUnprocessableEntity},
		"a name that begins with a digit": {metadata: object{"name": "1a"}, spec: spec(nil), code: http.StatusCreated},
		"a type that is none": {spec: spec(object{"type": "Somewhere", "ports": []any{port(nil)}}),
			code: http.StatusUnprocessableEntity},
	} {
		metadata := object{"name": "outside"}
		maps.Copy(metadata, test.metadata)
		sent := object{"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": test.spec}
		if code, _ := b.same(what, http.MethodPost, path+"?dryRun=All&fieldManager=test", asJSON, sent); code != test.code {
			t.Errorf("%s: %d", what, code)
		}
	}

	// Writes are answered alike as well, and the object is found by its fields, and as a table.
	sent := object{
		"apiVersion": "v1",
		"kind":       "Service",
		"metadata":   object{"name": "outside"},
		"spec":       ports(port(nil), port(object{"name": "b", "port": 80, "nodePort": 30000})),
	}
	b.same("create", http.MethodPost, path+"?fieldManager=test", asJSON, sent)
	b.same("get", http.MethodGet, path+"/outside", asJSON, nil)
	b.same("table", http.MethodGet, path+"/outside", table, nil)
	b.same(
		"status",
		http.MethodPatch,
		path+"/outside/status?fieldManager=test",
		"application/merge-patch+json",
		object{
			"status": object{
				"conditions": []any{
					object{"type": "A", "status": "True", "reason": "B", "message": "C", "lastTransitionTime": "2026-01-01T00:00:00Z"},
				},
			},
		},
	)
	b.same("a balancer's status", http.MethodPatch, path+"/outside/status?fieldManager=test", "application/merge-patch+json",
		object{"status": object{"loadBalancer": object{"ingress": []any{object{"ip": "192.0.2.1"}}}}})
	// kube-apiserver keeps internalTrafficPolicy, and shows it only in responses for /status, so there are none after
	// this.
	b.same(
		"an update",
		http.MethodPatch,
		path+"/outside?fieldManager=test",
		"application/merge-patch+json",
		object{"spec": object{"externalName": "example.org", "internalTrafficPolicy": "Cluster"}},
	)
	b.same(
		"an update that is refused",
		http.MethodPatch,
		path+"/outside?fieldManager=test",
		"application/merge-patch+json",
		object{"spec": object{"externalName": "-"}},
	)
	b.same("by type", http.MethodGet, path+"?fieldSelector=spec.type%3DExternalName", table, nil)
	b.same("by a field that is none", http.MethodGet, path+"?fieldSelector=spec.externalName%3Dexample.org", asJSON, nil)
	b.same("delete", http.MethodDelete, path+"/outside", asJSON, nil)
}
