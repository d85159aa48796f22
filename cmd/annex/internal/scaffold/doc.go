// Package scaffold writes the hand-written files of a project: those of a new
// one, and those that a kind, a version, a subresource, an admission hook or a
// controller begins with.
//
// Every command first makes a plan, the texts of all files that it would write,
// and touches the disk only when nothing is in the way of any of them. What is
// there already is never replaced, but for the lines that a definition gains: they
// are put where the syntax tree says, and everything around them stays as it is.
package scaffold
