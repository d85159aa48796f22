// Package model is the district of kinds: what a user declared, and what follows from it without any request.
//
// It holds the declaration without type parameters and its mistakes (define), schemes, codecs and conversions
// (convert), kubebuilder markers as schemas (structural), hooks as admission plugins (admit), the caches that hooks read
// (informer), generated facts about kinds of k8s.io/api (facts), and help for OpenAPI definitions by hand (schemas).
//
// It must not hold requests, storages or options of a running server.
//
// A request enters convert as bytes and leaves as an object of the hub version, with defaults; answers go the other way. It
// enters structural and admit on its way through storage/registry.
package model
