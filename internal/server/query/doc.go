// Package query answers what people ask of objects, for every kind alike: pages in the order
// of a field, filters, words, counts, and tails that go on telling what changes. It parses
// requests and writes answers. What it asks of the storage goes with an ordinary list or watch
// of the resource, through the same handlers: their namespaces, selectors, conversions and
// errors are these.
//
// A cursor says behind which place in an order the next page begins. It grants nothing, since
// every request is authorized by itself, and so it has a checksum over what it was made for, and no
// secret: one that was made for another query, or by hand, is refused, and those of another
// replica, or of the server before it was restarted, are good.
package query
