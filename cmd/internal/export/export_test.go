package export

// DeclareEventTypes makes a database with types of events and nothing else.
func DeclareEventTypes(file string, names ...string) error {
	o, err := newSQLite(file)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := o.eventType(name, texts("resource")); err != nil {
			return err
		}
	}
	return o.close()
}
