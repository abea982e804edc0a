package simulator

import (
	"strconv"
	"time"
)

// keyBits is the offset of the partition in a key: partition 4 starts at 2^53, beyond which a float64 is not exact.
const keyBits = 51

const (
	event     = "EVENT"
	command   = "COMMAND"
	rejection = "COMMAND_REJECTION"
)

// partition is one log of the engine, with its own positions and keys.
type partition struct {
	e         *Engine
	id        int64
	position  int64 // of the next record
	key       int64 // next one, without the partition
	sequences map[string]int64
	waiting   map[string][]*job // available jobs, by type
}

func newPartition(e *Engine, id, first int64) *partition {
	return &partition{e: e, id: id, position: first, key: first, sequences: map[string]int64{}, waiting: map[string][]*job{}}
}

func (p *partition) nextKey() int64 {
	p.key++
	return p.id<<keyBits + p.key - 1
}

type value interface {
	appendTo(dst []byte) []byte
}

// batch is the records that an engine writes at once: an external command and the records that follow, whose source is
// the position of that command.
type batch struct {
	p      *partition
	source int64
}

// batch starts a batch with an external command, which has no source.
func (p *partition) batch(valueType, intent string, key int64, v value) batch {
	b := batch{p: p, source: -1}
	b.source = b.write(command, valueType, intent, key, v)
	return b
}

func (b batch) command(valueType, intent string, key int64, v value) {
	b.write(command, valueType, intent, key, v)
}

// event writes an event and returns its position.
func (b batch) event(valueType, intent string, key int64, v value) int64 {
	return b.write(event, valueType, intent, key, v)
}

func (b batch) reject(valueType, intent string, key int64, v value) {
	b.write(rejection, valueType, intent, key, v)
}

func (b batch) ms() int64 { return b.p.e.ms() }

// write assigns a position to the record and, if its type is exported, writes it.
func (b batch) write(recordType, valueType, intent string, key int64, v value) int64 {
	p := b.p
	position := p.position
	p.position++
	if recordType != event && !p.e.cfg.Commands {
		return position
	}
	p.sequences[valueType]++
	start := len(p.e.text)
	p.e.text = b.appendRecord(p.e.text, position, recordType, valueType, intent, key, v)
	p.e.out = append(p.e.out, Record{
		Partition: p.id, Position: position, Key: key, Timestamp: b.ms(),
		RecordType: recordType, ValueType: valueType, Intent: intent,
		JSON: p.e.text[start:len(p.e.text):len(p.e.text)],
	})
	return position
}

func (b batch) appendRecord(dst []byte, position int64, recordType, valueType, intent string, key int64, v value) []byte {
	p := b.p
	o := begin(dst)
	if !p.e.cfg.NoIDs {
		o = append(o, `"id":"`...)
		o = strconv.AppendInt(o, p.id, 10)
		o = append(o, '-')
		o = strconv.AppendInt(o, position, 10)
		o = append(o, `",`...)
	}
	o = o.number("partitionId", p.id).number("position", position).number("sourceRecordPosition", b.source)
	o = o.number("key", key).number("timestamp", b.ms())
	o = o.text("recordType", recordType).text("valueType", valueType).text("intent", intent)
	if recordType == rejection {
		o = o.text("rejectionType", "NOT_FOUND").text("rejectionReason", "Expected to find what the command is about, but there is none")
	} else {
		o = o.text("rejectionType", "NULL_VAL").text("rejectionReason", "")
	}
	o = o.text("brokerVersion", "8.5.2").number("recordVersion", 1)
	o = o.raw("authorizations", `{"authorized_tenants":["<default>"]}`).number("operationReference", -1)
	o = o.number("sequence", p.id<<keyBits+p.sequences[valueType])
	o = append(o, `"value":`...)
	o = object(v.appendTo(o))
	return append(o, '}')
}

// object writes the members of a JSON object, each followed by a comma.
type object []byte

func begin(dst []byte) object { return append(dst, '{') }

func (o object) end() []byte {
	o[len(o)-1] = '}' // in place of the last comma
	return o
}

func (o object) name(name string) object {
	o = append(o, '"')
	o = append(o, name...)
	return append(o, '"', ':')
}

// text writes a string that needs no escaping.
func (o object) text(name, v string) object {
	o = append(o.name(name), '"')
	o = append(o, v...)
	return append(o, '"', ',')
}

func (o object) number(name string, v int64) object {
	return append(strconv.AppendInt(o.name(name), v, 10), ',')
}

// raw writes JSON.
func (o object) raw(name, v string) object {
	return append(append(o.name(name), v...), ',')
}

// quoted writes a string that may need escaping.
func (o object) quoted(name, v string) object {
	return append(appendQuoted(o.name(name), v), ',')
}

func appendQuoted(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c == '\n':
			dst = append(dst, '\\', 'n')
		case c < ' ':
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		default:
			dst = append(dst, c)
		}
	}
	return append(dst, '"')
}

// date formats a time as in user tasks.
func date(ms int64) string { return time.UnixMilli(ms).UTC().Format(time.RFC3339) }
