// Package operations carries out the actions of a server that take longer than a request may.
//
// A requested action becomes an Operation, an object in the server's own storage, by which clients follow and cancel
// it. Each replica of a server has a Runner. A Runner claims a pending operation by writing itself into the status as
// the holder. If several try, one write succeeds, because it requires an unchanged resource version. The holder
// renews its claim three times per lease. If it cannot do so for two thirds of a lease, it cancels the action's
// context. Other Runners observe the claim by their own clocks alone, and take the operation over when it has not
// been renewed for a whole lease since they saw it. By then the previous action has been canceled. If the storage
// belongs to a single process, another holder is a process that has ended, and there is no need to wait.
//
// The action's progress is written at most once a second, and each write also renews the claim. The result is written
// with the last resource version that the holder has seen, so that a holder that has lost its claim unnoticed changes
// nothing.
package operations
