package change

import (
	"context"
	"encoding/json"
)

// MergePatch merges texts; an empty doc counts as absent.
func MergePatch(doc, patch json.RawMessage) (json.RawMessage, error) {
	var target any
	if len(doc) > 0 {
		var err error
		if target, err = parse(doc); err != nil {
			return nil, err
		}
	}
	p, err := parse(patch)
	if err != nil {
		return nil, err
	}
	return encode(merge(target, p))
}

// ReplaceSecrets returns the patch with its secrets replaced.
func (s *Secrets) ReplaceSecrets(ctx context.Context, patch json.RawMessage) (json.RawMessage, error) {
	object, err := parseObject(patch)
	if err != nil {
		return nil, err
	}
	secret, err := s.replace(object)
	if err != nil {
		return nil, err
	}
	replaced, err := encode(object)
	if err != nil {
		return nil, err
	}
	return s.hashAll(ctx, replaced, secret, nil)
}

// OccupySlot takes the only slot of s until release is closed.
func OccupySlot(s *Secrets, release <-chan struct{}) {
	s.once.Do(func() { s.slots = make(chan struct{}, max(s.Concurrency, 1)) })
	s.slots <- struct{}{}
	go func() {
		<-release
		<-s.slots
	}()
}
