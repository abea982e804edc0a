package camunda

import (
	"bytes"
	"strconv"
	"time"
)

// bulk is an exporter's buffer: the body of its next request.
type bulk struct {
	body      []byte
	records   int
	documents int // bytes of the records
}

func (b *bulk) reset() { b.body, b.records, b.documents = b.body[:0], 0, 0 }

// add adds a record. Each leadership restarts the sequences and may have another broker
// version. Neither is part of a record's deduplication key.
func (b *bulk) add(partition int64, leadership int, record []byte) {
	b.body = appendAction(b.body, partition, leadership, record)
	before := len(b.body)
	b.body = appendDocument(b.body, leadership, record)
	b.documents += len(b.body) - before
	b.body = append(b.body, '\n')
	b.records++
}

// appendAction appends the line before a document: index, id and routing.
func appendAction(dst []byte, partition int64, leadership int, record []byte) []byte {
	dst = append(dst, `{"index":{"_index":"zeebe-record_`...)
	start := len(dst)
	for _, c := range bytes.Trim(member(record, "valueType"), `"`) {
		if c == '_' {
			c = '-'
		}
		dst = append(dst, c|0x20)
	}
	if len(dst) == start {
		dst = append(dst, "unknown"...)
	}
	dst = strconv.AppendInt(append(dst, "_8.7."...), int64(leadership), 10)
	if ms, err := strconv.ParseInt(string(member(record, "timestamp")), 10, 64); err == nil {
		dst = time.UnixMilli(ms).UTC().AppendFormat(append(dst, '_'), time.DateOnly)
	}
	dst = strconv.AppendInt(append(dst, `","_id":"`...), partition, 10)
	dst = append(append(dst, '-'), member(record, "position")...)
	dst = strconv.AppendInt(append(dst, `","routing":"`...), partition, 10)
	return append(dst, "\"}}\n"...)
}

// appendDocument appends the record, with the sequence of this leadership.
func appendDocument(dst []byte, leadership int, record []byte) []byte {
	sequence := member(record, "sequence")
	if leadership == 1 || len(sequence) < 4 {
		return append(dst, record...)
	}
	start := cap(record) - cap(sequence)
	dst = append(dst, record[:start]...)
	dst = append(dst, sequence[:len(sequence)-2]...)
	dst = append(dst, '0'+byte(leadership/10%10), '0'+byte(leadership%10))
	return append(dst, record[start+len(sequence):]...)
}

// member returns the JSON of a member that is before the record's value. The simulators
// write no spaces.
func member(record []byte, name string) []byte {
	head := record
	if i := bytes.Index(record, []byte(`"value":{`)); i >= 0 {
		head = record[:i:cap(record)]
	}
	i := bytes.Index(head, []byte(`"`+name+`":`))
	if i < 0 {
		return nil
	}
	i += len(name) + 3
	n := bytes.IndexAny(head[i:], ",}")
	if n < 0 {
		return nil
	}
	return record[i : i+n]
}
