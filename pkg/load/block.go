package load

import (
	"bytes"
	"fmt"
	"strconv"
	"sync"
	"time"

	"sluice/pkg/load/simulator"
)

// block has all records of some simulated process instances. A Generator repeats them with
// other positions, keys, and times, at a quarter of the cost of simulating them.
type block struct {
	records []template
	keys    int64 // largest key, without the partition
}

// template is a record with holes for the varying numbers.
type template struct {
	simulator.Record      // as in the block, without its JSON
	shifted          bool // its key varies
	text             []byte
	holes            []hole // in the order of the text
}

type hole struct {
	at     int // offset in the text
	number number
	by     int64 // added to it
}

type number int

const (
	ofPartition number = iota // of the record
	ofPosition                // of the record
	ofKey                     // 0 in the block
	ofTime                    // of the record, epoch ms
)

// enginePartitions is the number of partitions: their keys are on both sides of 2^53.
const enginePartitions = 5

// keyBits is the offset of the partition in a key.
const keyBits = 51

// blocks by envelope, made on first use.
var blocks = map[Envelope]func() *block{
	MixedEnvelopes: sync.OnceValue(func() *block { return newBlock(MixedEnvelopes) }),
	FullEnvelope:   sync.OnceValue(func() *block { return newBlock(FullEnvelope) }),
	SlimEnvelope:   sync.OnceValue(func() *block { return newBlock(SlimEnvelope) }),
}

// blockConfig configures the engine of a block. Its processes have their own names, since
// their diagrams are not sent.
var blockConfig = simulator.Config{Seed: 1, Prefix: "steady-", Instances: 250, Every: 10 * time.Second, Partitions: enginePartitions, Commands: true}

// newBlock simulates the block of an envelope. Processes are deployed before the first
// instance, so their keys do not vary.
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
		if r.RecordType == "COMMAND" { // exporters are configured to skip them
			continue
		}
		slim := e == SlimEnvelope || e == MixedEnvelopes && r.Partition%2 == 0
		b.records = append(b.records, newTemplate(r, slim, deployed))
	}
	return b
}

// newTemplate makes holes in a record. A slim one has only members of the specification.
func newTemplate(r simulator.Record, slim bool, deployed int64) template {
	t := template{Record: r, shifted: isKey(r.Key, deployed)}
	whole := r.JSON
	head := fmt.Sprintf(`{"id":"%d-%d","partitionId":%[1]d,"position":%[2]d,"sourceRecordPosition":`, r.Partition, r.Position)
	rest, ok := bytes.CutPrefix(whole, []byte(head))
	if !ok {
		panic(fmt.Sprintf("load: a simulated record does not begin with %s: %s", head, whole)) // a bug of the simulator
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

// numbers copies JSON with holes for keys except those of deployments, recognised by size;
// for times within the block; and for order numbers, which are keys without a partition.
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

// isKey reports whether a number is a key, by its size, but not of a deployment.
func isKey(n, deployed int64) bool {
	partition := n >> keyBits
	return 1 <= partition && partition <= enginePartitions && (partition > 1 || n&(1<<keyBits-1) > deployed)
}
