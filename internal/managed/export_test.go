package managed

// Unknown says why objects of the manager are not compared here at all; nil if they are.
func (m *Manager) Unknown() error { return m.unknown }
