package plugin

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"k8s.io/client-go/discovery"
)

func TestDeleted_isRestored(t *testing.T) {
	t.Parallel()
	config, dir := openShop(t)
	kubeconfig := filepath.Join(dir, "kubeconfig")
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	path := "/apis/shop.example.com/v1/namespaces/default/widgets/b"
	if err := client.RESTClient().Delete().AbsPath(path).Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
	deleted := run(t, kubeconfig, "", "deleted", "wd")
	found := regexp.MustCompile(`default +b +([0-9]+) +`).FindStringSubmatch(deleted.out)
	if found == nil {
		t.Fatalf("deleted: %+v", deleted)
	}
	back := run(t, kubeconfig, "", "restore", "wd/b", "--at="+found[1])
	if back.code != 0 || back.out != "widget.shop.example.com/b restored\n" {
		t.Errorf("restored: %+v", back)
	}
	if now := run(t, kubeconfig, "", "get", "wd/b"); !strings.Contains(now.out, "size: large") {
		t.Errorf("the object is back as %s", now.out)
	}
}
