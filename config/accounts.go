package config

import "time"

// ServiceAccountOptions say how tokens of service accounts are signed and verified. The zero
// value is for one server: it makes its key itself. They are kube-apiserver's.
type ServiceAccountOptions struct {
	// Issuers are who tokens name as their issuer: https://NAME, of the server's name, if there
	// is none. The first is that of new tokens; those of the others are accepted, too. Others
	// can find the keys by it only if it is the https URL at which they reach the server.
	Issuers []string
	// SigningKeyFile has the private key that signs (PEM; RSA or ECDSA), and perhaps public keys
	// that did before. It is read again when it changes. Servers that share it accept the tokens
	// of each other. Without one, the server makes service-account.key beside its
	// certificates; a server without a directory for these has a key as long as it runs.
	SigningKeyFile string
	// KeyFiles have more keys whose tokens are accepted (PEM). They are read again when they
	// change.
	KeyFiles []string
	// JWKSURI is where others find the keys, as OpenID discovery says it: an https URL; that of
	// the server itself if empty.
	JWKSURI string
	// MaxTokenExpiration bounds how long a token is valid: longer ones are shortened. It is a
	// year if 0, an hour at least, and there is no bound if negative.
	MaxTokenExpiration time.Duration
}
