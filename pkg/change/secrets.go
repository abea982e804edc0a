package change

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
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
//     told, the key itself can not be had from it;
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
}

// Seal returns the patch with its secrets replaced. It fails with a
// *ProblemsError when password1 differs from password, and with ErrBusy when
// too many others wait: nothing then is wrong with the patch.
func (s *Secrets) Seal(ctx context.Context, patch json.RawMessage) (json.RawMessage, error) {
	object, err := parseObject(patch)
	if err != nil {
		return nil, err
	}
	if err := s.seal(ctx, object); err != nil {
		return nil, err
	}
	return encode(object)
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
func (s *Secrets) hash(ctx context.Context, password string) (string, error) {
	s.once.Do(func() { s.slots = make(chan struct{}, max(s.Concurrency, 1)) })
	wait := s.Wait
	if wait <= 0 {
		wait = time.Second
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-timer.C:
		return "", ErrBusy
	case <-ctx.Done():
		return "", fmt.Errorf("%w: %w", ErrBusy, ctx.Err())
	}
	salt := make([]byte, argonSalt)
	rand.Read(salt)
	sum := argon2.IDKey([]byte(password), salt, argonTime, argonMemory, argonThreads, argonHash)
	enc := base64.RawStdEncoding.EncodeToString
	return fmt.Sprintf("$argon2id$v=%d$m=%d,t=%d,p=%d$%s$%s",
		argon2.Version, argonMemory, argonTime, argonThreads, enc(salt), enc(sum)), nil
}
