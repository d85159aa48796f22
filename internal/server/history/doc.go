// Package history serves the past of objects: the revisions of an object, the object as it was, the
// difference between two moments, and the deleted objects of a resource. It also undoes a revision and restores an object, by ordinary
// writes. It parses requests and writes responses. The storage answers within a get or a list that passes through the
// regular handlers, as package past describes, so that rights, versions and errors are those of the resource.
package history
