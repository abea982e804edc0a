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

// finishMeta finishes what a crash has left half done while the configuration of
// a stream was changed. The server replaces meta.inf and then meta.sum; killed
// between the two it finds a sum that is not that of the file, and leaves the
// stream out as if it had never been: all it holds would be gone. meta.inf is
// replaced as a whole, so that what stands there is what was asked for, and its
// sum is made again. No server has the folder open yet.
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
			return fmt.Errorf("read the configuration of a stream: %w", err)
		}
		said, err := os.ReadFile(sumFile)
		if err != nil {
			return fmt.Errorf("read the checksum of a stream: %w", err)
		}
		name := filepath.Base(folder)
		sum, err := metaSum(name, config)
		if err != nil {
			return err
		}
		if string(said) == sum || !describes(config, name) {
			continue // in order, or damaged otherwise: the server says so
		}
		if err := replace(sumFile, sum); err != nil {
			return fmt.Errorf("finish the configuration of stream %s: %w", name, err)
		}
		log.Warn("a change of a stream's configuration was interrupted, and is finished now", "stream", name, "folder", folder)
	}
	return nil
}

// cannotJoin fails when a server is to be one of several on the folder of one that
// ran alone: the others know nothing of its streams, and it would delete them half a
// minute later (nats-server #5467).
func cannotJoin(opts *server.Options) error {
	if opts.Cluster.Port == 0 {
		return nil
	}
	folder := filepath.Join(opts.StoreDir, server.JetStreamStoreDir)
	streams, err := filepath.Glob(filepath.Join(folder, "*", "streams", "*", "meta.inf"))
	if err != nil || len(streams) == 0 {
		return err
	}
	joined, err := filepath.Glob(filepath.Join(folder, "*", "_js_", "_meta_")) // what the servers have agreed on
	if err != nil || len(joined) > 0 {
		return err
	}
	return fmt.Errorf("%s holds %d streams of a NATS server that ran alone: as one of several it would delete them; give it an empty folder, and copy them by sluice backup and restore (docs/clusters.md)", folder, len(streams))
}

// metaSum is the checksum of a stream's configuration as the server makes it.
func metaSum(name string, config []byte) (string, error) {
	key := sha256.Sum256([]byte(name))
	h, err := highwayhash.NewDigest64(key[:])
	if err != nil {
		return "", err
	}
	_, _ = h.Write(config) // a hash takes all
	return hex.EncodeToString(h.Sum(nil)), nil
}

// describes says whether a configuration is whole, and that of the stream.
func describes(config []byte, name string) bool {
	var c struct{ Name string }
	return json.Unmarshal(config, &c) == nil && c.Name == name
}

// replace replaces a file as a whole, durably.
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
