// Package lease assigns lanes to processes: each lane to one process, evenly shared.
//
//	member.<instance>  the instance runs; renewed every two seconds
//	lane.<n>           the instance that holds the lane; renewed likewise
//
// Both are entries of a NATS key-value bucket with a TTL. A process keeps what it holds;
// above its share it releases a lane, below it takes a free one (balance.go). After a crash
// its entries expire.
package lease
