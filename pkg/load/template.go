package load

import (
	"fmt"
	"strconv"
	"strings"
)

// slot is a place of a template that is filled for every record.
type slot int

const (
	slotNone slot = iota
	slotPartition
	slotPosition
	slotSource     // position of the command that caused the record
	slotKey        // of the record itself
	slotTimestamp  // epoch ms
	slotInstance   // key of the process instance
	slotElementKey // key of the element instance
	slotJob        // key of the job or user task
	slotDeadline   // epoch ms
	slotRetries
	slotWorker
	slotAssignee
	slotErrorCode
	slotError   // text of the current failure
	slotNumber  // up to six digits, fixed per instance
	slotAmount  // with two decimals, fixed per instance
	slotCountry // fixed per instance
	slotFlag    // true or false, fixed per instance
	slotDigit   // one digit, fixed per instance
	slotHex     // eight hex digits, new in every record
)

func slots() map[string]slot {
	return map[string]slot{
		"partition": slotPartition, "position": slotPosition, "source": slotSource, "key": slotKey,
		"timestamp": slotTimestamp, "instance": slotInstance, "elementKey": slotElementKey, "job": slotJob,
		"deadline": slotDeadline, "retries": slotRetries, "worker": slotWorker, "assignee": slotAssignee,
		"errorCode": slotErrorCode, "error": slotError, "number": slotNumber, "amount": slotAmount,
		"country": slotCountry, "flag": slotFlag, "digit": slotDigit, "hex": slotHex,
	}
}

// template is a record with holes: literal text, each followed by a slot.
type template []piece

type piece struct {
	text string
	slot slot
}

// compile replaces the names that are fixed, whose own text may hold names
// again, and cuts the rest at the slots that are known.
func compile(text string, fixed names, known map[string]slot) (template, error) {
	var t template
	literal := strings.Builder{}
	for budget := 1000; ; budget-- {
		before, after, found := strings.Cut(text, "$")
		literal.WriteString(before)
		if !found {
			return append(t, piece{literal.String(), slotNone}), nil
		}
		name := after[:nameLength(after)]
		text = after[len(name):]
		if value, ok := fixed.value(name); ok && budget > 0 {
			text = value + text
			continue
		}
		s, ok := known[name]
		if !ok {
			return nil, fmt.Errorf("template has no slot $%s", name)
		}
		t = append(t, piece{literal.String(), s})
		literal.Reset()
	}
}

func nameLength(s string) int {
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			return i
		}
	}
	return len(s)
}

// render appends the record that t makes of what the generator is at.
func (g *Generator) render(dst []byte, t template, in *instance, key int64) []byte {
	for _, p := range t {
		dst = append(dst, p.text...)
		switch p.slot {
		case slotNone:
		case slotPartition:
			dst = append(dst, in.home.text...)
		case slotPosition:
			dst = strconv.AppendInt(dst, in.home.position, 10)
		case slotSource:
			dst = strconv.AppendInt(dst, in.home.position-1, 10)
		case slotKey:
			dst = strconv.AppendInt(dst, key, 10)
		case slotTimestamp:
			dst = append(dst, g.clock.text...)
		case slotInstance:
			dst = append(dst, in.keyText[:in.keyLen]...)
		case slotElementKey:
			dst = strconv.AppendInt(dst, in.element, 10)
		case slotJob:
			dst = strconv.AppendInt(dst, in.job, 10)
		case slotDeadline:
			dst = strconv.AppendInt(dst, in.deadline, 10)
		case slotRetries:
			dst = strconv.AppendInt(dst, int64(in.retries), 10)
		case slotWorker:
			dst = append(dst, pick(g.workers, in.worker)...)
		case slotAssignee:
			dst = append(dst, pick(g.assignees, in.traits>>4)...)
		case slotErrorCode:
			dst = append(dst, pick(g.failures, in.failure).code...)
		case slotError:
			f := pick(g.failures, in.failure)
			dst = append(dst, f.before...)
			if f.number {
				dst = strconv.AppendUint(dst, in.failure>>8%10000, 10)
			}
			dst = append(dst, f.after...)
		case slotNumber:
			dst = strconv.AppendUint(dst, in.traits>>8%1_000_000, 10)
		case slotAmount:
			dst = strconv.AppendUint(dst, in.traits>>16%5000, 10)
			dst = append(dst, '.', '0'+byte(in.traits>>32%10), '1'+byte(in.traits>>36%9))
		case slotCountry:
			dst = append(dst, pick(g.countries, in.traits>>40)...)
		case slotFlag:
			dst = strconv.AppendBool(dst, in.traits>>50&1 == 1)
		case slotDigit:
			dst = append(dst, '0'+byte(in.traits>>52%10))
		case slotHex:
			dst = appendHex(dst, uint32(g.random.next()))
		}
	}
	return dst
}

func pick[T any](from []T, n uint64) T { return from[n%uint64(len(from))] }

func appendHex(dst []byte, n uint32) []byte {
	const digits = "0123456789abcdef"
	for shift := 28; shift >= 0; shift -= 4 {
		dst = append(dst, digits[n>>shift&15])
	}
	return dst
}
