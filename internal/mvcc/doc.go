// Package mvcc is the revisioned core.
package mvcc
