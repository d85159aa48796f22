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
			"the API server has no front proxy: the ConfigMap kube-system/%s does not say its authority",
			configMap,
		)
		return f.repairedBy(flagsOfFrontProxy()...)
	}
	for _, key := range []string{"requestheader-username-headers", "requestheader-group-headers", "requestheader-extra-headers-prefix"} {
		var headers []string
		if err := json.Unmarshal([]byte(found.Data[key]), &headers); err != nil || len(headers) == 0 {
			return wrong(Broken, ReasonFrontProxyUnset, "the ConfigMap kube-system/%s does not say %s", configMap, key).
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
			"requestheader-client-ca-file of the ConfigMap kube-system/%s has no certificate in it",
			configMap,
		).
			repairedBy(flagsOfFrontProxy()...)
	case len(valid) == 0:
		return wrong(Broken, ReasonFrontProxyExpired, "the front proxy's authority has expired").
			seenIn(describe(authorities[0]), p.host.clock()).
			repairedBy("# With kubeadm, on each node of the control plane:", "kubeadm certs renew front-proxy-client", "# which does not renew "+
				"the authority, front-proxy-ca: make that anew and restart kube-apiserver.")
	}
	var names []string
	_ = json.Unmarshal([]byte(found.Data["requestheader-allowed-names"]), &names)
	if len(names) == 0 && found.Data["client-ca-file"] != "" &&
		sameCertificates(authorities, parseCertificates(found.Data["client-ca-file"])) {
		return wrong(Doubtful, ReasonFrontProxyUnset, "every client of the cluster is taken for the front proxy: it has the clients' "+
			"authority, and no allowed names").
			repairedBy(flagsOfFrontProxy()...)
	}
	allowed := "any name"
	if len(names) > 0 {
		allowed = strings.Join(names, ", ")
	}
	return ok("known by %s of an authority valid until %s", allowed, day(valid[0].NotAfter))
}

func flagsOfFrontProxy() []string {
	return []string{
		"# Flags of kube-apiserver, with an authority that signs the front proxy alone:",
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
			return ok("the server answers, though Available is %q (%s: %s): the API server looks every half minute", status, reason, message)
		}
		return ok("the server answers, and Available is True")
	}
	said := "the API server says: " + a.problem
	link, named := objection(a.problem)
	bad := ""
	if _, after, found := strings.Cut(a.problem, "bad status from "); found {
		bad = after[strings.LastIndex(after, " ")+1:]
	}
	switch {
	case named == ReasonFrontProxyRefused, bad == "401", a.status == http.StatusUnauthorized, bad == "403":
		return wrong(Broken, ReasonFrontProxyRefused, "the server does not believe the API server when it says who asks").
			seenIn(said, "its requests carry the front proxy's certificate and X-Remote-User").
			repairedBy("# The server reads by what to know the front proxy from the ConfigMap kube-system/"+configMap+":",
				"# let it (see auth-reader), and do not give it --requestheader-client-ca-file of another authority.",
				"kubectl -n kube-system get configmap "+configMap+" -o yaml",
				"kubectl -n "+p.api.Spec.Service.Namespace+" logs SERVER-POD | grep -i -e requestheader -e x509")
	case bad == "404", a.status == http.StatusNotFound:
		return wrong(Broken, ReasonVersionNotServed, "the server does not serve %s/%s", p.api.Spec.Group, p.api.Spec.Version).
			seenIn(said).repairedBy("# Deploy a server that has the version, or if it is given up:", "kubectl delete apiservice "+p.name)
	case link != linkAvailable:
		return unseen("it depends on the " + link) // whose check was not broken, since it could not be seen
	}
	return wrong(Broken, ReasonNotAvailable, "the server does not answer as it should").seenIn(said).
		repairedBy("kubectl -n "+p.api.Spec.Service.Namespace+" logs SERVER-POD --tail=50",
			fmt.Sprintf("kubectl get apiservice %s -o jsonpath='{.status.conditions}'", p.name))
}
