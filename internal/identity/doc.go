// Package identity groups the packages that authenticate and authorize callers.
//
// It holds certificates and tokens (certs, clientcert, jws, accounts), sign-in of people (login), the chain of
// authenticators and authorizers (auth), roles and bindings (rights, rbac), the review APIs (reviews), the record of
// the credential that identified a caller (credential), and the repeated check of long-running requests (standing).
//
// It must not hold code that handles a request after authorization.
//
// A request passes auth twice: authentication turns its headers and connection into a user or a 401, and
// authorization turns its attributes into permission or a 403.
package identity
