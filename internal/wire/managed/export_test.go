package managed

import (
	"reflect"

	"k8s.io/apimachinery/pkg/runtime"
)

// Unknown says why objects of the manager are not compared here at all; nil if they are.
func (m *Manager) Unknown() error { return m.unknown }

// Merges says whether a configuration is applied without upstream's manager, if it is not laid over the live object.
func (m *Manager) Merges(live, applied runtime.Object, manager string, force bool) bool {
	_, err := m.merge(live, applied, manager, force)
	return err == nil
}

// Overlays says whether a configuration is laid over a live object.
func (m *Manager) Overlays(live, applied runtime.Object, manager string, force bool) bool {
	_, err := m.overlay(live, applied, manager, force)
	return err == nil
}

// ReadAlike says whether a value is surely the same once it has been written and read, and whether that is known of its type.
func ReadAlike(v any) (alike, known bool) {
	r, known := newReadback(reflect.TypeOf(v), map[reflect.Type]*readback{})
	return known && r.alike(reflect.ValueOf(v)), known
}
