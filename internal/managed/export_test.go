package managed

import (
	"reflect"

	"k8s.io/apimachinery/pkg/runtime"
)

// Unknown says why objects of the manager are not compared here at all; nil if they are.
func (m *Manager) Unknown() error { return m.unknown }

// Reapplies says whether a configuration is applied without upstream's manager.
func (m *Manager) Reapplies(live, applied runtime.Object, manager string) bool {
	_, ok := m.reapply(live, applied, manager)
	return ok
}

// Overlays says whether a configuration is laid over a live object.
func (m *Manager) Overlays(live, applied runtime.Object, manager string, force bool) bool {
	_, ok := m.overlay(live, applied, manager, force)
	return ok
}

// ReadAlike says whether a value is surely the same once it has been written and read, and whether that is known of its type.
func ReadAlike(v any) (alike, known bool) {
	r, known := newReadback(reflect.TypeOf(v), map[reflect.Type]*readback{})
	return known && r.alike(reflect.ValueOf(v)), known
}
