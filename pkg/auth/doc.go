// Package auth authenticates requests: it turns an Authorization header into a flow.Caller,
// by a file of static tokens, by JSON Web Tokens, or both.
//
// The file has only the SHA-256 of a static token, which is random. It is reloaded on
// change; while it is invalid, the last valid tokens stay in force. A JWT is verified by a
// key set from a file or URL, or by one shared secret, never by both kinds.
//
// No token, part of a token, or claim reaches a log, a metric, or an error text.
package auth
