package run

var NewLogger = newLogger
