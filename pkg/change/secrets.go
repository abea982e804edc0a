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

// Secrets replaces secrets by storable values. The names password, password1, and sk mean
// a secret at any depth, ignoring case:
//
//   - password becomes an argon2id hash in the PHC form;
//   - password1 must equal the password beside it, and is dropped;
//   - sk becomes a fingerprint, HMAC-SHA256 under Key: equal keys match, but the key
//     cannot be derived;
//   - null, asterisks, and the placeholders of the specification leave the secret
//     unchanged.
//
// An object or a boolean under such a name is not a secret: it may be the settings of a
// column called password. Safe for concurrent use.
type Secrets struct {
	Key         []byte        // of fingerprints, 32 bytes; see LoadOrCreateKey
	Concurrency int           // passwords hashed at the same time, 19 MiB and one core each; default 1
	Wait        time.Duration // how long a password waits for its turn before ErrBusy; default 1s

	once  sync.Once
	slots chan struct{}

	mu       sync.Mutex
	subjects map[string]*places
}

// maxSubject bounds the patches of one subject hashed at a time, so that others get a
// turn.
const maxSubject = 2

// places are the hashing slots of one subject.
type places struct {
	taken chan struct{}
	users int // that hold or await one
}

// enter waits for a slot of the subject. Waiting clients do not retry, whereas immediate
// refusals make 64 retrying clients slow down good posts.
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

// take waits for a slot, at most Wait.
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

// Processor waits for a processor; leave frees it.
type Processor func(context.Context) (leave func(), err error)

// hashAll replaces the marks of passwords in an encoded body by hashes. It queues again
// for each.
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

// fingerprint identifies a key without disclosing it: $hmac-sha256$k=<id of Key>$<base64>.
func (s *Secrets) fingerprint(sk string) (string, error) {
	if len(s.Key) < keySize {
		return "", errors.New("fingerprint: Secrets.Key is empty")
	}
	sum := func(text string) []byte {
		mac := hmac.New(sha256.New, s.Key)
		mac.Write([]byte(text))
		return mac.Sum(nil)
	}
	return "$hmac-sha256$k=" + hex.EncodeToString(sum("key id")[:4]) +
		"$" + base64.RawStdEncoding.EncodeToString(sum("sk:"+sk)), nil
}

// hash hashes a password once a slot is free.
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

// LoadOrCreateKey reads the fingerprint key from a file, or creates it (mode 0600).
// Concurrent processes agree on one key. Once it is lost, fingerprints cannot be compared.
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

// createKey creates path with a whole key, unless another process has done so.
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
	// A link, unlike a rename, never replaces an existing key.
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
