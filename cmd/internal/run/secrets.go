package run

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"sluice/pkg/dial"
	"sluice/pkg/warehouse"
)

// The files of a secrets folder, one password each. A reader of a file can log in as the
// user in its name.
const (
	SecretAdmin        = "clickhouse-admin"
	SecretIngester     = "clickhouse-ingester"
	SecretAnalyst      = "clickhouse-analyst"
	SecretModeller     = "clickhouse-modeller"
	SecretConsole      = "clickhouse-console"
	SecretNATSAPI      = "nats-api"
	SecretNATSIngester = "nats-ingester"
	SecretNATSOperator = "nats-operator"
	SecretNATSConsole  = "nats-console"
)

// MakeSecrets creates the folder and missing files. Existing ones stay, so the next start
// completes a run that crashed in between.
func MakeSecrets(folder string, names ...string) error {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return fmt.Errorf("create the secrets folder: %w", err)
	}
	for _, name := range names {
		file := filepath.Join(folder, name)
		if _, err := os.Stat(file); err == nil {
			continue
		}
		secret := make([]byte, 32)
		rand.Read(secret) // never fails
		// Two programs may start concurrently: the first link wins, and its file is complete.
		part := fmt.Sprintf("%s.%d", file, os.Getpid())
		if err := os.WriteFile(part, []byte(hex.EncodeToString(secret)+"\n"), 0o600); err != nil {
			return fmt.Errorf("create a secret: %w", err)
		}
		err := os.Link(part, file)
		if err = errors.Join(err, os.Remove(part)); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("create a secret: %w", err)
		}
	}
	return nil
}

func ReadSecret(folder, name string) (string, error) { return dial.Line(filepath.Join(folder, name)) }

// Operator has the option of an operator's command to find its passwords.
type Operator struct {
	Data string `default:"./data" help:"Data folder of sluice up: its addresses are the defaults, and its passwords are used for servers on this machine, unless an address names a user."`
}

// secret is the password for servers at these hosts: "" if there is none. Other machines
// must not get it.
func (o Operator) secret(name string, hosts []string) (string, error) {
	for _, host := range hosts {
		if !onThisMachine(host) {
			return "", nil
		}
	}
	secret, err := ReadSecret(filepath.Join(o.Data, "secrets"), name)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("--data: %w", err)
	}
	return secret, nil
}

// LogIn adds the user operator and its password to the options of NATS.
func (o Operator) LogIn(n NATS) (NATS, error) { return o.logInAs("operator", SecretNATSOperator, n) }

func (o Operator) logInAs(user, name string, n NATS) (NATS, error) {
	if n.Credentials != "" || n.User != "" || strings.Contains(n.URL, "@") {
		return n, nil
	}
	var hosts []string
	for server := range strings.SplitSeq(n.URL, ",") {
		if address, err := url.Parse(strings.TrimSpace(server)); err == nil && address.Host != "" {
			hosts = append(hosts, address.Host)
		} else {
			hosts = append(hosts, server)
		}
	}
	secret, err := o.secret(name, hosts)
	if secret != "" {
		n.User, n.Password = user, secret
	}
	return n, err
}

// Warehouse is the connection to ClickHouse as the user admin.
func (o Operator) Warehouse(c ClickHouse) (warehouse.Config, error) {
	return o.warehouseAs("admin", SecretAdmin, c)
}

// Analyst is the connection to ClickHouse as the read-only user analyst.
func (o Operator) Analyst(c ClickHouse) (warehouse.Config, error) {
	return o.warehouseAs("analyst", SecretAnalyst, c)
}

// Console is the connection to ClickHouse as the user console: an analyst with slots and
// memory of its own.
func (o Operator) Console(c ClickHouse) (warehouse.Config, error) {
	return o.warehouseAs("console", SecretConsole, c)
}

func (o Operator) warehouseAs(user, name string, c ClickHouse) (warehouse.Config, error) {
	cfg, err := c.Config()
	if err != nil {
		return cfg, err
	}
	address, err := url.Parse(cfg.URL)
	if err != nil {
		return cfg, nil // the driver reports the error without the password
	}
	if _, has := address.User.Password(); has || address.User.Username() != "" && address.User.Username() != "default" || address.Query().Has("password") {
		return cfg, nil
	}
	secret, err := o.secret(name, strings.Split(address.Host, ","))
	if secret != "" {
		address.User = url.UserPassword(user, secret)
		cfg.URL = address.String()
	}
	return cfg, err
}

// HTTP is the address of ClickHouse's HTTP, with the user admin and its password.
func (o Operator) HTTP(address string) (string, error) {
	if strings.Contains(address, "@") {
		return address, nil
	}
	secret, err := o.secret(SecretAdmin, []string{address})
	if secret != "" {
		address = url.UserPassword("admin", secret).String() + "@" + address
	}
	return address, err
}

func onThisMachine(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
