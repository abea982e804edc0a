package auth

import (
	"errors"
	"strings"
	"time"
)

// Config says which tokens are accepted. At least one of Tokens and JWT is
// needed.
type Config struct {
	Tokens string        `type:"existingfile" help:"YAML file of static tokens; read again when it changes. See sluice token."`
	Reload time.Duration `kong:"-" default:"1s"` // how often the file is looked at
	JWT    JWT           `embed:"" prefix:"jwt-"`
}

// JWT says how JSON Web Tokens are checked: by the keys of a file, of a URL or of
// the issuer itself, or by a shared secret. A JWT needs exp, and of public keys
// iss and aud, because such keys sign for others too. Zero: there are no JWTs.
type JWT struct {
	JWKS          string `name:"jwks" help:"File or https URL of the keys that sign JWTs; needs --jwt-issuer and --jwt-audience."`                    // http only on this machine
	SecretFile    string `type:"existingfile" help:"File of the secret that signs JWTs by HS256, instead of --jwt-jwks; read again when it changes."` // at least 32 bytes
	Issuer        string `help:"Required iss of a JWT; any when empty, with --jwt-secret-file."`
	Audience      string `help:"Required aud of a JWT; any when empty, with --jwt-secret-file."`
	ScopePrefix   string `help:"What scopes begin with in a JWT, such as sluice: for sluice:records:write; others are ignored."`
	SubjectPrefix string `default:"jwt:" zero:"nothing is put before it" help:"What is put before the sub of a JWT, so that it is none of the subjects of --tokens."`

	Leeway  time.Duration `kong:"-" default:"30s"` // how far clocks may differ
	Refresh time.Duration `kong:"-" default:"10m"` // how often keys are fetched again
}

// remote tells whether keys are fetched.
func (j JWT) remote() bool { return strings.Contains(j.JWKS, "://") }

// enabled tells whether JWTs are accepted at all.
func (j JWT) enabled() bool { return j.JWKS != "" || j.SecretFile != "" }

// reserved is what subjects of the token file may not begin with.
func (j JWT) reserved() string {
	if !j.enabled() {
		return ""
	}
	return j.SubjectPrefix
}

func (c Config) check() error {
	j := c.JWT
	switch {
	case !j.enabled() && (j.Issuer != "" || j.Audience != ""):
		return errors.New("an issuer or audience of JWTs is set, but no keys to check JWTs with (--jwt-jwks, --jwt-secret-file)")
	case c.Tokens == "" && !j.enabled():
		return errors.New("no way to check tokens: set --tokens, or the --jwt options")
	case j.JWKS != "" && j.SecretFile != "":
		return errors.New("JWTs are checked by keys or by a secret: choose one")
	case j.JWKS != "" && (j.Issuer == "" || j.Audience == ""):
		return errors.New("keys of an issuer sign tokens for others too: name the issuer and the audience of JWTs that are meant for this api (--jwt-issuer, --jwt-audience)")
	case j.remote():
		return checkURL(j.JWKS)
	}
	return nil
}
