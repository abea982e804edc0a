package flow

// Forget is an order to forget process instances. Once it is in KV, every reader of the
// log skips their records. It stays as long as records and backups are kept, so that no
// rebuild or restore brings them back.
type Forget struct {
	ID       string          `json:"id"`       // of its receipt
	Before   int64           `json:"before"`   // records with a timestamp up to this, ms since 1970; later ones are kept
	Subjects []ForgetSubject `json:"subjects"` // by source

	Asked string `json:"asked,omitempty"` // instance KEY, or the name of a variable; for the receipt
	By    string `json:"by,omitempty"`    // operator's name, as given
}

// ForgetSubject is the process instances of one source to forget.
type ForgetSubject struct {
	Source string   `json:"source"`
	Keys   []string `json:"instances"` // processInstanceKey, sorted
}
