package change_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/argon2"

	"sluice/pkg/change"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

// TestSealLeavesNoSecret: no submitted secret remains in the change, wherever it was.
func TestSealLeavesNoSecret(t *testing.T) {
	const secret = "h0rse-battery-7734"
	for _, body := range []string{
		`{"password":"SECRET","password1":"SECRET"}`,
		`{"password1":"SECRET"}`,
		`{"sk":"SECRET","ak":"known"}`,
		`{"Password":"SECRET","PASSWORD1":"SECRET","sK":"SECRET"}`,
		`{"password":"other","password":"SECRET"}`,
		`{"projects":[{"id":"p","user":{"password":"SECRET","password1":"SECRET","sk":"SECRET"}}]}`,
		`{"tableFieldsSetting":{"a":[[{"sk":["SECRET",{"sk":"SECRET"}]}]]}}`,
		`{"remarks":"x","unknown":{"password":["SECRET"],"password1":["SECRET"]}}`,
		`{"\u0070assword":"\u00680rse-battery-7734"}`,
		`{"a":{"password":773477347734,"sk":77347734}}`,
	} {
		body := strings.ReplaceAll(body, "SECRET", secret)
		c, _, err := change.NewUserPatch(t.Context(), "ann", true, []byte(body), secrets())
		if err != nil {
			t.Errorf("%s: %v", body, err)
			continue
		}
		message, err := c.Encode()
		fatal.If(t, err)
		if bytes.Contains(message, []byte(secret)) || bytes.Contains(message, []byte("77347734")) || bytes.Contains(message, []byte(base64.StdEncoding.EncodeToString([]byte(secret)))) {
			t.Errorf("%s\nbecame %s", body, message)
		}
	}
}

func TestPasswordBecomesArgon2id(t *testing.T) {
	replaced, err := secrets().ReplaceSecrets(t.Context(), json.RawMessage(`{"password":"pässword"}`))
	fatal.If(t, err)
	var doc struct{ Password string }
	fatal.If(t, json.Unmarshal(replaced, &doc))
	parts := strings.Split(doc.Password, "$")
	if len(parts) != 6 || strings.Join(parts[:4], "$") != "$argon2id$v=19$m=19456,t=2,p=1" {
		t.Fatalf("not the PHC form: %s", doc.Password)
	}
	salt, err := base64.RawStdEncoding.DecodeString(parts[4])
	if err != nil || len(salt) != 16 {
		t.Fatalf("salt %q: %v", parts[4], err)
	}
	want := base64.RawStdEncoding.EncodeToString(argon2.IDKey([]byte("pässword"), salt, 2, 19456, 1, 32))
	if parts[5] != want {
		t.Errorf("hash is %s, want %s", parts[5], want)
	}
	again, err := secrets().ReplaceSecrets(t.Context(), json.RawMessage(`{"password":"pässword"}`))
	expect.Not(t, err != nil || bytes.Equal(again, replaced), "the salt was used twice: %s, %v", again, err)
}

func TestFingerprints(t *testing.T) {
	fingerprint := func(key byte, sk string) string {
		s := &change.Secrets{Key: bytes.Repeat([]byte{key}, 32)}
		replaced, err := s.ReplaceSecrets(t.Context(), json.RawMessage(fmt.Sprintf(`{"sk":%q}`, sk)))
		fatal.If(t, err)
		return string(replaced)
	}
	expect.Equal(t, "fingerprints of the same key", fingerprint('k', "one"), fingerprint('k', "one"))
	if a, b := fingerprint('k', "one"), fingerprint('k', "two"); a == b || a[:30] != b[:30] {
		t.Errorf("two keys under one: %s and %s", a, b)
	}
	if a, b := fingerprint('k', "one"), fingerprint('l', "one"); a == b || a[:30] == b[:30] {
		t.Errorf("a fingerprint without the id of its key: %s and %s", a, b)
	}
	if replaced, err := new(change.Secrets).ReplaceSecrets(t.Context(), json.RawMessage(`{"sk":"one"}`)); err == nil {
		t.Errorf("a fingerprint without a key: %s", replaced)
	}
}

func TestABodyMayNotHoldVeryManyPasswords(t *testing.T) {
	body := `{"a":["` + strings.Repeat(`x","`, 16) + `x"]}`
	_, err := secrets().ReplaceSecrets(t.Context(), json.RawMessage(strings.Replace(body, `"a"`, `"password"`, 1)))
	expect.Equal(t, "result", "#/password/16 too_many_passwords", describe(err))
}

// TestHashingIsBounded: one password is hashed at a time, the others wait up to the limit and then get ErrBusy.
func TestHashingIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, release := secrets(), make(chan struct{})
		change.OccupySlot(s, release)
		start := time.Now()
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				if _, err := s.ReplaceSecrets(t.Context(), json.RawMessage(`{"password":"x"}`)); !errors.Is(err, change.ErrBusy) {
					t.Errorf("got %v, want ErrBusy", err)
				}
			})
		}
		wg.Wait()
		expect.Equal(t, "they waited", time.Second, time.Since(start))
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := s.ReplaceSecrets(ctx, json.RawMessage(`{"password":"x"}`)); !errors.Is(err, change.ErrBusy) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want ErrBusy for the deadline", err)
		}
		if _, err := s.ReplaceSecrets(t.Context(), json.RawMessage(`{"sk":"x","password":"****"}`)); err != nil {
			t.Errorf("what needs no hash waited: %v", err)
		}
		close(release)
		if _, err := s.ReplaceSecrets(t.Context(), json.RawMessage(`{"password":"x"}`)); err != nil {
			t.Errorf("after the flood: %v", err)
		}
	})
}

func TestLoadOrCreateKey(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	keys := make([][]byte, 8)
	var wg sync.WaitGroup
	for i := range keys {
		wg.Go(func() {
			var err error
			if keys[i], err = change.LoadOrCreateKey(path); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, key := range keys {
		if len(key) != 32 || !bytes.Equal(key, keys[0]) {
			t.Fatalf("keys differ: %d and %d bytes", len(key), len(keys[0]))
		}
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode is %v, want 0600 (%v)", info.Mode(), err)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".key-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestLoadOrCreateKeyRefusesWhatIsNoKey(t *testing.T) {
	for _, text := range []string{"", "s3cr3t", strings.Repeat("ab", 31), strings.Repeat("xy", 32)} {
		path := filepath.Join(t.TempDir(), "key")
		fatal.If(t, os.WriteFile(path, []byte(text), 0o600))
		if _, err := change.LoadOrCreateKey(path); err == nil || text != "" && strings.Contains(err.Error(), text) {
			t.Errorf("%q: got %v, want an error that does not quote it", text, err)
		}
		if kept, _ := os.ReadFile(path); string(kept) != text {
			t.Errorf("%q was replaced by %q", text, kept)
		}
	}
	if _, err := change.LoadOrCreateKey(filepath.Join(t.TempDir(), "none", "key")); err == nil {
		t.Error("a key was made in a folder that does not exist")
	}
}
