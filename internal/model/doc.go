// Package model groups the packages of kinds: the user's declarations, and everything that is derived from them
// without a request.
//
// It holds the declaration without type parameters and its mistakes (define), schemes, codecs and conversions
// (convert), kubebuilder markers as schemas (structural), hooks as admission plugins (admit), the caches that hooks read
// (informer), generated facts about kinds of k8s.io/api (facts), and help for OpenAPI definitions by hand (schemas).
//
// It must not hold requests, storages or options of a running server.
//
// A request enters convert as bytes and leaves it as an object of the hub version, with defaults; responses go the
// opposite way. Objects pass structural and admit on their way through storage/registry.
package model
