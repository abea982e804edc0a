package auth

import (
	"context"
	"time"
)

// Follow reloads the files now, as Run does every Config.Reload.
func (a *Authenticator) Follow() { a.follow() }

// Refresh fetches the keys now, as Run does every JWT.Refresh.
func (a *Authenticator) Refresh(ctx context.Context) { a.jwt.refresh(ctx) }

// AskedLongAgo lets the next unknown key id query the key server again.
func (a *Authenticator) AskedLongAgo() {
	a.jwt.mu.Lock()
	defer a.jwt.mu.Unlock()
	a.jwt.asked = time.Time{}
}
