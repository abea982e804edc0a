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

// JWT says which JSON Web Tokens are accepted. Exactly one of KeyFile, KeyURL
// and Secret is set.
type JWT struct {
	KeyFile  string        // path of a JSON Web Key Set
	KeyURL   string        // https URL of a JSON Web Key Set; http only for loopback
	Secret   []byte        // shared secret for HS256, at least 32 bytes
	Issuer   string        // required value of iss; empty: any
	Audience string        // required member of aud; empty: any
	Leeway   time.Duration // how far clocks may differ; default 30 s
	Refresh  time.Duration // how often keys are fetched again; default 10 min
}

func (j JWT) enabled() bool { return j.KeyFile != "" || j.KeyURL != "" || len(j.Secret) > 0 }

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
	sources := 0
	for _, set := range []bool{c.JWT.KeyFile != "", c.JWT.KeyURL != "", len(c.JWT.Secret) > 0} {
		if set {
			sources++
		}
	}
	switch {
	case c.Tokens == "" && sources == 0:
		return errors.New("no way to check tokens: name a token file, or say how JWTs are checked")
	case sources > 1:
		return errors.New("JWTs are checked by a key file, a key URL or a secret: choose one")
	case len(c.JWT.Secret) > 0 && len(c.JWT.Secret) < 32:
		return errors.New("the JWT secret is shorter than the 32 bytes that HS256 needs")
	case sources == 0 && (c.JWT.Issuer != "" || c.JWT.Audience != ""):
		return errors.New("a JWT issuer or audience is set, but no keys to check JWTs with")
	}
	return checkKeyURL(c.JWT.KeyURL)
}
