package record

import "fmt"

// NoMask masks nothing.
var NoMask = &Mask{}

// BodyColumns are the columns of bodies by type, with their numbers.
func BodyColumns() map[string][]string {
	of := map[string]string{"*record.LowCardinality": "symbols", "*record.StringColumn": "texts", "*record.NullInt64": "nullable", "*[]int64": "integers", "*[]uint8": "bytes"}
	all := map[string][]string{}
	var c Columns
	c.bind()
	for i, one := range bodyColumns {
		kind := of[fmt.Sprintf("%T", c.found.body[i])]
		all[kind] = append(all[kind], fmt.Sprint(i+1, " ", one.name))
	}
	return all
}

// Members are the members of a form, in the order of their bits.
func Members() (all []string) {
	for _, s := range specs {
		switch {
		case s.value:
			all = append(all, "value."+s.name)
		case s.name != "":
			all = append(all, s.name)
		}
	}
	return all
}
