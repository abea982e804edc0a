package flow

// Forget is an order to forget process instances: from the moment it is in the KV
// store every reader of the log skips their records. It stays there for as long as
// records and backups are kept, so that no rebuild and no restore brings them back.
type Forget struct {
	ID       string          `json:"id"`       // of its receipt
	Before   int64           `json:"before"`   // records with a timestamp up to this one, ms since 1970; later ones are new
	Subjects []ForgetSubject `json:"subjects"` // by source

	Asked string `json:"asked,omitempty"` // instance KEY, or the name of a variable; for the receipt
	By    string `json:"by,omitempty"`    // name of the person who asked, as given
}

// ForgetSubject is the process instances of one source that are to be forgotten.
type ForgetSubject struct {
	Source string   `json:"source"`
	Keys   []string `json:"instances"` // processInstanceKey, sorted
}
