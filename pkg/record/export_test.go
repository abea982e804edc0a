package record

// NoMask masks nothing: what is parsed under it stays as it is.
var NoMask = &Mask{}
