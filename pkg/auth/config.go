package auth

import (
	"errors"
	"time"
)

// Config says which tokens are accepted. At least one of Tokens and JWT is
// needed.
type Config struct {
	Tokens string        // path of the file of static tokens; empty: none
	Reload time.Duration // how often the file is looked at; default 1 s
	JWT    JWT           // zero: no JWTs
}

// JWT says how JSON Web Tokens are checked: by the keys of a file, of a URL or of
// the issuer itself, or by a shared secret. A JWT needs exp, and of public keys
// iss and aud, because such keys sign for others too.
type JWT struct {
	KeyFile    string // path of a JSON Web Key Set
	KeyURL     string // https URL of a JSON Web Key Set; http only for loopback
	SecretFile string // path of a shared secret for HS256, at least 32 bytes, read again when it changes
	Issuer     string // required value of iss; without the three above its keys are found by OpenID Connect Discovery
	Audience   string // required member of aud
	Any        bool   // of public keys too, iss and aud may be anything where Issuer and Audience are empty

	ScopePrefix   string        // what our scopes begin with in a token; those without it are not ours
	SubjectPrefix string        // begins the subject of every JWT, so that it is none of the token file's
	Leeway        time.Duration // how far clocks may differ; default 30 s
	Refresh       time.Duration // how often keys are fetched again; default 10 min
}

// enabled tells whether JWTs are accepted at all.
func (j JWT) enabled() bool { return j.sources() > 0 || j.Issuer != "" }

// discovers tells whether the issuer is asked where its keys are.
func (j JWT) discovers() bool { return j.sources() == 0 && j.Issuer != "" }

// remote tells whether keys are fetched.
func (j JWT) remote() bool { return j.KeyURL != "" || j.discovers() }

// reserved is what subjects of the token file may not begin with.
func (j JWT) reserved() string {
	if !j.enabled() {
		return ""
	}
	return j.SubjectPrefix
}

func (j JWT) sources() (n int) {
	for _, source := range []string{j.KeyFile, j.KeyURL, j.SecretFile} {
		if source != "" {
			n++
		}
	}
	return n
}

func (c Config) withDefaults() Config {
	if c.Reload <= 0 {
		c.Reload = time.Second
	}
	if c.JWT.Leeway <= 0 {
		c.JWT.Leeway = 30 * time.Second
	}
	if c.JWT.Refresh <= 0 {
		c.JWT.Refresh = 10 * time.Minute
	}
	return c
}

func (c Config) check() error {
	j := c.JWT
	switch {
	case c.Tokens == "" && !j.enabled():
		if j.Audience != "" {
			return errors.New("a JWT audience is set, but no keys to check JWTs with")
		}
		return errors.New("no way to check tokens: name a token file, or say how JWTs are checked")
	case j.sources() > 1:
		return errors.New("JWTs are checked by a key file, a key URL or a secret: choose one")
	case !j.enabled() && j.Audience != "":
		return errors.New("a JWT audience is set, but no keys to check JWTs with")
	case j.enabled() && j.SecretFile == "" && !j.Any && (j.Issuer == "" || j.Audience == ""):
		return errors.New("keys of an issuer sign tokens for others too: name the issuer and the audience of JWTs that are meant for this api (--jwt-issuer, --jwt-audience), or allow any (--jwt-any)")
	}
	if j.discovers() && checkURL(j.Issuer) != nil {
		return errors.New("the JWT issuer is not https, nor http on this machine, so its keys cannot be looked up: name them")
	}
	return checkURL(j.KeyURL)
}
