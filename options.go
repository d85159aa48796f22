package annex

import (
	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/store/driver"
)

type (
	// Options say how a server runs.
	Options = config.Options
	// ClusterOptions say how an aggregated server reaches its cluster and what it takes
	// from there.
	ClusterOptions = config.ClusterOptions
	// SelfCertifyOptions say how an aggregated server keeps its serving certificate.
	SelfCertifyOptions = config.SelfCertifyOptions
	// Storage is where a server can keep objects: embedded.Dir, files.Dir, memory.Storage,
	// etcd.Cluster, or a driver of one's own.
	Storage = driver.Driver
)
