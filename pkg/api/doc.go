// Package api is how records, users and dataset fields come in: the HTTP
// surface of Sluice.
//
// Life of a post:
//
//	routes.go   who is it, may they, are they too fast        401 403 429
//	body.go     is there memory for the body (package budget) 429
//	            read it in time, inflate it (inflate.go)      400 408 413 415
//	records.go  split and check the records (package record)  400 413 422
//	records.go  publish and wait until they are durable       413 422 429 503
//	records.go  {"status":"OK"}
//
// Whatever goes wrong on the way is a row of the table in errors.go, and answered
// from there. Nothing is kept between requests but counters, rate
// limits and buffers for reuse.
package api
