package config

import "time"

// LoginOptions say how people and programs sign in to a server that stands alone, at /oauth/. There
// is no way to without a UserFile.
type LoginOptions struct {
	// UserFile has the users with bcrypt hashes of their passwords, the clients, and the issuers by
	// which people sign in instead. It is read again when it changes, and refused if every user of
	// the machine may read it. Empty is the file users in the data directory, which need not be there:
	// without it, nothing is at /oauth/.
	UserFile string
	// PublicURL is the https URL at which clients reach the server, without a path; http on the
	// loopback is allowed. Empty takes it from each request.
	PublicURL string
	// TokenLifetime is how long an access token is valid: 15 minutes if 0, 10 seconds to a day.
	TokenLifetime time.Duration
	// IdleTimeout is how long a session lasts in which no token is asked for: a day if 0.
	IdleTimeout time.Duration
	// SessionLifetime is how long a session lasts at most, then people sign in again: a week if 0.
	SessionLifetime time.Duration
}
