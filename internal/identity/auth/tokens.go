package auth

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/csv"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/klog/v2"

	"github.com/annexapi/annex/internal/base/filewatch"
	"github.com/annexapi/annex/internal/base/secretfile"
)

var (
	_ authenticator.Token = (*Tokens)(nil)
	_ authenticator.Token = (*TokenFile)(nil)
)

// Tokens is a fixed set of bearer tokens. It stores and compares keyed digests, so that the duration of a comparison
// reveals nothing about a token. It may be used concurrently.
type Tokens struct {
	key   [sha256.Size]byte
	users map[[sha256.Size]byte]user.Info
	macs  sync.Pool // of hash.Hash with the key
}

// NewTokens returns a set of tokens with their users.
func NewTokens(users map[string]user.Info) *Tokens {
	t := &Tokens{users: make(map[[sha256.Size]byte]user.Info, len(users))}
	rand.Read(t.key[:])
	for token, info := range users {
		t.users[t.digest(token)] = info
	}
	return t
}

// LoopbackTokens returns a set with the single token that the server uses for requests to itself, as a member of
// system:masters.
func LoopbackTokens(token string) *Tokens {
	return NewTokens(map[string]user.Info{
		token: &user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup}},
	})
}

// AuthenticateToken implements authenticator.Token.
func (t *Tokens) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	info, ok := t.users[t.digest(token)]
	if !ok {
		return nil, false, nil
	}
	audiences, _ := authenticator.AudiencesFrom(ctx)
	return &authenticator.Response{User: info, Audiences: audiences}, true, nil
}

func (t *Tokens) digest(token string) (digest [sha256.Size]byte) {
	mac, ok := t.macs.Get().(hash.Hash)
	if !ok {
		mac = hmac.New(sha256.New, t.key[:])
	}
	mac.Write([]byte(token))
	mac.Sum(digest[:0])
	mac.Reset()
	t.macs.Put(mac)
	return digest
}

// TokenFile is a set of bearer tokens from a CSV file with the columns token, user name, user UID and optionally
// groups: one quoted column with commas between the groups, as in kube-apiserver's --token-auth-file.
//
// Unlike kube-apiserver, it rejects an empty token or user name, a repeated token, unquoted groups, and a file that every
// user of the machine may write. For a file that they may read, it logs a warning.
type TokenFile struct {
	path    string
	current atomic.Pointer[Tokens]
	warned  string // the last warning about the mode
}

// OpenTokenFile reads the file. An error is a single line that names the file and, if possible, the line in it. It
// never contains a token.
func OpenTokenFile(path string) (*TokenFile, error) {
	f := &TokenFile{path: path}
	if err := f.reload(); err != nil {
		return nil, err
	}
	return f, nil
}

// AuthenticateToken implements authenticator.Token.
func (f *TokenFile) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	return f.current.Load().AuthenticateToken(ctx, token)
}

// Run reloads the file when it changes, until ctx is done. If the file is missing or invalid, Run logs the error and
// the previous tokens stay valid.
func (f *TokenFile) Run(ctx context.Context) {
	filewatch.Run(ctx, "Token file", f.path, func(context.Context) error { return f.reload() })
}

func (f *TokenFile) reload() error {
	file, err := os.Open(f.path)
	if err != nil {
		return fmt.Errorf("token file: %w", err)
	}
	defer file.Close()
	info, err := file.Stat()
	warning := ""
	if err == nil {
		warning, err = secretfile.CheckChanges(info, "tokens")
	}
	if err != nil {
		return fmt.Errorf("token file %s: %w", f.path, err)
	}
	users, err := parseTokens(file)
	if err != nil {
		return fmt.Errorf("token file %s: %w", f.path, err)
	}
	f.current.Store(NewTokens(users))
	if warning != "" && warning != f.warned {
		klog.Warningf("Token file %s: %s", f.path, warning)
	}
	f.warned = warning
	return nil
}

func parseTokens(r io.Reader) (map[string]user.Info, error) {
	users := map[string]user.Info{}
	reader := csv.NewReader(r)
	reader.FieldsPerRecord = -1
	for {
		record, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return users, nil
		}
		if err != nil {
			return nil, err
		}
		line, _ := reader.FieldPos(0)
		switch {
		case len(record) < 3:
			return nil, fmt.Errorf("line %d: %d columns instead of token, user name, user UID and groups", line, len(record))
		case len(record) > 4:
			return nil, fmt.Errorf("line %d: %d columns, more than 4: put the groups in quotes", line, len(record))
		case record[0] == "":
			return nil, fmt.Errorf("line %d: the token is empty", line)
		case record[1] == "":
			return nil, fmt.Errorf("line %d: the user name is empty", line)
		case users[record[0]] != nil:
			return nil, fmt.Errorf("line %d: the token of user %q is a duplicate", line, record[1])
		}
		info := &user.DefaultInfo{Name: record[1], UID: record[2]}
		if len(record) == 4 {
			for group := range strings.SplitSeq(record[3], ",") {
				if group = strings.TrimSpace(group); group != "" {
					info.Groups = append(info.Groups, group)
				}
			}
		}
		users[record[0]] = info
	}
}
