// Package auth decides what a caller may do: it turns the Authorization header of a
// request into an Identity, by a file of static tokens, by JSON Web Tokens, or both.
//
// A static token is random and in the file only as its SHA-256; the file
// is read again whenever it changes, and a file that is broken leaves the last
// good one in force. A JWT is checked against a key set from a file or a URL,
// or against one shared secret, never against both kinds.
//
// No token, no part of one and no claim ever reaches a log, a metric or an
// error text.
package auth
