package config

import "time"

// LoginOptions configure how people and programs sign in to a server that stands alone, at /oauth/. Without a
// UserFile, /oauth/ is not served.
type LoginOptions struct {
	// UserFile holds the users with bcrypt hashes of their passwords, the clients, and the external issuers through
	// which people may sign in instead. It is read again when it changes, and refused if every user of the machine
	// may read it. Empty means the file users in the data directory, which is optional: without it, /oauth/ is not
	// served.
	UserFile string
	// PublicURL is the https URL at which clients reach the server, without a path; http is allowed on loopback. If
	// empty, it is derived from each request.
	PublicURL string
	// TokenLifetime is the lifetime of an access token: 0 means 15 minutes, and other values range from 10 seconds to
	// a day.
	TokenLifetime time.Duration
	// IdleTimeout ends a session in which no token has been requested for this time; 0 means a day.
	IdleTimeout time.Duration
	// SessionLifetime bounds a session, after which people have to sign in again; 0 means a week.
	SessionLifetime time.Duration
}
