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

// The files of a secrets folder, one line each, made once: a reader of them may be
// the user they name.
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

// MakeSecrets makes the folder and those of the files that are missing. What is
// there stays, so a crash in between is mended by the next start.
func MakeSecrets(folder string, names ...string) error {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return fmt.Errorf("make the folder of secrets: %w", err)
	}
	for _, name := range names {
		file := filepath.Join(folder, name)
		if _, err := os.Stat(file); err == nil {
			continue
		}
		secret := make([]byte, 32)
		rand.Read(secret) // never fails
		// Two programs may start at once: the first link stands, whole.
		part := fmt.Sprintf("%s.%d", file, os.Getpid())
		if err := os.WriteFile(part, []byte(hex.EncodeToString(secret)+"\n"), 0o600); err != nil {
			return fmt.Errorf("make a secret: %w", err)
		}
		err := os.Link(part, file)
		if err = errors.Join(err, os.Remove(part)); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("make a secret: %w", err)
		}
	}
	return nil
}

// ReadSecret reads a file of a secrets folder.
func ReadSecret(folder, name string) (string, error) { return dial.Line(filepath.Join(folder, name)) }

// Operator says where an operator's command finds the passwords of its users.
type Operator struct {
	Data string `default:"./data" help:"Folder of sluice up: with its secrets/ the command logs in at servers of this machine, unless the addresses given name a user of their own."`
}

// secret is the password for servers at these hosts: "" if there is none, or if
// one of them is another machine, which must not get it.
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

// LogIn is how to reach NATS as its operator.
func (o Operator) LogIn(n NATS) (NATS, error) { return o.logInAs("operator", SecretNATSOperator, n) }

// logInAs is how to reach NATS as one of its users.
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

// Warehouse is how to reach ClickHouse as its admin.
func (o Operator) Warehouse(c ClickHouse) (warehouse.Config, error) {
	return o.warehouseAs("admin", SecretAdmin, c)
}

// Analyst is how to reach ClickHouse as its analyst, who only reads.
func (o Operator) Analyst(c ClickHouse) (warehouse.Config, error) {
	return o.warehouseAs("analyst", SecretAnalyst, c)
}

// Console is how the console reaches ClickHouse: it reads as the analyst does, with
// slots and memory of its own.
func (o Operator) Console(c ClickHouse) (warehouse.Config, error) {
	return o.warehouseAs("console", SecretConsole, c)
}

// warehouseAs is how to reach ClickHouse as one of its users.
func (o Operator) warehouseAs(user, name string, c ClickHouse) (warehouse.Config, error) {
	cfg, err := c.Config()
	if err != nil {
		return cfg, err
	}
	address, err := url.Parse(cfg.URL)
	if err != nil {
		return cfg, nil // The driver says what is wrong with it, without the password.
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

// HTTP is the address of ClickHouse's HTTP, with its admin before it.
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

// onThisMachine tells whether a host, with or without a port, is this machine.
func onThisMachine(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
