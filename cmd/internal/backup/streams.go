package backup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// JetStream's own snapshots are what keeps the sequence, the time and the headers of
// every message, and what was deleted among them: see the API of the NATS server,
// $JS.API.STREAM.SNAPSHOT and RESTORE.
const (
	snapshotSubject = "$JS.API.STREAM.SNAPSHOT."
	restoreSubject  = "$JS.API.STREAM.RESTORE."

	snapshotChunk  = 512 << 10        // bytes of one message
	snapshotWindow = 8 << 20          // bytes on their way
	chunkTime      = 30 * time.Second // for one of them
	restoreTime    = 30 * time.Minute // for the server to take a stream into use
)

// state is what a stream holds.
type state struct {
	First    uint64 `json:"first_seq"`
	Last     uint64 `json:"last_seq"`
	Messages uint64 `json:"messages"`
	Deleted  int    `json:"num_deleted"`
	Bytes    uint64 `json:"bytes"`
}

// same says whether two states are of the same messages.
func (s state) same(other state) bool {
	s.Bytes, other.Bytes = 0, 0
	return s == other
}

func stateOf(info *jetstream.StreamInfo) state {
	s := info.State
	return state{s.FirstSeq, s.LastSeq, s.Msgs, s.NumDeleted, s.Bytes}
}

// apiError is what JetStream answers instead.
type apiError struct {
	Code        int    `json:"err_code"`
	Description string `json:"description"`
}

func (e *apiError) err() error {
	if e == nil {
		return nil
	}
	return fmt.Errorf("%s (%d)", e.Description, e.Code)
}

// snapshot writes a stream as it is now, consumers left out, and returns its
// configuration and what it held when the snapshot began: of older servers it may hold
// more.
func snapshot(ctx context.Context, nc *nats.Conn, name string, to io.Writer) (config json.RawMessage, held state, err error) {
	inbox := nc.NewInbox()
	chunks, err := nc.SubscribeSync(inbox)
	if err != nil {
		return nil, held, fmt.Errorf("copy stream %s: %w", name, err)
	}
	defer func() { err = errors.Join(err, chunks.Unsubscribe()) }()
	request, err := json.Marshal(map[string]any{
		"deliver_subject": inbox, "no_consumers": true, "chunk_size": snapshotChunk, "window_size": snapshotWindow,
	})
	if err != nil {
		return nil, held, err
	}
	var answer struct {
		Config json.RawMessage `json:"config"`
		State  state           `json:"state"`
		Error  *apiError       `json:"error"`
	}
	if err := ask(ctx, nc, snapshotSubject+name, request, chunkTime, &answer); err != nil {
		return nil, held, fmt.Errorf("copy stream %s: %w", name, err)
	}
	if answer.Error != nil {
		return nil, held, fmt.Errorf("copy stream %s: %w", name, answer.Error.err())
	}
	for {
		waiting, cancel := context.WithTimeout(ctx, chunkTime)
		chunk, err := chunks.NextMsgWithContext(waiting)
		cancel()
		if err != nil {
			return nil, held, fmt.Errorf("copy stream %s: wait for the next piece: %w", name, err)
		}
		if len(chunk.Data) == 0 {
			if status := chunk.Header.Get("Status"); status != "" && status != "204" {
				return nil, held, fmt.Errorf("copy stream %s: NATS gave it up: %s %s", name, status, chunk.Header.Get("Description"))
			}
			return answer.Config, answer.State, nil
		}
		if _, err := to.Write(chunk.Data); err != nil {
			return nil, held, fmt.Errorf("copy stream %s: %w", name, err)
		}
		if chunk.Reply == "" { // the last one
			continue
		}
		if err := chunk.Respond(nil); err != nil {
			return nil, held, fmt.Errorf("copy stream %s: %w", name, err)
		}
	}
}

// restoreStream makes a stream of what snapshot has written. When it fails, a part of
// the stream may be there.
func restoreStream(ctx context.Context, nc *nats.Conn, name string, config json.RawMessage, held state, from io.Reader) error {
	request, err := json.Marshal(map[string]any{"config": config, "state": held})
	if err != nil {
		return err
	}
	var begun struct {
		Deliver string    `json:"deliver_subject"`
		Error   *apiError `json:"error"`
	}
	if err := ask(ctx, nc, restoreSubject+name, request, chunkTime, &begun); err != nil {
		return fmt.Errorf("restore stream %s: %w", name, err)
	}
	if begun.Error != nil {
		return fmt.Errorf("restore stream %s: %w", name, begun.Error.err())
	}
	buffer := make([]byte, snapshotChunk)
	for end := false; !end; {
		n, err := io.ReadFull(from, buffer)
		if end = errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF); err != nil && !end {
			return fmt.Errorf("restore stream %s: %w", name, err)
		}
		if n == 0 {
			break
		}
		var answer struct {
			Error *apiError `json:"error"`
		}
		if err := ask(ctx, nc, begun.Deliver, buffer[:n], chunkTime, &answer); err != nil {
			return fmt.Errorf("restore stream %s: %w", name, err)
		}
		if answer.Error != nil {
			return fmt.Errorf("restore stream %s: %w", name, answer.Error.err())
		}
	}
	var made struct {
		Error *apiError `json:"error"`
	}
	if err := ask(ctx, nc, begun.Deliver, nil, restoreTime, &made); err != nil {
		return fmt.Errorf("restore stream %s: %w", name, err)
	}
	if made.Error != nil {
		return fmt.Errorf("restore stream %s: %w", name, made.Error.err())
	}
	return nil
}

// ask sends a request and reads the answer, which may be empty.
func ask(ctx context.Context, nc *nats.Conn, subject string, request []byte, limit time.Duration, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	msg, err := nc.RequestWithContext(ctx, subject, request)
	if err != nil || len(msg.Data) == 0 {
		return err
	}
	return json.Unmarshal(msg.Data, answer)
}

// with changes settings of a stream's configuration.
func with(config json.RawMessage, changes map[string]any) (json.RawMessage, error) {
	var all map[string]any
	if err := json.Unmarshal(config, &all); err != nil {
		return nil, err
	}
	for name, value := range changes {
		if value == nil {
			delete(all, name)
		} else {
			all[name] = value
		}
	}
	return json.Marshal(all)
}
