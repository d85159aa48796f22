package serve

import (
	"errors"
	"fmt"
	"slices"

	registryrest "k8s.io/apiserver/pkg/registry/rest"
)

// closers close all that a server has opened. Each constructor adds a closer as soon as it has opened a part.
type closers struct{ all []func() error }

func (c *closers) add(f func() error) { c.all = append(c.all, f) }

// run adds a closer that cannot fail.
func (c *closers) run(f func()) { c.add(func() error { f(); return nil }) }

// destroy stops the background work of storages even if they are never installed in the API server that destroys
// them. Destroy is idempotent.
func (c *closers) destroy(storages map[string]registryrest.Storage) {
	for _, storage := range storages {
		c.run(storage.Destroy)
	}
}

// close closes everything, the last opened first.
func (c *closers) close() error {
	var errs []error
	for _, f := range slices.Backward(c.all) {
		errs = append(errs, f())
	}
	return errors.Join(errs...)
}

// after closes everything after the error of a constructor, and returns that error.
func (c *closers) after(err error) error {
	if closing := c.close(); closing != nil {
		return fmt.Errorf("%w (and closing: %w)", err, closing)
	}
	return err
}
