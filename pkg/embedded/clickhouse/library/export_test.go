package library

func Codes() map[string]int { return codes }
