package accounts

import (
	"bytes"
	"cmp"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"

	"github.com/annexapi/annex/internal/base/atomicfile"
	"github.com/annexapi/annex/internal/base/filewatch"
	"github.com/annexapi/annex/internal/base/secretfile"
	"github.com/annexapi/annex/internal/identity/jws"
)

// KeyOptions configure OpenKeys.
type KeyOptions struct {
	// SigningFile contains the private signing key (PEM), followed by retired public keys, as written by Rotate.
	// Empty creates a key that lives as long as Keys.
	SigningFile string
	// MakeSigning creates the SigningFile if it is missing.
	MakeSigning bool
	// Files contain additional keys that verify tokens (PEM): public or private keys, or certificates.
	Files []string
	// Clock determines which retired keys are still valid; nil means the real clock.
	Clock clock.PassiveClock
}

// Keys are the keys that sign and verify tokens. Its methods may be called concurrently.
type Keys struct {
	options KeyOptions
	own     *jws.Signer // without a SigningFile
	current atomic.Pointer[ring]
	// loading is held while files are read.
	loading sync.Mutex
}

// ring is the loaded content of the files.
type ring struct {
	signer *jws.Signer
	// keys verify tokens. The signer's key is first.
	keys []retiringKey
	// files are the file infos from before the files were read, in order.
	files []fs.FileInfo
}

// retiringKey is a key that is valid until a time, or forever if the time is zero.
type retiringKey struct {
	*jws.Key
	until time.Time
}

func (k retiringKey) isOver(now time.Time) bool { return !k.until.IsZero() && now.After(k.until) }

// OpenKeys reads the keys. An error names the option, the file and the mistake.
func OpenKeys(options KeyOptions) (*Keys, error) {
	k := &Keys{options: options}
	if k.options.Clock == nil {
		k.options.Clock = clock.RealClock{}
	}
	if options.SigningFile == "" {
		var err error
		if k.own, err = newSigner(nil); err != nil {
			return nil, err
		}
	} else if options.MakeSigning {
		if err := makeSigning(options.SigningFile); err != nil {
			return nil, err
		}
	}
	return k, k.load()
}

// Run reloads the files when they change, until ctx is done. If a file is missing or invalid, Run logs the error and
// the previous keys stay in force.
func (k *Keys) Run(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	for _, path := range k.paths() {
		all.Go(func() {
			filewatch.Run(ctx, "Key file of service accounts", path, func(context.Context) error { return k.load() })
		})
	}
}

func (k *Keys) paths() []string {
	if k.options.SigningFile == "" {
		return k.options.Files
	}
	return append([]string{k.options.SigningFile}, k.options.Files...)
}

func (k *Keys) load() error {
	k.loading.Lock()
	defer k.loading.Unlock()
	return k.read()
}

func (k *Keys) read() error {
	next := &ring{signer: k.own, files: k.stat()}
	if k.own != nil {
		next.add(retiringKey{Key: k.own.Key})
	} else {
		signing, err := readSigning(k.options.SigningFile)
		if err != nil {
			return k.keep(next, fmt.Errorf("Options.ServiceAccounts.SigningKeyFile %s: %w", k.options.SigningFile, err))
		}
		next.signer = signing.signer
		next.add(signing.keys...)
	}
	for _, path := range k.options.Files {
		_, public, err := readKeys(path)
		if err != nil {
			return k.keep(next, fmt.Errorf("Options.ServiceAccounts.KeyFiles %s: %w", path, err))
		}
		next.add(public...)
	}
	k.current.Store(next)
	return nil
}

// keep keeps the current keys and records the invalid files, so that they are not read again for each token.
func (k *Keys) keep(refused *ring, err error) error {
	if old := k.current.Load(); old != nil {
		kept := *old
		kept.files = refused.files
		k.current.Store(&kept)
	}
	return err
}

func (k *Keys) stat() []fs.FileInfo {
	var all []fs.FileInfo
	for _, path := range k.paths() {
		info, err := os.Stat(path)
		if err != nil {
			info = nil
		}
		all = append(all, info)
	}
	return all
}

// add adds keys to the ring. A key that is added twice stays valid until both entries expire.
func (r *ring) add(keys ...retiringKey) {
	for _, key := range keys {
		i := slices.IndexFunc(r.keys, func(other retiringKey) bool { return other.ID == key.ID })
		switch {
		case i < 0:
			r.keys = append(r.keys, key)
		case key.until.IsZero() || !r.keys[i].until.IsZero() && key.until.After(r.keys[i].until):
			r.keys[i].until = key.until
		}
	}
}

// Signer returns the current signing key.
func (k *Keys) Signer() *jws.Signer { return k.current.Load().signer }

// Verifying returns the currently valid keys. The signer's key is first.
func (k *Keys) Verifying() []*jws.Key {
	var all []*jws.Key
	for _, key := range k.current.Load().keys {
		if !key.isOver(k.options.Clock.Now()) {
			all = append(all, key.Key)
		}
	}
	return all
}

// Key returns the valid key with an ID, or nil. For an unknown ID it first reloads changed files, because another
// process may have just created the key.
func (k *Keys) Key(id string) *jws.Key {
	for again := false; ; again = true {
		for _, key := range k.Verifying() {
			if key.ID == id {
				return key
			}
		}
		if again || !k.refresh() {
			return nil
		}
	}
}

// refresh reads the files if they have changed, and reports whether it has loaded them. It does not return errors in
// the files, since Run logs them.
func (k *Keys) refresh() bool {
	k.loading.Lock()
	defer k.loading.Unlock()
	if slices.EqualFunc(k.stat(), k.current.Load().files, sameFile) {
		return false
	}
	return k.read() == nil
}

func sameFile(a, b fs.FileInfo) bool {
	if a == nil || b == nil {
		return a == b
	}
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

// until is the PEM header of retired keys.
const until = "Verifies-Until"

// signingFile is the content of a file with a signing key.
type signingFile struct {
	signer *jws.Signer
	// keys are the signer's key, followed by the retired keys.
	keys []retiringKey
}

func readSigning(path string) (*signingFile, error) {
	signers, keys, err := readKeys(path)
	switch {
	case err != nil:
		return nil, err
	case len(signers) != 1:
		return nil, fmt.Errorf("the file must have one private key, not %d", len(signers))
	}
	return &signingFile{signers[0], keys}, nil
}

// readKeys reads the private keys of a PEM file, and the public keys of all its entries.
func readKeys(path string) ([]*jws.Signer, []retiringKey, error) {
	file, err := os.Open(path)
	if inner := (*fs.PathError)(nil); errors.As(err, &inner) {
		return nil, nil, inner.Err
	}
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	var data bytes.Buffer
	if _, err := data.ReadFrom(file); err != nil {
		return nil, nil, err
	}
	signers, keys, err := parseKeys(data.Bytes())
	if err != nil || len(signers) == 0 {
		return nil, keys, err
	}
	info, err := file.Stat()
	if err != nil {
		return nil, nil, err
	}
	return signers, keys, secretfile.Check(info, "a private key")
}

func parseKeys(data []byte) (signers []*jws.Signer, keys []retiringKey, err error) {
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		private, public, err := parseBlock(block)
		var key retiringKey
		switch {
		case err != nil:
		case private != nil:
			var signer *jws.Signer
			if signer, err = jws.NewSigner(private); err == nil {
				signers = append(signers, signer)
				key.Key = signer.Key
			}
		case public != nil:
			key.Key, err = jws.NewKey(public)
		default:
			continue
		}
		if at := block.Headers[until]; err == nil && at != "" {
			if key.until, err = time.Parse(time.RFC3339, at); err != nil {
				err = fmt.Errorf("%s %q is not a time such as 2006-01-02T15:04:05Z", until, at)
			}
		}
		if err != nil {
			return nil, nil, fmt.Errorf("PEM block %s: %w", block.Type, err)
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return nil, nil, errors.New("it has no key in PEM")
	}
	// The signing key comes first.
	slices.SortStableFunc(keys, func(a, b retiringKey) int {
		return cmp.Compare(rank(signers, a), rank(signers, b))
	})
	return signers, keys, nil
}

func rank(signers []*jws.Signer, key retiringKey) int {
	if slices.ContainsFunc(signers, func(s *jws.Signer) bool { return s.ID == key.ID }) {
		return 0
	}
	return 1
}

// parseBlock returns a private or a public key. It returns neither for a block without key material, such as EC
// parameters.
func parseBlock(block *pem.Block) (crypto.Signer, crypto.PublicKey, error) {
	signer := func(key any, err error) (crypto.Signer, crypto.PublicKey, error) {
		s, ok := key.(crypto.Signer)
		if err == nil && !ok {
			err = fmt.Errorf("a key of the type %T; use RSA or ECDSA", key)
		}
		return s, nil, err
	}
	switch block.Type {
	case "PRIVATE KEY":
		return signer(x509.ParsePKCS8PrivateKey(block.Bytes))
	case "EC PRIVATE KEY":
		return signer(x509.ParseECPrivateKey(block.Bytes))
	case "RSA PRIVATE KEY":
		return signer(x509.ParsePKCS1PrivateKey(block.Bytes))
	case "PUBLIC KEY":
		key, err := x509.ParsePKIXPublicKey(block.Bytes)
		return nil, key, err
	case "RSA PUBLIC KEY":
		key, err := x509.ParsePKCS1PublicKey(block.Bytes)
		return nil, key, err
	case "CERTIFICATE":
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, nil, err
		}
		return nil, cert.PublicKey, nil
	case "EC PARAMETERS":
		return nil, nil, nil
	}
	return nil, nil, errors.New("not a key")
}

// newSigner creates a key of the same type as like. If like is nil, it is ECDSA P-256, because generating an RSA key
// would take most of a server's start-up time.
func newSigner(like crypto.PublicKey) (*jws.Signer, error) {
	var private crypto.Signer
	var err error
	switch k := like.(type) {
	case *rsa.PublicKey:
		private, err = rsa.GenerateKey(rand.Reader, k.N.BitLen())
	case *ecdsa.PublicKey:
		private, err = ecdsa.GenerateKey(k.Curve, rand.Reader)
	default:
		private, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	}
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	return jws.NewSigner(private)
}

// makeSigning creates a signing file, unless the path exists.
func makeSigning(path string) error {
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return nil // errors in an existing file are found when it is read
	}
	signer, err := newSigner(nil)
	if err != nil {
		return err
	}
	data, err := (&signingFile{signer: signer}).encode()
	if err != nil {
		return err
	}
	file, err := atomicfile.Create(path, 0o600)
	if err != nil {
		return fmt.Errorf("create the key of service accounts: %w", err)
	}
	defer file.Discard()
	if _, err := file.Write(data); err != nil {
		return fmt.Errorf("create the key of service accounts: %w", err)
	}
	if err := file.Place(); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("create the key of service accounts: %w", err)
	}
	return nil
}

// encode writes the signer's key, followed by all other keys.
func (f *signingFile) encode() ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(f.signer.Private())
	if err != nil {
		return nil, fmt.Errorf("encode the private key: %w", err)
	}
	var out strings.Builder
	blocks := []*pem.Block{{Type: "PRIVATE KEY", Bytes: der}}
	for _, key := range f.keys {
		if key.ID == f.signer.ID {
			continue
		}
		der, err := x509.MarshalPKIXPublicKey(key.Public)
		if err != nil {
			return nil, fmt.Errorf("encode the public key %s: %w", key.ID, err)
		}
		block := &pem.Block{Type: "PUBLIC KEY", Bytes: der}
		if !key.until.IsZero() {
			block.Headers = map[string]string{until: key.until.UTC().Format(time.RFC3339)}
		}
		blocks = append(blocks, block)
	}
	for _, block := range blocks {
		if err := pem.Encode(&out, block); err != nil {
			return nil, fmt.Errorf("encode keys: %w", err)
		}
	}
	return []byte(out.String()), nil
}
