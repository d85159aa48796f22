// Package operations carries out the actions of a server that take longer than a request may.
//
// An action that is requested becomes an Operation, an object of the server's own storage, by
// which clients follow and cancel it. Each replica of a server has a Runner. A Runner claims an
// operation that waits by writing itself into the status as the holder; of several, one write
// succeeds, because it names the version that it changes. The holder renews its claim three
// times in the time of a lease. If it could not for two thirds of that time, it ends the action
// by its context. Others observe the claim, by their own clocks alone, and take the operation
// over when it has not been renewed for a whole lease since they saw it: then the action has
// been told to end before. A storage that one process uses alone needs no such wait: another
// holder is a process that has ended.
//
// What an action says about its progress is written once a second at most, and each write
// renews the claim as well. The result is written with the version that the holder has seen
// last, so that a holder that has lost its claim unknowingly changes nothing.
package operations
