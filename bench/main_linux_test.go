package main

import (
	"fmt"
	"io"
	"net/url"
	"os"
	"testing"

	"github.com/go-logr/logr"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"k8s.io/klog/v2"
)

// etcdDirEnv makes this program an etcd server on a directory.
const etcdDirEnv = "ANNEX_BENCH_ETCD"

func TestMain(m *testing.M) {
	klog.SetLogger(logr.Discard())
	if dir := os.Getenv(etcdDirEnv); dir != "" {
		if err := serveEtcd(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// serveEtcd runs one member with stock settings, except for its log and its quota, which a million objects exceed. It
// prints its address, and stops when standard input ends, so that it does not outlive the benchmark.
func serveEtcd(dir string) error {
	config := embed.NewConfig()
	config.Dir = dir
	config.QuotaBackendBytes = 8 << 30
	config.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	anyPort := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	config.ListenClientUrls, config.AdvertiseClientUrls = anyPort, anyPort
	config.ListenPeerUrls, config.AdvertisePeerUrls = anyPort, anyPort
	config.InitialCluster = config.Name + "=" + anyPort[0].String()
	server, err := embed.StartEtcd(config)
	if err != nil {
		return fmt.Errorf("start etcd: %w", err)
	}
	select {
	case <-server.Server.ReadyNotify():
	case err := <-server.Err():
		return fmt.Errorf("start etcd: %w", err)
	}
	fmt.Printf("http://%s\n", server.Clients[0].Addr())
	_, _ = io.Copy(io.Discard, os.Stdin)
	server.Close()
	return nil
}
