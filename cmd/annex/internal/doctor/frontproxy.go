package doctor

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/annexapi/annex/internal/aggregated/requirements"
)

// configMap holds the identity of the front proxy for aggregated API servers. The front proxy is the API server when
// it forwards a request.
const configMap = requirements.AuthenticationConfigMap

func checkFrontProxy(ctx context.Context, p *examination) Finding {
	found, err := p.host.core.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, configMap, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return mayNot("get the ConfigMap "+configMap+" in kube-system", err)
	}
	if err != nil || found.Data["requestheader-client-ca-file"] == "" {
		f := wrong(
			Broken,
			ReasonFrontProxyUnset,
			"the API server has no front proxy: the ConfigMap kube-system/%s has no certificate authority for it",
			configMap,
		)
		return f.repairedBy(flagsOfFrontProxy()...)
	}
	for _, key := range []string{"requestheader-username-headers", "requestheader-group-headers", "requestheader-extra-headers-prefix"} {
		var headers []string
		if err := json.Unmarshal([]byte(found.Data[key]), &headers); err != nil || len(headers) == 0 {
			return wrong(Broken, ReasonFrontProxyUnset, "the ConfigMap kube-system/%s has no %s", configMap, key).
				repairedBy(flagsOfFrontProxy()...)
		}
	}
	now := p.host.now()
	authorities := parseCertificates(found.Data["requestheader-client-ca-file"])
	valid := slices.DeleteFunc(slices.Clone(authorities), func(c *x509.Certificate) bool { return now.After(c.NotAfter) })
	switch {
	case len(authorities) == 0:
		return wrong(
			Broken,
			ReasonFrontProxyUnset,
			"requestheader-client-ca-file in the ConfigMap kube-system/%s has no certificate",
			configMap,
		).
			repairedBy(flagsOfFrontProxy()...)
	case len(valid) == 0:
		return wrong(Broken, ReasonFrontProxyExpired, "the front proxy's certificate authority has expired").
			seenIn(describe(authorities[0]), p.host.clock()).
			repairedBy("# With kubeadm, on each node of the control plane:", "kubeadm certs renew "+
				"front-proxy-client", "# This does not renew the certificate authority, front-proxy-ca: replace it, and restart "+
				"kube-apiserver.")
	}
	var names []string
	_ = json.Unmarshal([]byte(found.Data["requestheader-allowed-names"]), &names)
	if len(names) == 0 && found.Data["client-ca-file"] != "" &&
		sameCertificates(authorities, parseCertificates(found.Data["client-ca-file"])) {
		return wrong(Doubtful, ReasonFrontProxyUnset, "servers accept every client of the cluster as front proxy: it uses the clients' "+
			"certificate authority, and has no allowed names").
			repairedBy(flagsOfFrontProxy()...)
	}
	allowed := "any name"
	if len(names) > 0 {
		allowed = strings.Join(names, ", ")
	}
	return ok("servers verify it by %s of a certificate authority that is valid until %s", allowed, day(valid[0].NotAfter))
}

func flagsOfFrontProxy() []string {
	return []string{
		"# Flags of kube-apiserver, with a certificate authority only for the front proxy:",
		"--requestheader-client-ca-file=front-proxy-ca.crt",
		"--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=front-proxy-client.crt",
		"--proxy-client-key-file=front-proxy-client.key",
	}
}

func parseCertificates(text string) []*x509.Certificate {
	var found []*x509.Certificate
	for rest := []byte(text); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return found
		}
		if c, err := x509.ParseCertificate(block.Bytes); err == nil {
			found = append(found, c)
		}
	}
}

func sameCertificates(a, b []*x509.Certificate) bool {
	return slices.EqualFunc(a, b, (*x509.Certificate).Equal)
}

// checkAvailable covers the remaining failures: the server is reached and trusted, but does not serve the version.
func checkAvailable(ctx context.Context, p *examination) Finding {
	if f, remote := p.remote(); !remote {
		return f
	}
	a := p.ask(ctx)
	status, reason, message := p.api.available()
	if a.refused {
		return ok("Available is True; the user of the kubeconfig may not get %s", p.api.path())
	}
	if a.problem == "" {
		if status != "True" {
			return ok("the server answers, but Available is %q (%s: %s): the API server checks it every 30 seconds", status, reason, message)
		}
		return ok("the server answers, and Available is True")
	}
	said := "the API server reports: " + a.problem
	link, named := objection(a.problem)
	bad := ""
	if _, after, found := strings.Cut(a.problem, "bad status from "); found {
		bad = after[strings.LastIndex(after, " ")+1:]
	}
	switch {
	case named == ReasonFrontProxyRefused, bad == "401", a.status == http.StatusUnauthorized, bad == "403":
		return wrong(Broken, ReasonFrontProxyRefused, "the server does not accept the API server as front proxy").
			seenIn(said, "requests of the API server have the front proxy's certificate and X-Remote-User").
			repairedBy("# The server reads the front proxy's certificate authority from the ConfigMap kube-system/"+configMap+":",
				"# allow this (see auth-reader), and do not set --requestheader-client-ca-file to another certificate authority.",
				"kubectl -n kube-system get configmap "+configMap+" -o yaml",
				"kubectl -n "+p.api.Spec.Service.Namespace+" logs SERVER-POD | grep -i -e requestheader -e x509")
	case bad == "404", a.status == http.StatusNotFound:
		return wrong(Broken, ReasonVersionNotServed, "the server does not serve %s/%s", p.api.Spec.Group, p.api.Spec.Version).
			seenIn(said).repairedBy("# Deploy a server that serves the version, or if you no longer need the "+
			"version:", "kubectl delete apiservice "+p.name)
	case link != linkAvailable:
		return unseen("it depends on the " + link) // whose check was not broken, since it could not be seen
	}
	return wrong(Broken, ReasonNotAvailable, "the server's answer is not valid").seenIn(said).
		repairedBy("kubectl -n "+p.api.Spec.Service.Namespace+" logs SERVER-POD --tail=50",
			fmt.Sprintf("kubectl get apiservice %s -o jsonpath='{.status.conditions}'", p.name))
}
