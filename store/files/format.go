package files

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"

	"github.com/annexapi/annex/store/journal"
)

// formatVersion is the version of the directory .annex. Programs that know only an older version reject the tree.
const formatVersion = 2

const stateMagic = "annex-state"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// digest is the SHA-256 of a file's content; the zero digest stands for a missing file.
type digest [sha256.Size]byte

func digestOf(data []byte) digest { return sha256.Sum256(data) }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *digest) UnmarshalText(text []byte) error {
	*d = digest{}
	if len(text) == 0 {
		return nil
	}
	if hex.DecodedLen(len(text)) != len(d) {
		return fmt.Errorf("%q is not a SHA-256", text)
	}
	_, err := hex.Decode(d[:], text)
	return err
}

// format returns the format version of the tree, 0 if it is new.
func (j *Journal) format() (int, error) {
	data, err := j.read(statePath, 1<<16)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := j.files.Stat(recordsV1); err == nil {
			return 0, journal.Damaged(0, "%s is missing: restore it from a copy, because the server would otherwise use "+
				"revisions twice", j.path(statePath))
		}
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	version, _, err := unseal(stateMagic, data)
	if err != nil {
		return 0, journal.Damaged(0, "%s: %w", j.path(statePath), err)
	}
	if version > formatVersion {
		return 0, fmt.Errorf("%s: unsupported format %d, this program supports %d: use a "+
			"newer program", j.path(statePath), version, formatVersion)
	}
	return version, nil
}

// setFormat sets the format of the tree to the current version.
func (j *Journal) setFormat() error {
	const temp = tempDir + "/state"
	if _, err := j.write(temp, seal(stateMagic, formatVersion, nil)); err != nil {
		return err
	}
	if err := j.files.Rename(temp, statePath); err != nil {
		return err
	}
	return j.files.SyncDir(private)
}

// seal puts a line with the format and the checksum of the body before the body.
func seal(magic string, version int, body []byte) []byte {
	line := fmt.Sprintf("%s %d %d %08x\n", magic, version, len(body), crc32.Checksum(body, castagnoli))
	return append([]byte(line), body...)
}

// unseal is the reverse of seal. It does not check the body of a newer format.
func unseal(magic string, data []byte) (version int, body []byte, err error) {
	mistaken := errors.New("the first line is not a valid header")
	first, content, found := bytes.Cut(data, []byte("\n"))
	if !found {
		return 0, nil, errors.New("the first line is missing")
	}
	line := string(first[:min(len(first), 100)])
	var name string
	var length int
	var sum uint32
	if _, err := fmt.Sscanf(line, "%s %d %d %08x", &name, &version, &length, &sum); err != nil || name != magic || version < 1 {
		return 0, nil, mistaken
	}
	if version > formatVersion {
		return version, nil, nil
	}
	if got := crc32.Checksum(content, castagnoli); len(content) != length || got != sum {
		return 0, nil, fmt.Errorf("%d bytes with checksum %08x, want %d with %08x", len(content), got, length, sum)
	}
	// Different spellings of the same values are not accepted.
	if line != fmt.Sprintf("%s %d %d %08x", magic, version, length, sum) {
		return 0, nil, mistaken
	}
	return version, content, nil
}
