// Package api is how records, users and dataset fields come in: the HTTP
// surface of Sluice.
//
// Life of a post:
//
//	routes.go   who is it, may they, are they too fast        401 403 429
//	budget.go   is there memory for the body                  429
//	body.go     read it in time, inflate it within bounds     400 408 413 415
//	records.go  split and check the records (package record)  400 413 422
//	records.go  publish and wait until they are durable       413 422 429 503
//	records.go  {"status":"OK"}
//
// Whatever goes wrong on the way is a row of the table in errors.go and is
// answered by problem.go. Nothing is kept between requests but counters, rate
// limits and buffers for reuse.
package api
