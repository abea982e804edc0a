package stream

// Origin is what names a dead letter in its subjects.
func Origin(d DeadLetter) string { return d.origin }
