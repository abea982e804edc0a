// Package option fills a Config from the tags of its fields, which the command line reads
// too, so that default, unit, and meaning are in one place.
//
//	BlockAge time.Duration `default:"500ms" help:"Close a block this long after its first record."`
//
// A field that is not a flag has kong:"-" before its default. A zero value with a meaning has
// zero:"…" with that meaning, such as an address that is off when empty: only the command
// line applies its default.
package option

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// Defaults sets the unset fields of a Config, embedded structs included, to the defaults of
// their tags. Unset are zero values, and negative numbers and durations. An invalid tag
// panics.
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
