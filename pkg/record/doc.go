// Package record is what moves through Sluice: workflow records, the requests
// and messages that carry them, their JSON and their columns.
//
// It imports no other package of this module; everything else imports it.
package record
