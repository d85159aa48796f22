package annextest

// Changes is changes, for tests.
var Changes = changes

// Held returns the bytes of the bodies that a report holds.
func (r *Report) Held() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.held
}

// Records returns the number of answers and events that a report holds.
func (r *Report) Records() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.records)
}
