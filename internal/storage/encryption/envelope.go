package encryption

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Envelope is the header of a stored value: how it is encrypted.
type Envelope struct {
	// Provider is aescbc, aesgcm, secretbox or kms; identity if the value is in plain text; unknown if the header is
	// incomplete.
	Provider string
	// Version is the version of the provider's format, such as v1.
	Version string
	// Key is the name of the key; for kms, the name of the plugin. Empty for identity.
	Key string
}

// marker is the prefix of values that k8s.io/apiserver encrypts: k8s:enc:<provider>:<version>:<key>:
const marker = "k8s:enc:"

// longestEnvelope bounds the search for the end of a name.
const longestEnvelope = 1024

// ParseEnvelope parses the header of a stored value.
func ParseEnvelope(data []byte) Envelope {
	rest, encrypted := bytes.CutPrefix(data, []byte(marker))
	if !encrypted {
		return Envelope{Provider: "identity"}
	}
	parts := strings.SplitN(string(rest[:min(len(rest), longestEnvelope)]), ":", 4)
	if len(parts) < 4 {
		return Envelope{Provider: "unknown"}
	}
	return Envelope{Provider: parts[0], Version: parts[1], Key: parts[2]}
}

func (e Envelope) String() string {
	switch e.Provider {
	case "identity":
		return "no encryption"
	case "kms":
		return fmt.Sprintf("provider kms %s %q", e.Version, e.Key)
	}
	return fmt.Sprintf("provider %s and key %q", e.Provider, e.Key)
}

// IsAway reports whether a value could not be decrypted because a key management plugin does not answer. Such an error
// is no evidence against the value.
func IsAway(err error) bool {
	var said interface{ GRPCStatus() *status.Status }
	if !errors.As(err, &said) {
		return false
	}
	code := said.GRPCStatus().Code()
	return code == codes.Unavailable || code == codes.DeadlineExceeded
}

// isOf reports whether a provider has the key of the envelope.
func (e Envelope) isOf(p provider) bool {
	return p.kind == e.Provider && (p.kind == "identity" || slices.Contains(p.keys, e.Key))
}
