package nats

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/minio/highwayhash"
	"github.com/nats-io/nats-server/v2/server"
)

// finishMeta repairs a stream whose configuration change a crash interrupted. The server
// replaces meta.inf and then meta.sum; killed between the two, it finds a wrong checksum
// and ignores the stream with all its messages. meta.inf is replaced atomically, so it is
// valid, and its checksum is recomputed. It runs before a server opens the folder.
func finishMeta(data string, log *slog.Logger) error {
	found, err := filepath.Glob(filepath.Join(data, "jetstream", "*", "streams", "*", "meta.sum"))
	if err != nil {
		return err
	}
	for _, sumFile := range found {
		folder := filepath.Dir(sumFile)
		config, err := os.ReadFile(filepath.Join(folder, "meta.inf"))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read a stream configuration: %w", err)
		}
		said, err := os.ReadFile(sumFile)
		if err != nil {
			return fmt.Errorf("read a stream checksum: %w", err)
		}
		name := filepath.Base(folder)
		sum, err := metaSum(name, config)
		if err != nil {
			return err
		}
		if string(said) == sum || !describes(config, name) {
			continue // intact, or corrupt otherwise: the server reports it
		}
		if err := replace(sumFile, sum); err != nil {
			return fmt.Errorf("repair the configuration of stream %s: %w", name, err)
		}
		log.Warn("completed an interrupted configuration change of a stream", "stream", name, "folder", folder)
	}
	return nil
}

// cannotJoin refuses to start a cluster member on the folder of a standalone server: the
// cluster has no metadata of its streams, so the server would delete them half a minute
// later (nats-server #5467).
func cannotJoin(opts *server.Options) error {
	if opts.Cluster.Port == 0 {
		return nil
	}
	folder := filepath.Join(opts.StoreDir, server.JetStreamStoreDir)
	streams, err := filepath.Glob(filepath.Join(folder, "*", "streams", "*", "meta.inf"))
	if err != nil || len(streams) == 0 {
		return err
	}
	joined, err := filepath.Glob(filepath.Join(folder, "*", "_js_", "_meta_")) // the metadata of the cluster
	if err != nil || len(joined) > 0 {
		return err
	}
	return fmt.Errorf("%s has %d streams of a standalone NATS server, which a cluster member would delete: use an empty folder and sluice backup and restore (docs/clusters.md)", folder, len(streams))
}

// metaSum is the checksum of a stream's configuration as the server computes it.
func metaSum(name string, config []byte) (string, error) {
	key := sha256.Sum256([]byte(name))
	h, err := highwayhash.NewDigest64(key[:])
	if err != nil {
		return "", err
	}
	_, _ = h.Write(config) // never fails
	return hex.EncodeToString(h.Sum(nil)), nil
}

// describes reports whether a configuration is complete and of the stream.
func describes(config []byte, name string) bool {
	var c struct{ Name string }
	return json.Unmarshal(config, &c) == nil && c.Name == name
}

// replace replaces a file atomically and durably.
func replace(file, content string) error {
	next := file + ".tmp"
	f, err := os.OpenFile(next, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o640)
	if err != nil {
		return err
	}
	_, err = f.WriteString(content)
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(next, file); err != nil {
		return err
	}
	folder, err := os.Open(filepath.Dir(file))
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}
