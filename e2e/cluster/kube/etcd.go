package kube

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
)

// Etcd is one etcd server.
type Etcd struct{ *Process }

// StartEtcd starts the program etcd of a directory. Its data and its log are in dir, under its name. It does not sync
// its writes.
func StartEtcd(ctx context.Context, bin, dir, name string) (*Etcd, error) {
	return startEtcd(ctx, bin, dir, name, "--unsafe-no-fsync")
}

// StartDurableEtcd is StartEtcd with every write synced before it is acknowledged, as etcd does by default.
func StartDurableEtcd(ctx context.Context, bin, dir, name string) (*Etcd, error) {
	return startEtcd(ctx, bin, dir, name)
}

func startEtcd(ctx context.Context, bin, dir, name string, args ...string) (*Etcd, error) {
	data := filepath.Join(dir, name)
	if err := os.MkdirAll(data, 0o700); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p, err := Run(ctx, dir, Program{
		Name: name, Path: filepath.Join(bin, "etcd"), Ports: 2,
		Args: func(ports []int) []string {
			client, peer := fmt.Sprintf("http://127.0.0.1:%d", ports[0]), fmt.Sprintf("http://127.0.0.1:%d", ports[1])
			return append([]string{
				"--name", name, "--data-dir", data, "--log-level", "warn",
				"--listen-client-urls", client, "--advertise-client-urls", client,
				"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", name + "=" + peer,
			}, args...)
		},
		Ready: func(ctx context.Context, ports []int) error {
			return ok(ctx, http.DefaultClient, fmt.Sprintf("http://127.0.0.1:%d/health", ports[0]))
		},
	})
	if err != nil {
		return nil, err
	}
	return &Etcd{p}, nil
}

// Endpoint returns the URL for its clients.
func (e *Etcd) Endpoint() string { return fmt.Sprintf("http://127.0.0.1:%d", e.Port(0)) }

// ok returns an error unless a URL answers 200.
func ok(ctx context.Context, client *http.Client, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, response.Status)
	}
	return nil
}
