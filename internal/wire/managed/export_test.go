package managed

import (
	"reflect"

	"k8s.io/apimachinery/pkg/runtime"
)

// Unknown returns the reason why the manager delegates every call; nil if it does not.
func (m *Manager) Unknown() error { return m.unknown }

// Merges reports whether merge applies a configuration.
func (m *Manager) Merges(live, applied runtime.Object, manager string, force bool) bool {
	_, err := m.merge(live, applied, manager, force)
	return err == nil
}

// Overlays reports whether overlay applies a configuration.
func (m *Manager) Overlays(live, applied runtime.Object, manager string, force bool) bool {
	_, err := m.overlay(live, applied, manager, force)
	return err == nil
}

// ReadAlike reports whether a value certainly stays the same when it is encoded and decoded, and whether this is known
// for its type.
func ReadAlike(v any) (alike, known bool) {
	r, known := newReadback(reflect.TypeOf(v), map[reflect.Type]*readback{})
	return known && r.alike(reflect.ValueOf(v)), known
}
