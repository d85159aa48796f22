package storetest

import (
	"context"
	"crypto/aes"
	"crypto/rand"
	"fmt"
	"testing"

	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"
	aestransformer "k8s.io/apiserver/pkg/storage/value/encrypt/aes"
	"k8s.io/apiserver/pkg/storage/value/encrypt/secretbox"

	"github.com/annexapi/annex/store"
)

// Ciphers returns upstream's encryption transformers, each with a new key.
func Ciphers(t testing.TB) map[string]value.Transformer {
	t.Helper()
	var key [32]byte
	rand.Read(key[:])
	block, err := aes.NewCipher(key[:])
	if err != nil {
		t.Fatal(err)
	}
	gcm, err := aestransformer.NewGCMTransformer(block)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]value.Transformer{
		"aescbc":    aestransformer.NewCBCTransformer(block),
		"aesgcm":    gcm,
		"secretbox": secretbox.NewSecretboxTransformer(key),
	}
}

// Encrypted returns backends that encrypt values in addition to the resource's own transformer.
func Encrypted(open OpenBackend, cipher value.Transformer) OpenBackend {
	return func(t testing.TB, needs Needs) Backend { return encrypted{open(t, needs), cipher} }
}

// WithoutSizes lists the functions of the suite that do not apply to encrypting backends.
var WithoutSizes = map[string]string{
	"RunTestStats": "it reckons the bytes that are stored, and does not know of those that encryption adds",
}

type encrypted struct {
	Backend
	cipher value.Transformer
}

// Open implements store.Backend.
func (e encrypted) Open(resource store.Resource) (storage.Interface, error) {
	resource.Transformer = &chained{resource.Transformer, e.cipher}
	return e.Backend.Open(resource)
}

// chained is two transformers in a row, of which the outer one sees the stored data.
type chained struct{ inner, outer value.Transformer }

func (c *chained) TransformFromStorage(ctx context.Context, data []byte, of value.Context) ([]byte, bool, error) {
	data, stale, err := c.outer.TransformFromStorage(ctx, data, of)
	if err != nil {
		return nil, false, fmt.Errorf("decrypt: %w", err)
	}
	if c.inner == nil {
		return data, stale, nil
	}
	data, innerStale, err := c.inner.TransformFromStorage(ctx, data, of)
	return data, stale || innerStale, err
}

func (c *chained) TransformToStorage(ctx context.Context, data []byte, of value.Context) ([]byte, error) {
	if c.inner != nil {
		var err error
		if data, err = c.inner.TransformToStorage(ctx, data, of); err != nil {
			return nil, err
		}
	}
	return c.outer.TransformToStorage(ctx, data, of)
}
