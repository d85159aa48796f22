package cluster

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/annexapi/annex/config"
)

// Options are the options of the configuration, where they are documented.
type Options = config.ClusterOptions

// lifetime returns how long a response is cached.
func lifetime(ttl time.Duration) time.Duration {
	if ttl == 0 {
		return 10 * time.Second // upstream's default
	}
	return max(ttl, 0)
}

// InPod reports whether this process runs in a pod that may access its cluster.
func InPod() bool {
	return inPod(os.Getenv, "/var/run/secrets/kubernetes.io/serviceaccount/token")
}

// PodNamespace returns the namespace of the pod that this process runs in; empty outside of a pod.
func PodNamespace() string {
	namespace, err := os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(namespace))
}

func inPod(env func(string) string, token string) bool {
	if env("KUBERNETES_SERVICE_HOST") == "" || env("KUBERNETES_SERVICE_PORT") == "" {
		return false
	}
	info, err := os.Stat(token)
	return err == nil && !info.IsDir()
}

// The fields that contain kubeconfigs.
const (
	kubeconfigField     = "Options.Cluster.Kubeconfig"
	authenticationField = "Options.Cluster.AuthenticationKubeconfig"
	authorizationField  = "Options.Cluster.AuthorizationKubeconfig"
)

// configs are the client configurations, by purpose.
type configs struct {
	core, authentication, authorization *rest.Config
}

// loadConfigs reads the kubeconfigs. Without one for authentication or authorization, the general one is used, and
// without any, the in-cluster configuration of the pod.
func loadConfigs(o Options) (configs, error) {
	var c configs
	for _, way := range []struct {
		to    **rest.Config
		field string
		path  string
	}{
		{&c.core, kubeconfigField, o.Kubeconfig},
		{&c.authentication, authenticationField, o.AuthenticationKubeconfig},
		{&c.authorization, authorizationField, o.AuthorizationKubeconfig},
	} {
		if way.path == "" {
			way.field, way.path = kubeconfigField, o.Kubeconfig
		}
		config, err := loadConfig(way.field, way.path)
		if err != nil {
			return configs{}, err
		}
		config.UserAgent = rest.DefaultKubernetesUserAgent()
		*way.to = config
	}
	return c, nil
}

func loadConfig(field, path string) (*rest.Config, error) {
	if path == "" {
		config, err := rest.InClusterConfig()
		if errors.Is(err, rest.ErrNotInCluster) {
			return nil, errors.New("an aggregated server outside a pod requires Options.Cluster.Kubeconfig")
		}
		if err != nil {
			return nil, fmt.Errorf("client configuration of the pod: %w", err)
		}
		return config, nil
	}
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: path}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", field, path, err)
	}
	return config, nil
}
