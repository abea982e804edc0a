// Package snapshot copies streams by JetStream snapshots ($JS.API.STREAM.SNAPSHOT and
// RESTORE). Only these preserve sequence, time and headers of every message, and deleted
// sequences. Only the operator has the permission.
package snapshot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sluice/pkg/stream"
)

const (
	chunkBytes  = 512 << 10        // of one message
	windowBytes = 8 << 20          // in flight
	chunkTime   = 30 * time.Second // per chunk
	finishTime  = 30 * time.Minute // for the server to activate a restored stream
	routeTime   = 5 * time.Second  // for a restore's subject to propagate in a cluster
)

// State is the state of a stream.
type State struct {
	First    uint64 `json:"first_seq"`
	Last     uint64 `json:"last_seq"`
	Messages uint64 `json:"messages"`
	Deleted  int    `json:"num_deleted"`
	Bytes    uint64 `json:"bytes"`
}

func StateOf(info *jetstream.StreamInfo) State {
	s := info.State
	return State{s.FirstSeq, s.LastSeq, s.Msgs, s.NumDeleted, s.Bytes}
}

// Take writes a snapshot of a stream, without consumers, and returns its configuration
// and its state at the start; the snapshot may contain later messages.
func Take(ctx context.Context, nc *nats.Conn, name string, to io.Writer) (config json.RawMessage, held State, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("copy stream %s: %w", name, err)
		}
	}()
	inbox := nc.NewInbox()
	chunks, err := nc.SubscribeSync(inbox)
	if err != nil {
		return nil, held, err
	}
	defer func() { err = errors.Join(err, chunks.Unsubscribe()) }()
	var begun struct {
		Config json.RawMessage `json:"config"`
		State  State           `json:"state"`
	}
	request := map[string]any{"deliver_subject": inbox, "no_consumers": true, "chunk_size": chunkBytes, "window_size": windowBytes}
	if err := Ask(ctx, nc, "$JS.API.STREAM.SNAPSHOT."+name, request, &begun); err != nil {
		return nil, held, err
	}
	for {
		waiting, cancel := context.WithTimeout(ctx, chunkTime)
		chunk, err := chunks.NextMsgWithContext(waiting)
		cancel()
		if err != nil {
			return nil, held, fmt.Errorf("wait for the next chunk: %w", err)
		}
		if len(chunk.Data) == 0 {
			if status := chunk.Header.Get("Status"); status != "" && status != "204" {
				return nil, held, fmt.Errorf("NATS aborted the snapshot: %s %s", status, chunk.Header.Get("Description"))
			}
			return begun.Config, begun.State, nil
		}
		if _, err := to.Write(chunk.Data); err != nil {
			return nil, held, err
		}
		if chunk.Reply == "" { // the last one
			continue
		}
		if err := chunk.Respond(nil); err != nil {
			return nil, held, err
		}
	}
}

// Restore restores a stream from a snapshot of Take. After an error the stream may exist
// in part.
func Restore(ctx context.Context, nc *nats.Conn, name string, config any, held State, from io.Reader) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("restore stream %s: %w", name, err)
		}
	}()
	var begun struct {
		Deliver string `json:"deliver_subject"`
	}
	if err := Ask(ctx, nc, "$JS.API.STREAM.RESTORE."+name, map[string]any{"config": config, "state": held}, &begun); err != nil {
		return err
	}
	buffer := make([]byte, chunkBytes)
	for end := false; !end; {
		n, err := io.ReadFull(from, buffer)
		if end = errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF); err != nil && !end {
			return err
		}
		if n > 0 {
			if err := send(ctx, nc, begun.Deliver, buffer[:n], chunkTime); err != nil {
				return err
			}
		}
	}
	return send(ctx, nc, begun.Deliver, nil, finishTime)
}

// send sends a chunk of a restore; an empty one ends it. If another server of the cluster
// restores the stream, its subject takes a moment to reach the connected server: until
// then there are no responders.
func send(ctx context.Context, nc *nats.Conn, to string, chunk []byte, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for begun := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		answer, err := nc.RequestWithContext(ctx, to, chunk)
		if errors.Is(err, nats.ErrNoResponders) && time.Since(begun) < routeTime {
			continue
		}
		if err != nil || len(answer.Data) == 0 {
			return err
		}
		return read(answer.Data, nil)
	}
}

// Ask makes a request of JetStream's API that nats.go does not offer, and decodes the
// answer unless it is nil.
func Ask(ctx context.Context, nc *nats.Conn, subject string, request, answer any) error {
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, chunkTime)
	defer cancel()
	msg, err := nc.RequestWithContext(ctx, subject, body)
	if err != nil {
		return err
	}
	return read(msg.Data, answer)
}

// read returns the error in a JetStream answer, or decodes the answer.
func read(data []byte, answer any) error {
	var failed struct {
		Error *jetstream.APIError `json:"error"`
	}
	if err := json.Unmarshal(data, &failed); err != nil {
		return err
	}
	if failed.Error != nil {
		return failed.Error
	}
	if answer == nil {
		return nil
	}
	return json.Unmarshal(data, answer)
}

// Metadata is the metadata of a copy. A restored stream gets a new creation time; created,
// unless empty, keeps the former one, which the lane states name.
func Metadata(was map[string]string, created string) map[string]string {
	metadata := map[string]string{}
	for key, value := range was {
		if !strings.HasPrefix(key, "_nats.") { // set by the server
			metadata[key] = value
		}
	}
	if created != "" {
		metadata[stream.CreatedKey] = created
	}
	return metadata
}
