package encryption

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
	"k8s.io/klog/v2"

	"github.com/annexapi/annex/store"
)

// Stored gives access to the stored values of a server.
type Stored interface {
	// StoredResources returns the resources that may have objects.
	StoredResources() []schema.GroupResource
	// StoredValues yields the stored values of one resource.
	StoredValues(ctx context.Context, resource schema.GroupResource) iter.Seq2[store.Value, error]
}

// ErrUnreadable is matched by errors about stored objects that the configuration cannot decrypt.
var ErrUnreadable = errors.New("nothing was changed")

// Check returns an error unless the configuration can decrypt the stored values: at least one value for each key that
// the values of a resource name. Call it before any other reader of the values. After it has returned nil, Run accepts
// only files that pass the same check.
//
// Single unreadable values beside readable ones of the same key are not a mistake of the configuration. Without a
// configuration, Check reads only the first 100 values of each resource.
func (e *Encryption) Check(ctx context.Context, stored Stored) error {
	if e == nil {
		return check(ctx, stored, nil, encryptsNothing{})
	}
	c := e.current.Load()
	if unknown := c.unknown(stored.StoredResources()); len(unknown) > 0 {
		klog.FromContext(ctx).
			Error(nil, "The encryption configuration has unknown resources", "file", c.file, "resources",
				strings.Join(unknown, ", "))
	}
	if err := check(ctx, stored, c, e.transformers); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stored = stored
	return nil
}

// encryptsNothing provides the transformers without a configuration.
type encryptsNothing struct{}

func (encryptsNothing) TransformerForResource(schema.GroupResource) value.Transformer {
	return identity.NewEncryptCheckTransformer()
}

func check(ctx context.Context, stored Stored, c *config, transformers value.ResourceTransformers) error {
	for _, resource := range stored.StoredResources() {
		if err := checkResource(ctx, stored, resource, c, transformers.TransformerForResource(resource)); err != nil {
			return err
		}
	}
	return nil
}

const (
	// attempts is the number of values of a key that are tried before the key counts as wrong.
	attempts = 3
	// sample is the number of values of a resource that are examined if no encryption is configured, to find encrypted
	// values.
	sample = 100
)

// trial is the result of decrypting values of one key of a resource.
type trial struct {
	envelope Envelope
	readable bool
	failed   int
	key      string // of the first object that could not be read
	err      error  // the error for that object
}

func checkResource(ctx context.Context, stored Stored, resource schema.GroupResource, c *config, transformer value.Transformer) error {
	trials := map[Envelope]*trial{}
	looked := 0
	for v, err := range stored.StoredValues(ctx, resource) {
		if err != nil {
			return fmt.Errorf("read stored %s: %w", resource, err)
		}
		if looked++; c == nil && looked > sample {
			break
		}
		envelope := ParseEnvelope(v.Data)
		t := trials[envelope]
		if t == nil {
			t = &trial{envelope: envelope}
			trials[envelope] = t
		}
		if t.readable || t.failed == attempts {
			continue
		}
		if err := readable(ctx, transformer, v); err == nil {
			t.readable = true
		} else if t.failed++; t.failed == 1 {
			t.key, t.err = v.Key, err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	var unreadable []*trial
	for _, t := range trials {
		if !t.readable {
			unreadable = append(unreadable, t)
		}
	}
	if len(unreadable) == 0 {
		return nil
	}
	slices.SortFunc(unreadable, func(a, b *trial) int { return strings.Compare(a.key, b.key) })
	return unreadable[0].mistake(resource, c)
}

// readable decrypts a value. A provider without authentication decrypts with a wrong key too, so the result must also
// look like the output of a codec.
func readable(ctx context.Context, transformer value.Transformer, v store.Value) error {
	data, _, err := transformer.TransformFromStorage(ctx, v.Data, v.Context)
	if err == nil && !encoded(data) {
		err = errors.New("the decrypted value is not an object")
	}
	return err
}

// encoded reports whether data is an object in JSON, or begins like protobuf or CBOR. A brace alone is no evidence of
// JSON, because one in 256 random values starts with a brace.
func encoded(data []byte) bool {
	return bytes.HasPrefix(bytes.TrimLeft(data, " \t\r\n"), []byte("{")) && json.Valid(data) ||
		bytes.HasPrefix(data, []byte("k8s\x00")) ||
		bytes.HasPrefix(data, []byte("\xd9\xd9\xf7"))
}

// mistake returns the error about undecryptable values, with the remedy.
func (t *trial) mistake(resource schema.GroupResource, c *config) error {
	how := t.envelope.String()
	if c == nil {
		return fmt.Errorf("%s: %s is stored with %s, but there is no encryption configuration: set "+
			"Options.EncryptionConfigFile; %w", resource, t.key, how, ErrUnreadable)
	}
	r, ok := c.rule(resource)
	what := ""
	switch {
	case !ok:
		what = fmt.Sprintf(
			"%s is stored with %s, but the file has no rule for %s: add a rule with this provider after the providers for writes",
			t.key,
			how,
			resource,
		)
	case t.envelope.Provider == "identity":
		what = fmt.Sprintf("%s: %s is stored in plain text, which no provider reads: add identity: {} as the last provider, and remove it "+
			"after storage rewrite", resource, t.key)
	case !slices.ContainsFunc(r.providers, t.envelope.isOf):
		what = fmt.Sprintf("%s: %s is stored with %s, which the file does not have: add it after the providers for writes, and remove it "+
			"after storage rewrite", resource, t.key, how)
	default:
		what = fmt.Sprintf("%s: %s is stored with %s, but the provider or key of this name in the file does not decrypt it (%s): restore "+
			"the key with which it was encrypted", resource, t.key, how, oneLine(t.err))
	}
	return mistake(c.file, fmt.Errorf("%s; %w", what, ErrUnreadable))
}
