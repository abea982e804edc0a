package load_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/pkg/load"
	"sluice/pkg/record"
)

// anyRecord is a record as a slow, obviously right reader sees it.
type anyRecord struct {
	ID         string
	Key        int64
	RecordType string
	ValueType  string
	Intent     string
	Timestamp  int64
	Value      map[string]any
}

func TestGeneratorWritesWhatEnginesSend(t *testing.T) {
	start := time.UnixMilli(1_763_701_200_000)
	g := newGenerator(t, load.GeneratorConfig{Seed: 7, Start: start})
	const n = 30_000
	var (
		buf             []byte
		ids             = map[string]bool{}
		counts          = map[string]int64{}
		processes       = map[string]map[string]bool{}
		keySum, posSum  int64
		beyond, wrongTS int
		bytesWritten    int64
	)
	for range n {
		buf = g.Append(buf[:0])
		bytesWritten += int64(len(buf))
		r := decode(t, buf)
		if ids[r.ID] {
			t.Fatalf("id %s occurs twice", r.ID)
		}
		ids[r.ID] = true
		counts[r.ValueType]++
		keySum += r.Key
		_, position, _ := strings.Cut(r.ID, "-")
		p, err := strconv.ParseInt(position, 10, 64)
		if err != nil {
			t.Fatalf("id %s does not end in a position", r.ID)
		}
		posSum += p
		if r.Key > 1<<53 {
			beyond++
		}
		if at := time.UnixMilli(r.Timestamp); at.Before(start) || at.After(start.Add(time.Second)) {
			wrongTS++
		}
		checkTypes(t, r, buf)
		if id, ok := r.Value["bpmnProcessId"].(string); ok && r.ValueType == "PROCESS_INSTANCE" && r.Value["bpmnElementType"] != "SEQUENCE_FLOW" {
			if processes[id] == nil {
				processes[id] = map[string]bool{}
			}
			processes[id][r.Value["elementId"].(string)] = true
		}
	}
	if mean := bytesWritten / n; mean < 620 || mean > 720 {
		t.Errorf("a record is %d bytes on average, want 620 to 720", mean)
	}
	if beyond < n/5 {
		t.Errorf("%d of %d keys are above 2^53, want more", beyond, n)
	}
	if wrongTS > 0 {
		t.Errorf("%d timestamps are not near the start", wrongTS)
	}
	if len(processes) < 10 {
		t.Errorf("%d processes occur, want at least 10", len(processes))
	}
	for id, elements := range processes {
		if len(elements)-1 < 6 || len(elements)-1 > 20 { // less the process itself
			t.Errorf("process %s has %d elements, want 6 to 20", id, len(elements)-1)
		}
	}
	totals := g.Totals()
	if totals.Records != n || totals.Bytes != bytesWritten || totals.KeySum != keySum || totals.PositionSum != posSum {
		t.Errorf("totals are %+v, want %d records, %d bytes, key sum %d, position sum %d", totals, n, bytesWritten, keySum, posSum)
	}
	if diff := cmp.Diff(counts, totals.ValueTypes()); diff != "" {
		t.Errorf("counts by valueType (-read +totals):\n%s", diff)
	}
	for _, want := range []string{"PROCESS_INSTANCE", "JOB", "JOB_BATCH", "INCIDENT", "VARIABLE", "TIMER", "MESSAGE", "USER_TASK", "PROCESS_INSTANCE_CREATION"} {
		if counts[want] == 0 {
			t.Errorf("no record is about %s", want)
		}
	}
}

// checkTypes holds the fields of the specification against their types; an
// integer may also be sent as text.
func checkTypes(t *testing.T, r anyRecord, raw []byte) {
	t.Helper()
	for field, value := range r.Value {
		ok := true
		switch field {
		case "bpmnProcessId", "elementId", "errorCode", "errorMessage", "type", "worker":
			_, ok = value.(string)
		case "deadline", "elementInstanceKey", "processDefinitionKey", "processDefinitionVersion", "retries", "processInstanceKey":
			_, err := strconv.ParseInt(fmt.Sprint(value), 10, 64)
			ok = err == nil
		case "customHeaders", "variables":
			_, ok = value.(map[string]any)
		}
		if !ok {
			t.Fatalf("value.%s is %v (%T) in %s", field, value, value, raw)
		}
	}
}

func TestInstancesOfTheGeneratorAreConsistent(t *testing.T) {
	g := newGenerator(t, load.GeneratorConfig{Seed: 3, Instances: 100})
	var buf []byte
	completed, jobs := 0, map[string]string{} // job key → latest intent
	open := map[string]bool{}                 // element instances entered and not left
	for range 30_000 {
		buf = g.Append(buf[:0])
		r := decode(t, buf)
		key := strconv.FormatInt(r.Key, 10)
		switch r.ValueType + " " + r.Intent {
		case "PROCESS_INSTANCE ELEMENT_ACTIVATING":
			open[key] = true
		case "PROCESS_INSTANCE ELEMENT_COMPLETED":
			if !open[key] {
				t.Fatalf("element instance %s is left but was not entered", key)
			}
			delete(open, key)
			if r.Value["bpmnElementType"] == "PROCESS" {
				completed++
			}
		case "JOB CREATED":
			if _, again := jobs[key]; again {
				t.Fatalf("job %s is created twice", key)
			}
			jobs[key] = r.Intent
		case "JOB COMPLETED", "JOB FAILED", "JOB TIMED_OUT":
			if before, ok := jobs[key]; !ok || before == "COMPLETED" {
				t.Fatalf("job %s is %s after %q", key, r.Intent, before)
			}
			jobs[key] = r.Intent
		}
	}
	if completed < 300 {
		t.Errorf("%d process instances were completed, want at least 300", completed)
	}
	if len(open) > 2*100 { // the process and one element each
		t.Errorf("%d element instances are open at the end, want those of 100 process instances", len(open))
	}
}

func TestGeneratorRepeatsItselfForTheSameSeed(t *testing.T) {
	start := time.UnixMilli(1_763_701_200_000)
	write := func(seed uint64, batch int) []byte {
		g := newGenerator(t, load.GeneratorConfig{Seed: seed, Start: start})
		var all []byte
		for n := 0; n < 3000; n += batch {
			body, _, _ := g.AppendBatch(nil, batch)
			all = append(append(all, body[1:len(body)-1]...), ',')
		}
		return all
	}
	if !bytes.Equal(write(1, 100), write(1, 300)) {
		t.Error("the same seed gives other records in other batches")
	}
	ids := map[string]bool{}
	for seed := range uint64(20) {
		g := newGenerator(t, load.GeneratorConfig{Seed: seed, Start: start})
		for range 1000 {
			id := decode(t, g.Append(nil)).ID
			if ids[id] {
				t.Fatalf("id %s of seed %d was used by another seed", id, seed)
			}
			ids[id] = true
		}
	}
}

func TestTheEnvelopeSaysWhetherARecordNamesItsPosition(t *testing.T) {
	for _, tt := range []struct {
		name     string
		envelope load.Envelope
		some     bool // records name it
		others   bool // records do not
	}{
		{"mixed", load.MixedEnvelopes, true, true},
		{"full", load.FullEnvelope, true, false},
		{"slim", load.SlimEnvelope, false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := newGenerator(t, load.GeneratorConfig{Seed: 3, Envelope: tt.envelope, After: 1000})
			full, slim := 0, 0
			for range 20_000 {
				raw := g.Append(nil)
				var r struct {
					ID                    string
					PartitionID, Position int64
				}
				if err := json.Unmarshal(raw, &r); err != nil {
					t.Fatal(err)
				}
				partition, position := g.Latest()
				if want := fmt.Sprintf("%d-%d", partition, position); r.ID != want || position <= 1000 {
					t.Fatalf("the latest record is %s, the generator says %s", r.ID, want)
				}
				switch {
				case r.PartitionID == partition && r.Position == position:
					full++
				case r.PartitionID == 0 && r.Position == 0:
					slim++
				default:
					t.Fatalf("record %s names partition %d and position %d", r.ID, r.PartitionID, r.Position)
				}
			}
			if full > 0 != tt.some || slim > 0 != tt.others {
				t.Errorf("%d records name their position, %d do not", full, slim)
			}
		})
	}
}

func TestBatchSaysWhatIsInIt(t *testing.T) {
	g := newGenerator(t, load.GeneratorConfig{Seed: 11})
	var all load.Totals
	for _, n := range []int{1, 2, 500, 0, 37} {
		body, totals, ranges := g.AppendBatch(nil, n)
		var records []json.RawMessage
		if err := json.Unmarshal(body, &records); err != nil {
			t.Fatal(err)
		}
		inRanges, size := map[string]bool{}, 0
		for _, r := range ranges {
			for p := r.First; p <= r.Last; p++ {
				inRanges[fmt.Sprintf("%d-%d", r.Partition, p)] = true
			}
		}
		for _, raw := range records {
			id := decode(t, raw).ID
			if !inRanges[id] {
				t.Fatalf("id %s is in no range", id)
			}
			delete(inRanges, id)
			size += len(raw)
		}
		if len(records) != n || totals.Records != int64(n) || totals.Bytes != int64(size) || len(inRanges) != 0 {
			t.Errorf("batch of %d holds %d records of %d bytes, totals say %d of %d; %d ids only in ranges",
				n, len(records), size, totals.Records, totals.Bytes, len(inRanges))
		}
		all.Records += totals.Records
	}
	if got := g.Totals().Records; got != all.Records {
		t.Errorf("the generator counts %d records, its batches %d", got, all.Records)
	}
}

func newGenerator(t testing.TB, cfg load.GeneratorConfig) *load.Generator {
	t.Helper()
	g, err := load.NewGenerator(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func decode(t testing.TB, raw []byte) anyRecord {
	t.Helper()
	var r anyRecord
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if err := d.Decode(&r); err != nil || d.More() {
		t.Fatalf("not one record: %v\n%s", err, raw)
	}
	return r
}

func BenchmarkGenerator(b *testing.B) {
	g := newGenerator(b, load.GeneratorConfig{Seed: 1})
	buf := make([]byte, 0, 64<<10)
	b.ReportAllocs()
	for b.Loop() {
		buf = g.Append(buf[:0])
	}
	b.SetBytes(g.Totals().Bytes / g.Totals().Records)
}

func TestTheApiTakesEveryRecord(t *testing.T) {
	g := newGenerator(t, load.GeneratorConfig{Seed: 21})
	for range 20 {
		body, totals, _ := g.AppendBatch(nil, 500)
		request := record.NewRequest()
		if err := request.Parse(body, record.FormAuto, record.Limits{}, time.Now()); err != nil {
			t.Fatal(err)
		}
		if int64(request.Len()) != totals.Records || !request.AllIDs() || request.BadTimestamps() != 0 {
			t.Errorf("of %d records, %d were understood (all with ids: %t), %d with an odd timestamp",
				totals.Records, request.Len(), request.AllIDs(), request.BadTimestamps())
		}
		if request.UnknownMembers() == 0 {
			t.Error("no record has a member beyond the specification")
		}
		request.Release()
	}
}

func BenchmarkNewGenerator(b *testing.B) {
	for b.Loop() {
		newGenerator(b, load.GeneratorConfig{Seed: 1})
	}
}
