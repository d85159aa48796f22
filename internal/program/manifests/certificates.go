package manifests

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// certificates returns the objects for cert-manager: an authority of the server's own, the serving certificate that
// it issues, and the certificates of an etcd that is deployed with the server.
func (c *Config) certificates() []runtime.Object {
	if c.Certificates != CertManager {
		return nil
	}
	objects := []runtime.Object{
		c.certManager("Issuer", c.Name+"-selfsigned", map[string]any{"selfSigned": map[string]any{}}),
		c.certManager("Certificate", c.Name+"-ca", c.certificate(c.Name+"-ca", c.Name+"-selfsigned", map[string]any{
			"isCA": true, "commonName": c.Name + "-ca", "duration": "87600h",
		})),
		c.certManager("Issuer", c.Name+"-ca", map[string]any{"ca": map[string]any{"secretName": c.Name + "-ca"}}),
		c.certManager("Certificate", c.servingSecret(), c.certificate(c.servingSecret(), c.Name+"-ca", map[string]any{
			"dnsNames": []any{c.serviceDNS(), c.serviceDNS() + ".cluster.local"}, "usages": []any{"digital signature", "server auth"},
		})),
	}
	if c.WithEtcd {
		objects = append(objects, c.certManager("Certificate", c.EtcdSecret, c.certificate(c.EtcdSecret, c.Name+"-ca", map[string]any{
			"commonName": c.Name,
			"dnsNames":   []any{c.etcdName() + "." + c.Namespace + ".svc"}, "ipAddresses": []any{"127.0.0.1"},
			"usages": []any{"digital signature", "server auth", "client auth"},
		})))
	}
	return objects
}

func (c *Config) certificate(secret, issuer string, spec map[string]any) map[string]any {
	spec["secretName"] = secret
	spec["issuerRef"] = map[string]any{"group": "cert-manager.io", "kind": "Issuer", "name": issuer}
	spec["privateKey"] = map[string]any{"algorithm": "ECDSA", "size": int64(256), "rotationPolicy": "Always"}
	return spec
}

func (c *Config) certManager(kind, name string, spec map[string]any) runtime.Object {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "cert-manager.io/v1", "kind": kind,
		"metadata": map[string]any{"name": name, "namespace": c.Namespace, "labels": labels(c.selector())},
		"spec":     spec,
	}}
}

// CheckCABundle returns the first mistake in a CA bundle for the cluster.
func CheckCABundle(text []byte) error {
	found := false
	for rest := text; ; found = true {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return fmt.Errorf("it has a %s, and all users who may read APIServices could read it", block.Type)
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return err
		}
	}
	if !found {
		return errors.New("no certificates in PEM")
	}
	return nil
}
