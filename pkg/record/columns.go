package record

// Columns holds decoded records, one typed column per field.
type Columns struct{}
