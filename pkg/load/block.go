package load

import (
	"bytes"
	"fmt"
	"strconv"
	"sync"
	"time"

	"sluice/pkg/load/simulator"
)

// block is what a simulated engine writes while it plays some process instances from
// beginning to end. Its records are written again and again, each time with other
// positions, keys and times: that costs a quarter of simulating them.
type block struct {
	records []template
	keys    int64 // keys of a partition are 1 to this, without the partition
}

// template is a record with holes for the numbers that differ each time.
type template struct {
	simulator.Record      // as it is in the block, without its JSON
	shifted          bool // its key is another one each time
	text             []byte
	holes            []hole // in the order of the text
}

// hole is a number that is missing in a text.
type hole struct {
	at     int // in the text
	number number
	by     int64 // what is added to it
}

type number int

const (
	ofPartition number = iota // that the record is written on
	ofPosition                // of the record
	ofKey                     // 0 in the block
	ofTime                    // of the record, epoch ms
)

// enginePartitions is how many there are in a block: keys on both sides of 2^53 occur.
const enginePartitions = 5

// keyBits is where the partition begins in a key.
const keyBits = 51

// blocks of each envelope are made when they are needed first.
var blocks = map[Envelope]func() *block{
	MixedEnvelopes: sync.OnceValue(func() *block { return newBlock(MixedEnvelopes) }),
	FullEnvelope:   sync.OnceValue(func() *block { return newBlock(FullEnvelope) }),
	SlimEnvelope:   sync.OnceValue(func() *block { return newBlock(SlimEnvelope) }),
}

// blockConfig is of the engine that writes a block. Its processes have names of their
// own: their diagrams are not sent.
var blockConfig = simulator.Config{Seed: 1, Prefix: "steady-", Instances: 250, Every: 10 * time.Second, Partitions: enginePartitions, Commands: true}

// newBlock plays an engine. Its processes have been deployed before: the keys that
// are given out until the first instance begins stay the same.
func newBlock(e Envelope) *block {
	engine := simulator.New(blockConfig)
	b := &block{}
	deployed := int64(0)
	for r := range engine.All() {
		low := r.Key & (1<<keyBits - 1)
		if r.Key > 0 {
			b.keys = max(b.keys, low)
		}
		switch r.ValueType {
		case "PROCESS", "DEPLOYMENT", "DECISION", "DECISION_REQUIREMENTS":
			if r.Key > 0 {
				deployed = max(deployed, low)
			}
			continue
		}
		if r.RecordType == "COMMAND" { // exporters are told to leave them out
			continue
		}
		slim := e == SlimEnvelope || e == MixedEnvelopes && r.Partition%2 == 0
		b.records = append(b.records, newTemplate(r, slim, deployed))
	}
	return b
}

// newTemplate makes holes in a record. In a slim one are only the members that the
// specification names.
func newTemplate(r simulator.Record, slim bool, deployed int64) template {
	t := template{Record: r, shifted: isKey(r.Key, deployed)}
	whole := r.JSON
	head := fmt.Sprintf(`{"id":"%d-%d","partitionId":%[1]d,"position":%[2]d,"sourceRecordPosition":`, r.Partition, r.Position)
	rest, ok := bytes.CutPrefix(whole, []byte(head))
	if !ok {
		panic(fmt.Sprintf("load: a simulated record does not begin with %s: %s", head, whole)) // both are ours
	}
	_, rest, _ = bytes.Cut(rest, []byte(`,"recordType":`))
	t.literal(`{"id":"`).hole(ofPartition, 0).literal("-").hole(ofPosition, 0).literal(`",`)
	if !slim {
		t.literal(`"partitionId":`).hole(ofPartition, 0).literal(`,"position":`).hole(ofPosition, 0).literal(`,"sourceRecordPosition":`).hole(ofPosition, -1).literal(`,`)
	}
	t.literal(`"key":`)
	t.numbers(strconv.AppendInt(nil, r.Key, 10), r.Timestamp, deployed)
	t.literal(`,"timestamp":`).hole(ofTime, 0).literal(`,"recordType":`)
	if slim {
		kind, _, _ := bytes.Cut(rest, []byte(`,"rejectionType":`))
		_, value, _ := bytes.Cut(rest, []byte(`,"value":`))
		t.literal(string(kind)).literal(`,"value":`)
		rest = value
	}
	t.numbers(rest, r.Timestamp, deployed)
	t.JSON = nil
	return t
}

func (t *template) literal(text string) *template {
	t.text = append(t.text, text...)
	return t
}

func (t *template) hole(n number, by int64) *template {
	t.holes = append(t.holes, hole{len(t.text), n, by})
	return t
}

// numbers writes JSON with holes for what is a key by its size, except those of what
// was deployed; a time within the life of a block; or the number of an order, which
// is a key without its partition.
func (t *template) numbers(json []byte, now, deployed int64) {
	for len(json) > 0 {
		from := bytes.IndexAny(json, "0123456789")
		if from < 0 {
			break
		}
		to := from + 1
		for to < len(json) && '0' <= json[to] && json[to] <= '9' {
			to++
		}
		n, err := strconv.ParseInt(string(json[from:to]), 10, 64)
		t.text = append(t.text, json[:from]...)
		const day = 24 * 60 * 60 * 1000
		switch {
		case err == nil && (isKey(n, deployed) || bytes.HasSuffix(json[:from], []byte("order-"))):
			t.hole(ofKey, n)
		case err == nil && now-day < n && n < now+day:
			t.hole(ofTime, n-now)
		default:
			t.text = append(t.text, json[from:to]...)
		}
		json = json[to:]
	}
	t.text = append(t.text, json...)
}

// isKey tells keys, by their size, other than those of what was deployed.
func isKey(n, deployed int64) bool {
	partition := n >> keyBits
	return 1 <= partition && partition <= enginePartitions && (partition > 1 || n&(1<<keyBits-1) > deployed)
}
