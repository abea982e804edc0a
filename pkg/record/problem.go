package record

import "fmt"

// Problem is one thing wrong with a posted body. It never carries a submitted
// value.
type Problem struct {
	Index   int    `json:"index"`   // of the record in the request; -1 for the body as a whole
	Pointer string `json:"pointer"` // JSON pointer as a URI fragment, such as #/3/value/key
	Code    string `json:"code"`    // stable, machine-readable
	Detail  string `json:"detail"`  // a sentence for people
}

func (p Problem) Error() string { return fmt.Sprintf("%s: %s", p.Pointer, p.Detail) }
