// Package snapshot copies streams by JetStream's own snapshots, which alone keep the
// sequence, the time and the headers of every message, and what was deleted among them:
// $JS.API.STREAM.SNAPSHOT and RESTORE of the NATS server. Only the operator may use them.
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
	windowBytes = 8 << 20          // on their way
	chunkTime   = 30 * time.Second // for one of them
	finishTime  = 30 * time.Minute // for the server to take a stream into use
	routeTime   = 5 * time.Second  // for the servers of a cluster to hear where a restore goes
)

// State is what a stream holds.
type State struct {
	First    uint64 `json:"first_seq"`
	Last     uint64 `json:"last_seq"`
	Messages uint64 `json:"messages"`
	Deleted  int    `json:"num_deleted"`
	Bytes    uint64 `json:"bytes"`
}

// StateOf is what a stream holds.
func StateOf(info *jetstream.StreamInfo) State {
	s := info.State
	return State{s.FirstSeq, s.LastSeq, s.Msgs, s.NumDeleted, s.Bytes}
}

// Take writes a stream as it is now, without consumers, and returns its configuration
// and what it held when the snapshot began; it may hold more.
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
				return nil, held, fmt.Errorf("NATS gave it up: %s %s", status, chunk.Header.Get("Description"))
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

// Restore makes a stream of what Take has written. When it fails, a part of the stream
// may exist.
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

// send hands a chunk to a stream that is being restored; an empty one ends it. The
// server that restores it may be another one than that of the connection, which
// hears of it a moment later: until then it does not pass the chunk on.
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

// Ask makes a request of JetStream's API that nats.go has no call for, and reads the
// answer unless that is nil.
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

// read is the error in an answer of JetStream; without one the answer is read.
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

// Metadata is that of a copy. Servers say of a restored stream that it was created now; its
// own metadata says when it was, if that is not empty, as the lane states name it.
func Metadata(was map[string]string, created string) map[string]string {
	metadata := map[string]string{}
	for key, value := range was {
		if !strings.HasPrefix(key, "_nats.") { // the server's own
			metadata[key] = value
		}
	}
	if created != "" {
		metadata[stream.CreatedKey] = created
	}
	return metadata
}
