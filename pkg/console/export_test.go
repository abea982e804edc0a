package console

import "sluice/pkg/record"

// Scoped is the condition of a session of such a token.
func Scoped(who record.Identity, column string) (string, []any) {
	return (&session{identity: who}).scoped(column)
}

// What pages of people who act, and of tables, are made with.
var (
	_ = (*Server).act
	_ = each[int]
)
