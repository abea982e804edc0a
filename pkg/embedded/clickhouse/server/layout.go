package server

import (
	"strconv"
	"strings"

	"sluice/pkg/embedded/clickhouse/library"
)

// layout is the layout of a type's values in a native block, which locates the end of a
// block. A column is a prefix followed by data.
type layout interface {
	prefix(b *blockReader) error
	data(b *blockReader, rows uint64) error
}

type (
	fixed          uint64              // bytes per value
	text           struct{}            // length, bytes
	nullable       struct{ of layout } // a byte per value, then the values
	array          struct{ of layout } // an end offset per value, then the elements
	tuple          struct{ of []layout }
	lowCardinality struct{ of layout }   // a dictionary, then an index per value
	variant        struct{ of []layout } // a type byte per value, then the values of each type
)

// sizes are the types whose values all have the same size, in bytes.
var sizes = map[string]fixed{
	"Nothing": 1, "Bool": 1, "Int8": 1, "UInt8": 1, "Enum8": 1,
	"Int16": 2, "UInt16": 2, "Enum16": 2, "Date": 2, "BFloat16": 2,
	"Int32": 4, "UInt32": 4, "Float32": 4, "Date32": 4, "DateTime": 4, "DateTime32": 4, "IPv4": 4, "Decimal32": 4, "Time": 4,
	"Int64": 8, "UInt64": 8, "Float64": 8, "DateTime64": 8, "Decimal64": 8, "Time64": 8,
	"Int128": 16, "UInt128": 16, "UUID": 16, "IPv6": 16, "Decimal128": 16,
	"Int256": 32, "UInt256": 32, "Decimal256": 32,
}

// shorthands are aliases of types.
var shorthands = map[string]string{
	"Point":           "Tuple(Float64, Float64)",
	"Ring":            "Array(Point)",
	"LineString":      "Array(Point)",
	"MultiLineString": "Array(LineString)",
	"Polygon":         "Array(Ring)",
	"MultiPolygon":    "Array(Polygon)",
}

const maxTypeDepth = 32

// parseLayout parses a type in ClickHouse's notation. Types without a simple layout (JSON,
// Dynamic, AggregateFunction) are an Exception.
func parseLayout(name string) (layout, error) { return parseLayoutAt(name, maxTypeDepth) }

func parseLayoutAt(name string, depth int) (layout, error) {
	name = strings.TrimSpace(name)
	family, args, ok := splitType(name)
	if !ok || depth == 0 {
		return nil, library.Exceptionf("INCORRECT_DATA", "Type %.100q is not supported", name)
	}
	if size, ok := sizes[family]; ok {
		return size, nil
	}
	if strings.HasPrefix(family, "Interval") {
		return fixed(8), nil
	}
	if long, ok := shorthands[family]; ok {
		return parseLayoutAt(long, depth-1)
	}
	of := func(index int) (layout, error) {
		if index >= len(args) {
			return nil, library.Exceptionf("INCORRECT_DATA", "Type %.100q lacks a parameter", name)
		}
		return parseLayoutAt(args[index], depth-1)
	}
	switch family {
	case "String":
		return text{}, nil
	case "FixedString":
		return parseSize(name, args)
	case "Decimal":
		return parseDecimal(name, args)
	case "Nullable":
		inner, err := of(0)
		return nullable{inner}, err
	case "Array":
		inner, err := of(0)
		return array{inner}, err
	case "SimpleAggregateFunction":
		return of(1)
	case "LowCardinality":
		inner, err := of(0)
		if null, ok := inner.(nullable); ok {
			inner = null.of // a dictionary marks NULL by its position
		}
		return lowCardinality{inner}, err
	case "Map":
		pair, err := parseTuple(args, depth)
		return array{pair}, err
	case "Tuple":
		return parseTuple(args, depth)
	case "Variant":
		all, err := parseTuple(args, depth)
		if of, ok := all.(tuple); ok {
			return variant(of), err
		}
	case "Nested":
		row, err := parseTuple(args, depth)
		return array{row}, err
	}
	return nil, library.Exceptionf("NOT_IMPLEMENTED",
		"Type %.100q cannot be sent to the embedded engine in native blocks; use another format over HTTP", name)
}

func parseTuple(elements []string, depth int) (layout, error) {
	if len(elements) == 0 {
		return fixed(1), nil // a Tuple() is a byte per value
	}
	row := tuple{of: make([]layout, len(elements))}
	for i, element := range elements {
		if _, rest, named := cutName(element); named {
			element = rest
		}
		var err error
		if row.of[i], err = parseLayoutAt(element, depth-1); err != nil {
			return nil, err
		}
	}
	return row, nil
}

func parseSize(name string, args []string) (layout, error) {
	if len(args) == 1 {
		if size, err := strconv.ParseUint(args[0], 10, 24); err == nil && size > 0 {
			return fixed(size), nil
		}
	}
	return nil, library.Exceptionf("INCORRECT_DATA", "Type %.100q has no usable size", name)
}

func parseDecimal(name string, args []string) (layout, error) {
	if len(args) > 0 {
		precision, err := strconv.ParseUint(args[0], 10, 8)
		switch {
		case err != nil || precision == 0 || precision > 76:
		case precision <= 9:
			return fixed(4), nil
		case precision <= 18:
			return fixed(8), nil
		case precision <= 38:
			return fixed(16), nil
		default:
			return fixed(32), nil
		}
	}
	return nil, library.Exceptionf("INCORRECT_DATA", "Type %.100q has no usable precision", name)
}

// splitType splits "Family(arg, arg)" at commas outside parentheses and quotes.
func splitType(name string) (family string, args []string, ok bool) {
	open := strings.IndexByte(name, '(')
	if open < 0 {
		return name, nil, name != ""
	}
	if !strings.HasSuffix(name, ")") {
		return "", nil, false
	}
	family, inside := name[:open], name[open+1:len(name)-1]
	depth, start := 0, 0
	l := &lexer{text: inside}
	for t := l.next(); t.kind != tokenEnd; t = l.next() {
		if t.kind != tokenMark {
			continue
		}
		switch inside[t.start] {
		case '(':
			depth++
		case ')':
			depth--
		case ',':
			if depth == 0 {
				args = append(args, strings.TrimSpace(inside[start:t.start]))
				start = t.end
			}
		}
	}
	if last := strings.TrimSpace(inside[start:]); last != "" || len(args) > 0 {
		args = append(args, last)
	}
	return family, args, depth == 0
}

// cutName splits the element "name Type" of a tuple; elements may have no names.
func cutName(element string) (name, rest string, named bool) {
	l := &lexer{text: element}
	first := l.next()
	second := peek(l)
	if (first.kind != tokenWord && first.kind != tokenName) || second.kind != tokenWord {
		return "", element, false
	}
	return element[first.start:first.end], element[second.start:], true
}

func (fixed) prefix(*blockReader) error { return nil }

func (f fixed) data(b *blockReader, rows uint64) error { return b.take(rows, uint64(f)) }

func (text) prefix(*blockReader) error { return nil }

func (text) data(b *blockReader, rows uint64) error {
	for ; rows > 0; rows-- {
		size, err := b.uvarint()
		if err != nil {
			return err
		}
		if err := b.take(size, 1); err != nil {
			return err
		}
	}
	return nil
}

func (n nullable) prefix(b *blockReader) error { return n.of.prefix(b) }

func (n nullable) data(b *blockReader, rows uint64) error {
	if err := b.take(rows, 1); err != nil {
		return err
	}
	return n.of.data(b, rows)
}

func (a array) prefix(b *blockReader) error { return a.of.prefix(b) }

func (a array) data(b *blockReader, rows uint64) error {
	if rows == 0 {
		return a.of.data(b, 0)
	}
	if err := b.take(rows, 8); err != nil {
		return err
	}
	return a.of.data(b, b.lastUint64())
}

func (t tuple) prefix(b *blockReader) error {
	for _, of := range t.of {
		if err := of.prefix(b); err != nil {
			return err
		}
	}
	return nil
}

func (t tuple) data(b *blockReader, rows uint64) error {
	for _, of := range t.of {
		if err := of.data(b, rows); err != nil {
			return err
		}
	}
	return nil
}

func (v variant) prefix(b *blockReader) error {
	mode, err := b.uint64()
	if err != nil {
		return err
	}
	if mode != 0 {
		return library.Exceptionf("INCORRECT_DATA", "Unknown Variant serialization %d", mode)
	}
	return tuple(v).prefix(b)
}

func (v variant) data(b *blockReader, rows uint64) error {
	if err := b.take(rows, 1); err != nil {
		return err
	}
	const null = 255
	counts := make([]uint64, len(v.of))
	for _, which := range b.buf[uint64(len(b.buf))-rows:] {
		switch {
		case int(which) < len(counts):
			counts[which]++
		case which != null:
			return library.Exceptionf("INCORRECT_DATA", "Variant of %d types has a value of type %d", len(counts), which)
		}
	}
	for i, of := range v.of {
		if err := of.data(b, counts[i]); err != nil {
			return err
		}
	}
	return nil
}

func (lowCardinality) prefix(b *blockReader) error {
	version, err := b.uint64()
	if err == nil && version != 1 {
		err = library.Exceptionf("INCORRECT_DATA", "Unknown LowCardinality serialization %d", version)
	}
	return err
}

const (
	indexTypeMask  = 0xff
	globalDictBit  = 1 << 8
	dictionaryBits = 1 << 9
)

func (l lowCardinality) data(b *blockReader, rows uint64) error {
	for rows > 0 {
		flags, err := b.uint64()
		if err != nil {
			return err
		}
		if flags&indexTypeMask > 3 || flags&globalDictBit != 0 || flags&dictionaryBits == 0 {
			return library.Exceptionf("INCORRECT_DATA", "Unknown LowCardinality flags %#x", flags)
		}
		keys, err := b.uint64()
		if err != nil {
			return err
		}
		if err := l.of.data(b, keys); err != nil {
			return err
		}
		values, err := b.uint64()
		if err != nil {
			return err
		}
		if values == 0 || values > rows {
			return library.Exceptionf("INCORRECT_DATA", "LowCardinality column has %d values where %d are left", values, rows)
		}
		if err := b.take(values, 1<<(flags&indexTypeMask)); err != nil {
			return err
		}
		rows -= values
	}
	return nil
}
