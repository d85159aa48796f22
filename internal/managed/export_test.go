package managed

import "k8s.io/apimachinery/pkg/runtime"

// Unknown says why objects of the manager are not compared here at all; nil if they are.
func (m *Manager) Unknown() error { return m.unknown }

// Reapplies says whether a configuration is applied without upstream's manager.
func (m *Manager) Reapplies(live, applied runtime.Object, manager string) bool {
	_, ok := m.reapply(live, applied, manager)
	return ok
}
