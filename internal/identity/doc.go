// Package identity is the district of callers: who they are and what they may do.
//
// It holds certificates and tokens (certs, clientcert, jws, accounts), sign-in of people (login), the chain of authenticators
// and authorizers (auth), roles and bindings (rights, rbac), the review APIs (reviews), the credential that identified a
// caller (credential), and the repeated check of requests that take long (standing).
//
// It must not hold what a request does once it is allowed.
//
// A request enters auth with its headers and connection and leaves with a user, or with 401; it enters auth again with
// its attributes and leaves allowed, or with 403.
package identity
