package serve

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/annexapi/annex/internal/storage/encryption"
)

// EncryptionOf returns a function that describes the provider and key by which a configuration file encrypts a
// resource. The description is empty for plain text, or if file is empty.
func EncryptionOf(file string) (func(schema.GroupResource) string, error) {
	if file == "" {
		return func(schema.GroupResource) string { return "" }, nil
	}
	keys, err := encryption.ReadKeys(file)
	if err != nil {
		return nil, err
	}
	return func(resource schema.GroupResource) string { return keys(resource).String() }, nil
}

// encryptionMetrics has the encryption provider and key of each resource.
type encryptionMetrics struct {
	encryption *encryption.Encryption
	storages   Storages
}

var encryptionInfo = prometheus.NewDesc("annex_storage_encryption_info",
	"1 for the provider and the key with which the server encrypts new objects of a resource; both labels are empty without encryption.",
	[]string{"group", "resource", "provider", "key"}, nil)

// Describe implements prometheus.Collector.
func (m encryptionMetrics) Describe(out chan<- *prometheus.Desc) { out <- encryptionInfo }

// Collect implements prometheus.Collector.
func (m encryptionMetrics) Collect(out chan<- prometheus.Metric) {
	for _, storage := range m.storages {
		for _, r := range storage.Resources {
			key := m.encryption.Key(r)
			out <- prometheus.MustNewConstMetric(encryptionInfo, prometheus.GaugeValue, 1, r.Group, r.Resource, key.Provider, key.Name)
		}
	}
}
