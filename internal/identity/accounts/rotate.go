package accounts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/annexapi/annex/internal/base/atomicfile"
	"github.com/annexapi/annex/internal/base/filelock"
)

// KeyInfo describes a key.
type KeyInfo struct {
	ID        string `json:"id"`
	Algorithm string `json:"algorithm"`
	Signs     bool   `json:"signs"`
	// VerifiesUntil is the expiry of a retired key; nil if the key is valid until it is removed.
	VerifiesUntil *time.Time `json:"verifiesUntil,omitempty"`
}

// List returns the keys of a signing file. The signing key is first.
func List(path string) ([]KeyInfo, error) {
	file, err := readSigning(path)
	if err != nil {
		return nil, fmt.Errorf("key file %s: %w", path, err)
	}
	return file.describe(), nil
}

func (f *signingFile) describe() []KeyInfo {
	var all []KeyInfo
	for _, key := range f.keys {
		info := KeyInfo{ID: key.ID, Algorithm: key.Algorithm, Signs: key.ID == f.signer.ID}
		if !key.until.IsZero() {
			end := key.until.UTC()
			info.VerifiesUntil = &end
		}
		all = append(all, info)
	}
	return all
}

// Rotate puts a new signing key of the same type into a signing file, and returns the resulting keys. It deletes the
// old private key. The old public key stays valid until verifiesUntil, or forever if that is zero. If discard is set,
// only the new key remains, and all tokens that were signed before become invalid. Servers that use the file apply
// the change a moment later.
func Rotate(ctx context.Context, path string, now, verifiesUntil time.Time, discard bool) (_ []KeyInfo, err error) {
	lock, err := lockFile(ctx, path+".lock")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	old, err := readSigning(path)
	if err != nil {
		return nil, fmt.Errorf("key file %s: %w", path, err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("key file: %w", err)
	}
	signer, err := newSigner(old.signer.Public)
	if err != nil {
		return nil, err
	}
	next := &signingFile{signer: signer, keys: []retiringKey{{Key: signer.Key}}}
	for _, key := range old.keys {
		if key.ID == old.signer.ID {
			key.until = verifiesUntil
		}
		if !discard && !key.isOver(now) {
			next.keys = append(next.keys, key)
		}
	}
	data, err := next.encode()
	if err != nil {
		return nil, err
	}
	if err := atomicfile.Write(path, data, info.Mode().Perm()); err != nil {
		return nil, fmt.Errorf("write key file: %w", err)
	}
	return next.describe(), nil
}

func lockFile(ctx context.Context, path string) (io.Closer, error) {
	lock, err := filelock.Lock(ctx, path, "rotates keys")
	if errors.As(err, new(*fs.PathError)) {
		err = fmt.Errorf("lock key file: %w", err)
	}
	return lock, err
}
