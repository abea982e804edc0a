package change_test

import (
	"encoding/json"
	"strings"
	"testing"

	"sluice/pkg/change"
	"sluice/pkg/fatal"
)

// FuzzUserPatch: every accepted body can be applied, shown, sent back, and replayed, and no text under the name of a
// secret remains.
func FuzzUserPatch(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"name":"n","id":"ann"}`, `{"password":"hunter22","password1":"hunter22","sk":"0123456789"}`,
		`{"projects":[{"id":"p","license":{"edition":"free","feature":["gis","x"]},"user":{"sk":"0123456789","password":"****"}}]}`,
		`{"a":{"PASSWORD":["hunter22",{"sk":12345678}]}}`, `{"type":5.0,"privileges":[1e3]}`, `{"a":[[[{"b":null}]]]}`,
		`{"tableFieldsSetting":{"password":{"width":1},"password1":true}}`, "{\"a\":\"\xff\"}", `{"a":"\ud800"}`, `[]`, ``, `{"name":1}`,
	} {
		f.Add([]byte(seed), false)
		f.Add([]byte(seed), true)
	}
	secrets := secrets()
	f.Fuzz(func(t *testing.T, body []byte, admin bool) {
		c, _, err := change.NewUserPatch(t.Context(), "ann", admin, body, secrets)
		if err != nil {
			fatal.When(t, strings.HasPrefix(describe(err), "encode"), "%s: %v", body, err)
			return
		}
		message, err := c.Encode()
		fatal.If(t, err)
		for _, secret := range secretTexts(t, body) {
			fatal.When(t, strings.Contains(string(message), secret), "%s\nleaves %q in %s", body, secret, message)
		}
		got, err := change.Decode(message)
		fatal.When(t, err != nil, "%s: %v", message, err)
		entry := mustApply(t, change.Entry{}, got, 1)
		shown, err := entry.User("ann")
		fatal.If(t, err)
		back, _, err := change.NewUserPatch(t.Context(), "ann", admin, shown, secrets)
		if err != nil {
			if d := describe(err); d != "too large" && !strings.Contains(d, "too_many") {
				t.Fatalf("%s\nis shown as %s\nwhich is refused: %v", body, shown, err)
			}
			return
		}
		again := mustApply(t, entry, *back, 2)
		if _, applied, err := change.Apply(again, got, change.Place{Seq: 1}); applied || err != nil {
			t.Fatalf("a replay was applied: %v", err)
		}
	})
}

// secretTexts lists the texts of a body that are only under the name of a secret. Short ones are left out: they may be
// part of anything.
func secretTexts(t *testing.T, body []byte) (only []string) {
	var secret, other []string
	var walk func(v any, hidden bool)
	walk = func(v any, hidden bool) {
		switch v := v.(type) {
		case map[string]any:
			for name, member := range v {
				other = append(other, name)
				lower := strings.ToLower(name)
				walk(member, lower == "password" || lower == "password1" || lower == "sk")
			}
		case []any:
			for _, elem := range v {
				walk(elem, hidden)
			}
		case string, json.Number:
			text, err := json.Marshal(v)
			fatal.If(t, err)
			if s := strings.Trim(string(text), `"`); !hidden {
				other = append(other, s)
			} else if len(s) >= 8 && strings.Trim(s, "*") != "" && !strings.Contains(s, `\u003c`) {
				secret = append(secret, s)
			}
		}
	}
	walk(canonical(t, body), false)
	for _, s := range secret {
		if !strings.Contains(strings.Join(other, "\n"), s) && !strings.Contains("user.patched $argon2id$v=19$m=19456,t=2,p=1 $hmac-sha256$", s) {
			only = append(only, s)
		}
	}
	return only
}
