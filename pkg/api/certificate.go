package api

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// certificate is the TLS certificate in force. It looks at its files at most
// once a second, when somebody connects, and keeps the last good pair while
// they are broken or being replaced.
type certificate struct {
	certFile, keyFile string
	log               *slog.Logger

	mu      sync.Mutex
	current *tls.Certificate
	stamp   [2]stamp // of the files as they were read
	looked  time.Time
}

// stamp tells one version of a file from another.
type stamp struct {
	modified time.Time
	size     int64
}

func loadCertificate(certFile, keyFile string, log *slog.Logger) (*certificate, error) {
	c := &certificate{certFile: certFile, keyFile: keyFile, log: log}
	if err := c.reload(); err != nil {
		return nil, fmt.Errorf("TLS certificate: %w", err)
	}
	return c, nil
}

func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.looked) >= time.Second {
		if err := c.reload(); err != nil {
			c.log.Error("TLS certificate cannot be used, the one before stays in force", "error", err)
		}
	}
	return c.current, nil
}

// reload takes the files over if they changed and belong together. What is
// broken is tried, and complained about, once per version.
func (c *certificate) reload() error {
	c.looked = time.Now()
	var now [2]stamp
	for i, path := range []string{c.certFile, c.keyFile} {
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		now[i] = stamp{info.ModTime(), info.Size()}
	}
	if now == c.stamp {
		return nil
	}
	c.stamp = now
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return err
	}
	if c.current != nil {
		c.log.Info("TLS certificate was read again", "path", c.certFile)
	}
	c.current = &pair
	return nil
}
