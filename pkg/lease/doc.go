// Package lease decides which process works on which lane: every lane is worked on by
// one process, and those that run share the lanes evenly.
//
//	member.<instance>  "I am there", renewed every two seconds
//	lane.<n>           "I work on it", the same
//
// Both are entries of a NATS key-value bucket that drops what is not renewed. What
// a process holds it keeps; one that has more than its share gives a lane up, and
// one that has fewer takes one that is free (balance.go). A crash leaves entries
// that run out.
package lease
