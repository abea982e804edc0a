package record_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/record"
)

// FuzzMaskedDocuments writes records with secrets in random places: the secrets, and nothing else, become stars.
func FuzzMaskedDocuments(f *testing.F) {
	for i := range uint64(3000) {
		f.Add(i)
	}
	mask, err := record.NewMask([]string{"pin"})
	fatal.If(f, err)
	f.Fuzz(func(t *testing.T, number uint64) {
		d := documents{rand.New(rand.NewPCG(number, 1))}
		var body document
		for i := range 1 + d.IntN(3) {
			if i > 0 {
				body = append(body, fragment{",", ","})
			}
			body = append(body, d.record()...)
		}
		sent, want := "["+body.sent()+"]", "["+body.kept()+"]"
		kept, _ := masked(t, mask, record.FormAuto, sent)
		expect.Not(t, kept != want, "of\n%s\nkept is\n%s, want\n%s", sent, kept, want)
		expect.Not(t, strings.Contains(kept, "s3cret"), "of\n%s\nkept is\n%s", sent, kept)
	})
}

// document is JSON in pieces: each as sent, and as kept.
type document []fragment

type fragment struct{ sent, kept string }

func (d document) sent() string {
	var b strings.Builder
	for _, f := range d {
		b.WriteString(f.sent)
	}
	return b.String()
}

func (d document) kept() string {
	var b strings.Builder
	for _, f := range d {
		b.WriteString(f.kept)
	}
	return b.String()
}

// hidden is a value that is a secret, unless it is empty.
func hidden(value document) document {
	switch sent := value.sent(); sent {
	case "null", `""`, "{}", "[]":
		return asSent(sent)
	default:
		return document{{sent, `"***"`}}
	}
}

type documents struct{ *rand.Rand }

func (d documents) pick(of ...string) string { return of[d.IntN(len(of))] }

// asSent is an unchanged piece.
func asSent(text string) document { return document{{text, text}} }

// record is a record that may be a variable, with members in any order.
func (d documents) record() document {
	variable := d.IntN(2) == 0
	secret := variable && d.IntN(2) == 0
	value := d.value(3)
	if variable && d.IntN(3) > 0 {
		value = d.text(d.value(3))
	}
	if secret {
		value = hidden(value)
	}
	name := d.pick("x", "passwort", "pin1", "p")
	if secret {
		name = d.name()
	}
	members := []document{
		d.member("name", d.text(asSent(name))),
		d.member("value", value),
		d.member("more", d.value(4)),
		d.member("variables", d.value(3)),
	}
	d.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	kind := "JOB"
	if variable {
		kind = "VARIABLE"
	}
	outer := []document{
		d.member("valueType", asSent(`"`+kind+`"`)),
		d.member("value", d.joined("{", members, "}")),
		d.member("key", asSent("7")),
	}
	d.Shuffle(len(outer), func(i, j int) { outer[i], outer[j] = outer[j], outer[i] })
	return d.joined("{", outer, "}")
}

// value is any JSON.
func (d documents) value(depth int) document {
	kind := d.IntN(7)
	if depth == 0 {
		kind = d.IntN(2)
	}
	switch kind {
	case 0:
		return asSent(d.pick("1", "-2.5e3", "true", "null", `""`, "{}", "[]"))
	case 1:
		return d.text(asSent(d.pick("some text", "é😀 \n/", `{"password":"x`, "password", `\`, `"`, `{`, `["pin"]]`)))
	case 2, 3:
		return d.text(append(append(asSent(d.space()), d.value(depth-1)...), asSent(d.space())...))
	case 4:
		elements := make([]document, d.IntN(3))
		for i := range elements {
			elements[i] = d.value(depth - 1)
		}
		return d.joined("[", elements, "]")
	}
	members := make([]document, d.IntN(4))
	for i := range members {
		of := d.value(depth - 1)
		if d.IntN(3) > 0 {
			members[i] = d.member(d.pick("a", "name", "value", "passwor", "pins", "variables"), of)
			continue
		}
		if d.IntN(2) == 0 {
			of = asSent(d.pick(`"s3cret"`, `"s3cret \u0022,\\"`, "7", "42", "false", `["s3cret"]`, `{"s3cret":{"pin":"s3cret"}}`, "null", `""`))
		}
		members[i] = d.member(d.name(), hidden(of))
	}
	return d.joined("{", members, "}")
}

func (d documents) name() string {
	return d.pick("password", "Password", "paſſword", "PIN", "pin")
}

func (d documents) space() string { return d.pick("", "", " ", "\n\t") }

func (d documents) member(name string, value document) document {
	of := append(asSent(d.space()), d.text(asSent(name))...)
	of = append(of, asSent(d.space()+":"+d.space())...)
	return append(append(of, value...), asSent(d.space())...)
}

func (d documents) joined(begin string, of []document, end string) document {
	all := asSent(begin + d.space())
	for i, one := range of {
		if i > 0 {
			all = append(all, asSent(",")...)
		}
		all = append(all, one...)
	}
	return append(all, asSent(end)...)
}

// text is a JSON string of a document. A secret in it is kept with the fewest escapes.
func (d documents) text(of document) document {
	all := asSent(`"`)
	for _, f := range of {
		sent := d.escaped(f.sent)
		if f.sent == f.kept {
			all = append(all, fragment{sent, sent})
		} else {
			all = append(all, fragment{sent, strings.NewReplacer(`"`, `\"`, `\`, `\\`).Replace(f.kept)})
		}
	}
	return append(all, asSent(`"`)...)
}

// escaped is a text as it may be in a string, with some unneeded escapes.
func (d documents) escaped(text string) string {
	var b strings.Builder
	for _, r := range text {
		more := d.IntN(40) == 0
		switch {
		case r == '\n' && !more:
			b.WriteString(`\n`)
		case (r == '"' || r == '\\') && !more:
			b.WriteString(`\` + string(r))
		case r == '/' && more:
			b.WriteString(`\/`)
		case r < ' ' || more && r < 0x10000 || r == '"' || r == '\\':
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}
