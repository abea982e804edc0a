package stream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"sluice/pkg/broker"
	"sluice/pkg/flow"
)

// forgetPrefix and the id of a receipt are the keys of orders to forget instances.
const forgetPrefix = "forget."

// Forgets are the orders to forget instances for every reader of the log.
func (s *Stream) Forgets(ctx context.Context) (orders []flow.Forget, err error) {
	for msg, err := range s.scan(ctx, "KV_"+LaneBucket, broker.From{Subject: "$KV." + LaneBucket + "." + forgetPrefix + ">"}) {
		if err != nil {
			return nil, fmt.Errorf("read the orders to forget: %w", err)
		}
		if first(msg.Header, headerKVOperation) != "" { // deleted
			continue
		}
		var order flow.Forget
		if err := json.Unmarshal(msg.Data, &order); err != nil {
			return nil, fmt.Errorf("read the orders to forget: %s is corrupt: %w", msg.Subject, err)
		}
		orders = append(orders, order)
	}
	return orders, nil
}

// Forget makes every reader of the log skip the records of an order. It returns the last
// message of each lane that may have been read without it; after these no record of the order
// is stored. It is idempotent.
func (s *Stream) Forget(ctx context.Context, order flow.Forget) (ends map[int]uint64, err error) {
	if err := s.RestoreForget(ctx, order); err != nil {
		return nil, err
	}
	// Written. An owner with older orders loses its next compare-and-swap and reads them again.
	if err := s.Refresh(ctx); err != nil {
		return nil, err
	}
	states := NewLaneStates(s)
	for _, lane := range s.LaneNumbers() {
		_, err := states.rewrite(ctx, lane, func(state *flow.LaneState) error {
			state.Forget = order.ID
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	if err := s.Refresh(ctx); err != nil {
		return nil, err
	}
	ends = map[int]uint64{}
	for _, lane := range s.Lanes() {
		ends[lane.Number] = lane.Last
	}
	return ends, nil
}

// EndForget deletes an order once no copy of its records is left. It is idempotent.
func (s *Stream) EndForget(ctx context.Context, id string) error {
	if err := s.checkpoints.Purge(ctx, forgetPrefix+id); err != nil && !errors.Is(err, jetstream.ErrKeyNotFound) {
		return unavailable(fmt.Errorf("delete order %s to forget instances: %w", id, err), 2*time.Second)
	}
	return nil
}

// RestoreForget writes an order before any lane is read, as after a restore. It is idempotent.
func (s *Stream) RestoreForget(ctx context.Context, order flow.Forget) error {
	value, err := json.Marshal(order)
	if err != nil {
		return err
	}
	_, err = s.checkpoints.Create(ctx, forgetPrefix+order.ID, value)
	if err != nil && !errors.Is(err, jetstream.ErrKeyExists) && !isCode(err, codeWrongLastSequence, codeWrongLastSequenceR3) {
		return unavailable(fmt.Errorf("write an order to forget: %w", err), 2*time.Second)
	}
	return nil
}
