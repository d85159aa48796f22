//go:build !linux

package budget

func (p *Pages) advise([]byte) {}

// End ends the use of large pages.
func (p *Pages) End() {}
