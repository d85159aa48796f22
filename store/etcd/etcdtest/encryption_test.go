package etcdtest_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/store/etcd"
)

// encryptionConfig writes a file that encrypts widgets with a key made of one character.
func encryptionConfig(t *testing.T, character string) string {
	t.Helper()
	return writeFile(t, filepath.Join(t.TempDir(), "encryption.yaml"), fmt.Appendf(nil, `apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [widgets.shop.example.com]
  providers:
  - secretbox: {keys: [{name: key1, secret: "%s="}]}
`, strings.Repeat(character, 43)))
}

// A server that waits for etcd checks the stored objects only once etcd answers.
func TestServer_unreadableObjectsFoundLate_ends(t *testing.T) {
	members := startCluster(t, 1, nil)
	options := annex.Options{
		Storage:              etcd.Cluster(etcd.Options{Endpoints: endpoints(members), HealthcheckTimeout: 200 * time.Millisecond}),
		EncryptionConfigFile: encryptionConfig(t, "A"),
	}
	config, ready, stop := run(t, options)
	<-ready
	if _, err := dynamic.NewForConfigOrDie(config).
		Resource(widgets).
		Namespace("default").
		Create(t.Context(), newWidget("w"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}

	members[0].stop()
	options.EncryptionConfigFile = encryptionConfig(t, "B")
	instance, err := annex.New(t.Context(), shop(), options)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- instance.Run(t.Context(), func() { t.Error("it is ready") }) }()
	members[0].start(t)
	select {
	case err = <-ended:
	case <-time.After(patience):
		t.Fatal("it goes on")
	}
	if err == nil || !strings.Contains(err.Error(), "widgets.shop.example.com: /shop.example.com/widgets/default/w is stored with "+
		"provider secretbox and key \"key1\", but the provider or key of this name in the file does not decrypt it") {
		t.Errorf("got %v", err)
	}
}
