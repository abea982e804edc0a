package state

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"sluice/pkg/change"
	"sluice/pkg/flow"
)

// Audits is where it is written down who changed what. *warehouse.DB is the
// real one. InsertChanges is durable once it returns nil, and idempotent per
// token as long as the rows are the same.
type Audits interface {
	InsertChanges(ctx context.Context, token string, rows []change.Audit) error
}

// Auditor writes down the changes of the stream. It knows nothing of how they
// were applied: what is written down was accepted, and one that could not be
// applied is among the dead letters, too.
type Auditor struct{ audits Audits }

// NewAuditor makes an Auditor.
func NewAuditor(audits Audits) *Auditor { return &Auditor{audits: audits} }

// WriteDown writes down the changes that messages of lane 0 hold, and passes over
// what is no change. It is idempotent for the same messages.
func (a *Auditor) WriteDown(ctx context.Context, messages []flow.Message) error {
	rows := make([]change.Audit, 0, len(messages))
	for _, m := range messages {
		if c, err := read(m); err == nil {
			rows = append(rows, c.Audit(m.Seq))
		}
	}
	if len(rows) == 0 {
		return nil
	}
	if err := a.audits.InsertChanges(ctx, token(messages), rows); err != nil {
		return fmt.Errorf("write down changes: %w", err)
	}
	return nil
}

// token names the messages: the same for the same ones.
func token(messages []flow.Message) string {
	hash := sha256.New()
	for _, m := range messages {
		sum := sha256.Sum256(m.Body)
		hash.Write(sum[:])
	}
	first, last := messages[0].Seq, messages[len(messages)-1].Seq
	return fmt.Sprintf("changes:%d-%d:%s", first, last, hex.EncodeToString(hash.Sum(nil)[:16]))
}
