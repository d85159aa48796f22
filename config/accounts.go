package config

import "time"

// ServiceAccountOptions set how tokens of service accounts are signed and verified, as kube-apiserver's flags do. The
// zero value suits a single server, which generates its key.
type ServiceAccountOptions struct {
	// Issuers are the accepted issuers of tokens. New tokens name the first. If empty, it is https://NAME, of the
	// server's name. Other servers can discover the keys by an issuer only if it is the https URL at which they reach
	// this server.
	Issuers []string
	// SigningKeyFile is a PEM file with the private key that signs (RSA or ECDSA), and optionally public keys of
	// earlier private keys. It is read again when it changes. Servers that share it accept each other's tokens. If
	// empty, the server creates service-account.key beside its certificates; a server without a directory for
	// certificates uses a new key in each process.
	SigningKeyFile string
	// KeyFiles are PEM files with more keys whose tokens are accepted. They are read again when they change.
	KeyFiles []string
	// JWKSURI is the https URL of the keys in the OpenID discovery document. If empty, it is the server's own URL.
	JWKSURI string
	// MaxTokenExpiration bounds the lifetime of a token; a longer requested lifetime is shortened. 0 means a year,
	// the minimum is an hour, and a negative value sets no bound.
	MaxTokenExpiration time.Duration
}
