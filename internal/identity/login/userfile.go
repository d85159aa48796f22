package login

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"
	"golang.org/x/crypto/bcrypt"
	"k8s.io/apiserver/pkg/authentication/user"
	"sigs.k8s.io/yaml"

	"github.com/annexapi/annex/internal/base/atomicfile"
	"github.com/annexapi/annex/internal/base/filelock"
	"github.com/annexapi/annex/internal/base/filewatch"
	"github.com/annexapi/annex/internal/base/secretfile"
)

// FileName is the name of the user file in a data directory.
const FileName = "users"

const (
	// Cost is the bcrypt cost of new hashes: verifying a password takes about a quarter of a second.
	Cost = 12
	// maxCost keeps the verification of a password below a few seconds.
	maxCost = 14
	// MaxPassword is the maximum length of a password in bytes; bcrypt ignores further bytes.
	MaxPassword = 72
	// MinPassword is the minimum length of a new password in characters.
	MinPassword = 8
	// maxName is the maximum length of a name in bytes.
	maxName = 256
)

// File is the content of a user file.
type File struct {
	Users   []User   `json:"users,omitempty"`
	Clients []Client `json:"clients,omitempty"`
	// Providers are OpenID Connect issuers at which people can sign in instead.
	Providers []Provider `json:"providers,omitempty"`
}

// User is a person who signs in with a password.
type User struct {
	Name   string   `json:"name"`
	UID    string   `json:"uid"`
	Groups []string `json:"groups,omitempty"`
	// Password is a bcrypt hash.
	Password string `json:"password"`
	Disabled bool   `json:"disabled,omitempty"`
}

// Client is a program that signs in by itself or lets people sign in.
type Client struct {
	ID string `json:"id"`
	// Secret is a bcrypt hash. A client without a secret is public and has to use PKCE.
	Secret string `json:"secret,omitempty"`
	// RedirectURIs are the allowed redirect URIs, compared byte by byte.
	RedirectURIs []string `json:"redirectURIs,omitempty"`
	// Groups are the groups of the client as a caller (client_credentials). If it is nil, the client cannot be a
	// caller.
	Groups   []string `json:"groups,omitempty"`
	Disabled bool     `json:"disabled,omitempty"`
}

// Caller returns the user name of a client that is a caller itself.
func (c *Client) Caller() string { return clientPrefix + c.ID }

// clientPrefix is the prefix of the user names of clients.
const clientPrefix = "client:"

// Refusal is the error of an invalid argument. Repeating the call with the same argument cannot succeed.
type Refusal string

func (r Refusal) Error() string { return string(r) }

func refuseAs(format string, args ...any) error { return Refusal(fmt.Sprintf(format, args...)) }

// parse returns the content of a user file. The error contains no secrets.
func parse(data []byte) (*File, error) {
	f := &File{}
	if err := yaml.UnmarshalStrict(data, f); err != nil {
		return nil, errors.New(strings.Join(strings.Fields(err.Error()), " "))
	}
	return f, f.check()
}

func (f *File) check() error {
	users, uids, clients := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for i, u := range f.Users {
		if err := CheckName("name", u.Name); err != nil {
			return fmt.Errorf("users[%d]: %w", i, err)
		}
		err := errors.Join(CheckGroups(u.Groups), checkHash(u.Password))
		switch {
		case users[u.Name]:
			err = errors.New("duplicate name")
		case u.UID == "":
			err = errors.New("uid is empty: set a UID that no other user has had")
		case uids[u.UID]:
			err = fmt.Errorf("uid %q is another user's", u.UID)
		}
		if err != nil {
			return fmt.Errorf("user %q: %w", u.Name, err)
		}
		users[u.Name], uids[u.UID] = true, true
	}
	for i, c := range f.Clients {
		if err := CheckName("id", c.ID); err != nil {
			return fmt.Errorf("clients[%d]: %w", i, err)
		}
		err := errors.Join(CheckGroups(c.Groups), checkRedirects(c.RedirectURIs))
		if c.Secret != "" {
			err = errors.Join(err, checkHash(c.Secret))
		}
		switch {
		case clients[c.ID]:
			err = errors.New("duplicate id")
		case c.Secret == "" && len(c.Groups) > 0:
			err = errors.New("the client has groups but no secret: only clients with a secret can have permissions of their own")
		}
		if err != nil {
			return fmt.Errorf("client %q: %w", c.ID, err)
		}
		clients[c.ID] = true
	}
	providers := map[string]bool{}
	for i, p := range f.Providers {
		if err := CheckName("name", p.Name); err != nil {
			return fmt.Errorf("providers[%d]: %w", i, err)
		}
		err := p.check()
		if providers[p.Name] {
			err = errors.New("duplicate name")
		}
		if err != nil {
			return fmt.Errorf("provider %q: %w", p.Name, err)
		}
		providers[p.Name] = true
	}
	return nil
}

// CheckName reports an error if name is not valid for a user or client.
func CheckName(what, name string) error {
	unprintable := func(r rune) bool { return !unicode.IsPrint(r) }
	switch {
	case name == "":
		return refuseAs("%s is empty", what)
	case !utf8.ValidString(name) || strings.ContainsFunc(name, unprintable):
		return refuseAs("%s %q has non-printable characters", what, name)
	case strings.TrimSpace(name) != name:
		return refuseAs("%s %q begins or ends with a space", what, name)
	case len(name) > maxName:
		return refuseAs("%s has %d bytes, more than %d", what, len(name), maxName)
	case strings.HasPrefix(name, "system:") || strings.HasPrefix(name, clientPrefix):
		return refuseAs("%s %q: names that begin with system: or %s are reserved for programs: choose another", what, name, clientPrefix)
	}
	return nil
}

// CheckGroups reports an error if groups are not valid for a user or client.
func CheckGroups(groups []string) error {
	for i, group := range groups {
		switch {
		case strings.TrimSpace(group) != group || group == "":
			return refuseAs("group %q is empty, or begins or ends with a space", group)
		case slices.Contains(groups[:i], group):
			return refuseAs("group %q is set twice", group)
		case strings.HasPrefix(group, "system:") && group != user.SystemPrivilegedGroup:
			return refuseAs("group %q: the only allowed group that begins with system: is %s", group, user.SystemPrivilegedGroup)
		}
	}
	return nil
}

func checkHash(hash string) error {
	cost, err := bcrypt.Cost([]byte(hash))
	if err == nil && len(hash) != 60 {
		err = bcrypt.ErrHashTooShort
	}
	switch {
	case err != nil:
		return errors.New("not a bcrypt hash")
	case cost > maxCost:
		return fmt.Errorf("the hash has the cost %d, more than %d, which would take seconds for each login", cost, maxCost)
	}
	return nil
}

func checkRedirects(uris []string) error {
	for _, uri := range uris {
		u, err := url.Parse(uri)
		if err != nil || u.Scheme == "" || u.Fragment != "" || u.Scheme == "http" && !isLoopback(u.Hostname()) ||
			slices.Contains(
				[]string{"javascript", "data", "vbscript", "file", "blob"},
				u.Scheme,
			) || (u.Scheme == "https" || u.Scheme == "http") && u.Host == "" {
			return fmt.Errorf("redirect URI %q: must be absolute and without a fragment, with the scheme https, a private scheme of an "+
				"application, or http on the loopback", uri)
		}
	}
	return nil
}

// UserFile is a user file that is reloaded when it changes. Its methods may be called concurrently.
type UserFile struct {
	path string
	// issuers allows providers in the file.
	issuers bool
	// awaited allows the file to be missing until it has been read once.
	awaited bool
	current atomic.Pointer[userIndex]
}

// userIndex is the content of a user file, indexed.
type userIndex struct {
	*File
	users   map[string]*User
	clients map[string]*Client

	providers map[string]*Provider
	// awaited means that the file does not exist yet.
	awaited bool
	// cost is the highest cost in the file. Refusing an unknown user takes as long.
	cost int
}

// OpenUserFile reads a user file. The file has to exist, unless awaited is set, and other users of the machine must
// not be able to read it. It may contain providers only if issuers is set.
func OpenUserFile(path string, issuers, awaited bool) (*UserFile, error) {
	f := &UserFile{path: path, issuers: issuers, awaited: awaited}
	return f, f.load()
}

// Run reloads the file when it changes, until ctx is done. If the file is missing or invalid, Run logs the error and
// the previous content stays in force.
func (f *UserFile) Run(ctx context.Context) {
	filewatch.Run(ctx, "User file", f.path, func(context.Context) error { return f.load() })
}

func (f *UserFile) load() error {
	file, err := readFile(f.path)
	if last := f.current.Load(); f.awaited && errors.Is(err, fs.ErrNotExist) && (last == nil || last.awaited) {
		f.current.Store(&userIndex{File: &File{}, awaited: true, cost: bcrypt.MinCost})
		return nil
	}
	if err != nil {
		return err
	}
	if len(file.Providers) > 0 && !f.issuers {
		return fmt.Errorf(
			"user file %s: provider %q: Options.AuthenticationConfigFile has no entry for its issuer",
			f.path,
			file.Providers[0].Name,
		)
	}
	k := &userIndex{
		File:      file,
		users:     map[string]*User{},
		clients:   map[string]*Client{},
		providers: map[string]*Provider{},
		cost:      bcrypt.MinCost,
	}
	for i := range file.Providers {
		k.providers[file.Providers[i].Name] = &file.Providers[i]
	}
	for i := range file.Users {
		u := &file.Users[i]
		k.users[u.Name] = u
		k.cost = max(k.cost, costOf(u.Password))
	}
	for i := range file.Clients {
		c := &file.Clients[i]
		k.clients[c.ID] = c
		k.cost = max(k.cost, costOf(c.Secret))
	}
	f.current.Store(k)
	return nil
}

func costOf(hash string) int {
	cost, _ := bcrypt.Cost([]byte(hash)) // 0 if hash is invalid
	return cost
}

func readFile(path string) (*File, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("user file: %w", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err == nil {
		err = secretfile.Check(info, "passwords' hashes")
	}
	var data bytes.Buffer
	if err == nil {
		_, err = data.ReadFrom(file)
	}
	var parsed *File
	if err == nil {
		parsed, err = parse(data.Bytes())
	}
	if inner := (*fs.PathError)(nil); errors.As(err, &inner) {
		err = inner.Err
	}
	if err != nil {
		return nil, fmt.Errorf("user file %s: %w", path, err)
	}
	return parsed, nil
}

// ReadUsers returns the content of a user file, or an empty File if the file does not exist.
func ReadUsers(path string) (*File, error) {
	f, err := readFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return &File{}, nil
	}
	return f, err
}

// Edit changes a user file atomically and durably, and creates it if it is missing. Concurrent edits, also by other
// processes, wait for each other.
func Edit(ctx context.Context, path string, change func(*File) error) (err error) {
	lock, err := filelock.Lock(ctx, path+".lock", "changes users")
	if err != nil {
		return fmt.Errorf("user file: %w", err)
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	f, err := ReadUsers(path)
	if err != nil {
		return err
	}
	if err := change(f); err != nil {
		return err
	}
	if err := f.check(); err != nil {
		return err
	}
	data, err := yaml.Marshal(f)
	if err != nil {
		return fmt.Errorf("user file %s: %w", path, err)
	}
	if err := atomicfile.Write(path, data, 0o600); err != nil {
		return fmt.Errorf("user file %s: %w", path, err)
	}
	return nil
}

// Hash returns the bcrypt hash of a new password. It returns a Refusal if the password is too short or too long.
func Hash(password string) (string, error) {
	switch {
	case utf8.RuneCountInString(password) < MinPassword:
		return "", refuseAs("the password has %d characters, at least %d are required", utf8.RuneCountInString(password), MinPassword)
	case len(password) > MaxPassword:
		return "", refuseAs("the password has %d bytes, more than bcrypt's maximum of %d", len(password), MaxPassword)
	}
	hash, err := bcrypt.GenerateFromPassword([]byte(password), Cost)
	if err != nil {
		return "", fmt.Errorf("hash the password: %w", err)
	}
	return string(hash), nil
}

// User returns the user with that name, or nil.
func (f *File) User(name string) *User {
	i := slices.IndexFunc(f.Users, func(u User) bool { return u.Name == name })
	if i < 0 {
		return nil
	}
	return &f.Users[i]
}

// SetPassword sets the hash of a user, and its groups unless groups is nil. It creates a missing user with a new UID,
// and enables a disabled one.
func (f *File) SetPassword(name, hash string, groups []string) (made bool, err error) {
	if err := errors.Join(CheckName("user name", name), CheckGroups(groups)); err != nil {
		return false, err
	}
	u := f.User(name)
	if u == nil {
		f.Users = append(f.Users, User{Name: name, UID: uuid.NewString()})
		u, made = &f.Users[len(f.Users)-1], true
	}
	u.Password, u.Disabled = hash, false
	if groups != nil {
		u.Groups = groups
	}
	return made, nil
}
