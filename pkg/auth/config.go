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
	JWKS          string `name:"jwks" help:"File or https URL of the keys that sign JWTs; without it, and with --jwt-issuer, the issuer is asked (OpenID Connect Discovery)."` // http only on this machine
	SecretFile    string `type:"existingfile" help:"File of the secret that signs JWTs by HS256, instead of --jwt-jwks; read again when it changes."`                          // at least 32 bytes
	Issuer        string `help:"Required iss of a JWT; any when empty, with --jwt-secret-file or --jwt-any."`
	Audience      string `help:"Required aud of a JWT; any when empty, with --jwt-secret-file or --jwt-any."`
	Any           bool   `help:"Take JWTs of --jwt-jwks although --jwt-issuer or --jwt-audience is empty: also those that were made for others."`
	ScopePrefix   string `help:"What scopes begin with in a JWT, such as sluice: for sluice:records:write; others are ignored."`
	SubjectPrefix string `default:"jwt:" zero:"nothing is put before it" help:"What is put before the sub of a JWT, so that it is none of the subjects of --tokens."`

	Leeway  time.Duration `kong:"-" default:"30s"` // how far clocks may differ
	Refresh time.Duration `kong:"-" default:"10m"` // how often keys are fetched again
}

// KeyFile is the file of the keys, if they are in one.
func (j JWT) KeyFile() string {
	if strings.Contains(j.JWKS, "://") {
		return ""
	}
	return j.JWKS
}

// KeyURL is where the keys are fetched, if they have an address.
func (j JWT) KeyURL() string { return j.JWKS[len(j.KeyFile()):] }

// enabled tells whether JWTs are accepted at all.
func (j JWT) enabled() bool { return j.sources() > 0 || j.Issuer != "" }

// discovers tells whether the issuer is asked where its keys are.
func (j JWT) discovers() bool { return j.sources() == 0 && j.Issuer != "" }

// remote tells whether keys are fetched.
func (j JWT) remote() bool { return j.KeyURL() != "" || j.discovers() }

// reserved is what subjects of the token file may not begin with.
func (j JWT) reserved() string {
	if !j.enabled() {
		return ""
	}
	return j.SubjectPrefix
}

func (j JWT) sources() (n int) {
	for _, source := range []string{j.JWKS, j.SecretFile} {
		if source != "" {
			n++
		}
	}
	return n
}

func (c Config) check() error {
	j := c.JWT
	switch {
	case c.Tokens == "" && !j.enabled():
		if j.Audience != "" {
			return errors.New("a JWT audience is set, but no keys to check JWTs with")
		}
		return errors.New("no way to check tokens: set --tokens, or the --jwt options")
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
	return checkURL(j.KeyURL())
}
