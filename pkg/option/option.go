// Package option fills a Config from the tags of its fields, which the command
// line reads too: a default, its unit and what it means stand in one place.
//
//	BlockAge time.Duration `default:"500ms" help:"Close a block so long after its first record."`
//
// A field that is no flag has kong:"-" before its default. One whose zero value says
// something has zero:"…" with what it says, such as an address that is off when empty:
// only the command line gives it its default.
package option

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// Defaults gives the fields of a Config that are not set the default of their
// tag, those of embedded structs too. Not set are zero, and whole numbers and
// durations below it. A tag that cannot be read is a mistake in the program.
func Defaults[C any](cfg *C) { fill(reflect.ValueOf(cfg).Elem()) }

func fill(c reflect.Value) {
	for i := range c.NumField() {
		field, v := c.Type().Field(i), c.Field(i)
		_, embedded := field.Tag.Lookup("embed")
		if field.Anonymous || embedded {
			fill(v)
			continue
		}
		text, is := field.Tag.Lookup("default")
		_, says := field.Tag.Lookup("zero")
		if !is || says || !v.IsZero() && !(v.CanInt() && v.Int() < 0) {
			continue
		}
		if err := set(v, text); err != nil {
			panic(fmt.Sprintf("default of %s.%s: %v", c.Type(), field.Name, err))
		}
	}
}

func set(v reflect.Value, text string) error {
	switch {
	case v.Type() == reflect.TypeFor[time.Duration]():
		d, err := time.ParseDuration(text)
		v.SetInt(int64(d))
		return err
	case v.Kind() == reflect.String:
		v.SetString(text)
		return nil
	case v.CanInt():
		n, err := strconv.ParseInt(text, 10, v.Type().Bits())
		v.SetInt(n)
		return err
	case v.CanFloat():
		f, err := strconv.ParseFloat(text, v.Type().Bits())
		v.SetFloat(f)
		return err
	case v.Type() == reflect.TypeFor[[]string]():
		v.Set(reflect.ValueOf(strings.Split(text, ",")))
		return nil
	}
	return fmt.Errorf("fields of type %s have none", v.Type())
}
