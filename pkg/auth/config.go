package auth

import (
	"errors"
	"strings"
	"time"
)

// Config configures the accepted tokens. Tokens or JWT is required.
type Config struct {
	Tokens string        `type:"existingfile" help:"YAML file of static tokens; reloaded on change. See sluice token."`
	Reload time.Duration `kong:"-" default:"1s"` // how often the file is checked
	JWT    JWT           `embed:"" prefix:"jwt-"`
}

// JWT configures JSON Web Tokens, verified by the keys of a file, a URL, or the issuer, or
// by a shared secret. A JWT needs exp; with public keys also iss and aud, since such keys
// sign for other services too. Zero: no JWTs.
type JWT struct {
	JWKS          string `name:"jwks" help:"File or https URL of the keys that sign JWTs; needs --jwt-issuer and --jwt-audience."`            // http only on this machine
	SecretFile    string `type:"existingfile" help:"File of the secret that signs JWTs by HS256, instead of --jwt-jwks; reloaded on change."` // at least 32 bytes
	Issuer        string `help:"Required iss of a JWT; any when empty, with --jwt-secret-file."`
	Audience      string `help:"Required aud of a JWT; any when empty, with --jwt-secret-file."`
	ScopePrefix   string `help:"Prefix of scopes in a JWT, such as sluice: for sluice:records:write; other scopes are ignored."`
	SubjectPrefix string `default:"jwt:" zero:"no prefix" help:"Prefix added to the sub of a JWT, which keeps it apart from the subjects of --tokens."`

	Leeway  time.Duration `kong:"-" default:"30s"` // allowed clock difference
	Refresh time.Duration `kong:"-" default:"10m"` // how often keys are refetched
}

// remote reports whether keys are fetched.
func (j JWT) remote() bool { return strings.Contains(j.JWKS, "://") }

func (j JWT) enabled() bool { return j.JWKS != "" || j.SecretFile != "" }

// reserved is a prefix that subjects of the token file must not have.
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
		return errors.New("a JWT issuer or audience is set without keys: set --jwt-jwks or --jwt-secret-file")
	case c.Tokens == "" && !j.enabled():
		return errors.New("tokens cannot be checked: set --tokens or the --jwt options")
	case j.JWKS != "" && j.SecretFile != "":
		return errors.New("both JWT keys and a JWT secret are set: set one")
	case j.JWKS != "" && (j.Issuer == "" || j.Audience == ""):
		return errors.New("JWT keys sign for other services too: set --jwt-issuer and --jwt-audience")
	case j.remote():
		return checkURL(j.JWKS)
	}
	return nil
}
