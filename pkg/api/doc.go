// Package api is the HTTP API for records, users, and dataset fields.
//
// Life of a post:
//
//	routes.go   authenticate, authorize, limit the rate       401 403 429
//	body.go     acquire memory for the body (package budget)  429
//	            read it, inflate it (inflate.go)              400 408 413 415
//	records.go  split and check the records (package record)  400 413 422
//	records.go  publish and wait until they are durable       413 422 429 503
//	records.go  {"status":"OK"}
//
// Every failure is a row of the table in errors.go and answered from there. Requests share
// only counters, rate limits, and buffers.
package api
