package change

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/argon2"
)

// argon2id as OWASP recommends it for 19 MiB.
const (
	argonMemory  = 19456 // KiB
	argonTime    = 2
	argonThreads = 1
	argonSalt    = 16 // bytes
	argonHash    = 32 // bytes
)

// Secrets replaces secrets by what may be stored. The names password,
// password1 and sk mean a secret at any depth and in any case of letters:
//
//   - password becomes an argon2id hash in the PHC form;
//   - password1 must equal the password beside it, and is dropped;
//   - sk becomes a fingerprint, HMAC-SHA256 under Key: equal keys can be
//     recognized, the key itself cannot be derived from it;
//   - nothing, asterisks and the placeholders of the specification mean that
//     the secret stays as it was.
//
// An object or a boolean under such a name is no secret: settings of a column
// that is called password. A Secrets is safe for use by several goroutines.
type Secrets struct {
	Key         []byte        // of fingerprints, 32 bytes; see LoadOrCreateKey
	Concurrency int           // passwords hashed at the same time, 19 MiB and one core each; default 1
	Wait        time.Duration // how long a password waits for its turn before ErrBusy; default 1s

	once  sync.Once
	slots chan struct{}

	mu       sync.Mutex
	subjects map[string]*places
}

// maxSubject is how many patches of one subject are hashed at a time, so that
// others come between them.
const maxSubject = 2

// places are those of one subject.
type places struct {
	taken chan struct{}
	users int // that take one or wait for it
}

// enter waits for a place among those of the subject whose passwords are hashed. A
// client that waits does not retry: told at once, 64 of them make good posts slower.
func (s *Secrets) enter(ctx context.Context, subject string) (leave func(), err error) {
	s.mu.Lock()
	p, ok := s.subjects[subject]
	if !ok {
		p = &places{taken: make(chan struct{}, maxSubject)}
		if s.subjects == nil {
			s.subjects = make(map[string]*places)
		}
		s.subjects[subject] = p
	}
	p.users++
	s.mu.Unlock()
	forget := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if p.users--; p.users == 0 {
			delete(s.subjects, subject)
		}
	}
	if err := s.take(ctx, p.taken); err != nil {
		forget()
		return nil, err
	}
	return func() { <-p.taken; forget() }, nil
}

// take waits for one of the slots, as long as a password may.
func (s *Secrets) take(ctx context.Context, slots chan<- struct{}) error {
	wait := s.Wait
	if wait <= 0 {
		wait = time.Second
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case slots <- struct{}{}:
		return nil
	case <-timer.C:
		return ErrBusy
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrBusy, ctx.Err())
	}
}

// Processor waits for a processor, until it is left again.
type Processor func(context.Context) (leave func(), err error)

// hashAll replaces the marks of passwords in an encoded body by hashes. A body
// with several takes a new turn for each.
func (s *Secrets) hashAll(ctx context.Context, body json.RawMessage, p passwords, processor Processor) (json.RawMessage, error) {
	for i, plain := range p.plain {
		hash, err := s.hash(ctx, plain, processor)
		if err != nil {
			return nil, err
		}
		body = bytes.Replace(body, []byte(p.markOf(i)), []byte(hash), 1)
	}
	return body, nil
}

// fingerprint names a key without giving it away: $hmac-sha256$k=<which of
// our keys made it>$<base64>.
func (s *Secrets) fingerprint(sk string) (string, error) {
	if len(s.Key) < keySize {
		return "", errors.New("fingerprint: there is no key")
	}
	sum := func(text string) []byte {
		mac := hmac.New(sha256.New, s.Key)
		mac.Write([]byte(text))
		return mac.Sum(nil)
	}
	return "$hmac-sha256$k=" + hex.EncodeToString(sum("key id")[:4]) +
		"$" + base64.RawStdEncoding.EncodeToString(sum("sk:"+sk)), nil
}

// hash waits for its turn and then hashes a password.
func (s *Secrets) hash(ctx context.Context, password string, processor Processor) (string, error) {
	s.once.Do(func() { s.slots = make(chan struct{}, max(s.Concurrency, 1)) })
	if err := s.take(ctx, s.slots); err != nil {
		return "", err
	}
	defer func() { <-s.slots }()
	if processor != nil {
		leave, err := processor(ctx)
		if err != nil {
			return "", fmt.Errorf("%w: %w", ErrBusy, err)
		}
		defer leave()
	}
	salt := make([]byte, argonSalt)
	rand.Read(salt)
	sum := argon2.IDKey([]byte(password), salt, argonTime, argonMemory, argonThreads, argonHash)
	enc := base64.RawStdEncoding.EncodeToString
	return fmt.Sprintf("$argon2id$v=%d$m=%d,t=%d,p=%d$%s$%s",
		argon2.Version, argonMemory, argonTime, argonThreads, enc(salt), enc(sum)), nil
}

// keySize is the length of a fingerprint key in bytes, 64 hex digits in its file.
const keySize = 32

// LoadOrCreateKey reads the fingerprint key from a file, or makes one there
// (mode 0600) when there is no such file. Processes that start at the same
// time agree on one key. Fingerprints cannot be compared once it is lost.
func LoadOrCreateKey(path string) ([]byte, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if err := createKey(path); err != nil {
			return nil, fmt.Errorf("create key: %w", err)
		}
		raw, err = os.ReadFile(path)
	}
	if err != nil {
		return nil, fmt.Errorf("read key: %w", err)
	}
	key, err := hex.DecodeString(strings.TrimSpace(string(raw)))
	if err != nil || len(key) != keySize {
		return nil, fmt.Errorf("read key: %s must hold %d hex digits", path, 2*keySize)
	}
	return key, nil
}

// createKey puts a whole key at path, or leaves the one that another process
// has put there in the meantime.
func createKey(path string) error {
	key := make([]byte, keySize)
	rand.Read(key)
	tmp, err := os.CreateTemp(filepath.Dir(path), ".key-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.WriteString(hex.EncodeToString(key) + "\n")
	if err := errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	// A link, unlike a rename, never replaces a key that is in use.
	if err := os.Link(tmp.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// syncDir makes a new name in a folder survive a power loss.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
