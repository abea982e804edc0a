package flow

// Format is the version of everything that is stored: the data folder, streams, buckets
// and tables. A program refuses any other one when it starts. Versions before 1 had no
// number.
const Format = 1
