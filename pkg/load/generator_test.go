package load_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"testing"
	"time"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/load"
	"sluice/pkg/load/simulator"
	"sluice/pkg/record"
)

// anyRecord is a record as a slow, obviously correct decoder reads it.
type anyRecord struct {
	ID                    string
	PartitionID, Position int64
	Key                   int64
	RecordType            string
	ValueType             string
	Intent                string
	Timestamp             int64
	Value                 map[string]any
}

// turns exceeds the records of a block, so that some are repeated.
const turns = 60_000

// TestTheGeneratorReportsItsRecords compares the fields of records with their JSON. Ids
// are unique, and positions of a partition are consecutive.
func TestTheGeneratorReportsItsRecords(t *testing.T) {
	start := time.UnixMilli(1_763_701_200_000)
	g := load.NewGenerator(load.GeneratorConfig{Seed: 7, Start: start})
	ids, lastOf := map[string]bool{}, map[int64]int64{}
	for range turns {
		said, more := g.Next()
		r := decode(t, said.JSON)
		if !more || r.ID != fmt.Sprintf("%d-%d", said.Partition, said.Position) || r.Key != said.Key || r.Timestamp != said.Timestamp ||
			r.RecordType != said.RecordType || r.ValueType != said.ValueType || r.Intent != said.Intent {
			t.Fatalf("the record is %+v, its JSON %s", said, said.JSON)
		}
		if before := lastOf[said.Partition]; ids[r.ID] || before != 0 && said.Position != before+1 {
			t.Fatalf("id %s comes twice, or after position %d", r.ID, before)
		}
		ids[r.ID], lastOf[said.Partition] = true, said.Position
		if at := time.UnixMilli(r.Timestamp); at.Before(start) || at.After(start.Add(time.Second)) {
			t.Fatalf("record %s is of %v, the first one of %v", r.ID, at, start)
		}
	}
	expect.Not(t, len(lastOf) != 5, "records are of %d partitions", len(lastOf))
}

// TestTheGeneratorChangesNumbersAlone: a full record is one of the simulator with other
// positions, keys and times.
func TestTheGeneratorChangesNumbersAlone(t *testing.T) {
	numbers := regexp.MustCompile(`[0-9]{13,}|"id":"[0-9]+-[0-9]+"|[pP]osition":[0-9]+|order-[0-9]+`)
	deployed := []string{"PROCESS", "DEPLOYMENT", "DECISION", "DECISION_REQUIREMENTS"}
	n := 0
	g := load.NewGenerator(load.GeneratorConfig{Seed: 2, Envelope: load.FullEnvelope})
	for r := range simulator.New(load.BlockConfig).All() {
		if r.RecordType == "COMMAND" || slices.Contains(deployed, r.ValueType) {
			continue
		}
		got, _ := g.Next()
		if n++; n > 10_000 {
			break
		}
		if want, got := numbers.ReplaceAllString(string(r.JSON), "N"), numbers.ReplaceAllString(string(got.JSON), "N"); got != want {
			t.Fatalf("the simulator writes\n%s\nand the generator\n%s", want, got)
		}
	}
}

// TestInstancesOfTheGeneratorAreConsistent follows elements and jobs.
func TestInstancesOfTheGeneratorAreConsistent(t *testing.T) {
	g := load.NewGenerator(load.GeneratorConfig{Seed: 3})
	completed, jobs := 0, map[int64]string{} // job key → latest intent
	open := map[int64]string{}               // running element instances, by their instance
	orders := map[any]any{}                  // correlation key → instance
	for range turns {
		said, _ := g.Next()
		r := decode(t, said.JSON)
		instance := fmt.Sprint(r.Value["processInstanceKey"])
		switch r.ValueType + " " + r.Intent {
		case "PROCESS_INSTANCE ELEMENT_ACTIVATING":
			fatal.When(t, open[r.Key] != "", "element instance %d is entered twice", r.Key)
			open[r.Key] = instance
		case "PROCESS_INSTANCE ELEMENT_COMPLETED", "PROCESS_INSTANCE ELEMENT_TERMINATED":
			if open[r.Key] != instance {
				t.Fatalf("element instance %d of %s is left but was entered by %q", r.Key, instance, open[r.Key])
			}
			delete(open, r.Key)
			if r.Value["bpmnElementType"] == "PROCESS" {
				completed++
			}
		case "JOB CREATED":
			if _, again := jobs[r.Key]; again {
				t.Fatalf("job %d is created twice", r.Key)
			}
			jobs[r.Key] = r.Intent
		case "JOB COMPLETED", "JOB FAILED", "JOB TIMED_OUT":
			if before, ok := jobs[r.Key]; !ok || before == "COMPLETED" && r.RecordType == "EVENT" {
				t.Fatalf("job %d is %s after %q", r.Key, r.Intent, before)
			}
			jobs[r.Key] = r.Intent
		case "PROCESS_MESSAGE_SUBSCRIPTION CREATING":
			if before, again := orders[r.Value["correlationKey"]]; again {
				t.Fatalf("instances %v and %v wait for the same message", before, instance)
			}
			orders[r.Value["correlationKey"]] = instance
		}
	}
	expect.Not(t, completed < 300 || len(orders) < 20, "%d process instances ended, %d waited for messages", completed, len(orders))
}

func TestGeneratorRepeatsItselfForTheSameSeed(t *testing.T) {
	start := time.UnixMilli(1_763_701_200_000)
	write := func(seed uint64, batch int) []byte {
		g := load.NewGenerator(load.GeneratorConfig{Seed: seed, Start: start})
		var all []byte
		for n := 0; n < turns; n += batch {
			body, _ := load.AppendBatch(nil, g, batch)
			all = append(append(all, body[1:len(body)-1]...), ',')
		}
		return all
	}
	expect.Not(t, !bytes.Equal(write(1, 100), write(1, 300)), "the same seed gives other records in other batches")
	ids := map[string]bool{}
	for seed := range uint64(20) {
		g := load.NewGenerator(load.GeneratorConfig{Seed: seed, Start: start})
		for range 1000 {
			r, _ := g.Next()
			id := decode(t, r.JSON).ID
			fatal.When(t, ids[id], "id %s of seed %d was used by another seed", id, seed)
			ids[id] = true
		}
	}
}

func TestTheEnvelopeHasThePosition(t *testing.T) {
	for _, tt := range []struct {
		name     string
		envelope load.Envelope
		some     bool // records have partition and position
		others   bool // records have neither
	}{
		{"mixed", load.MixedEnvelopes, true, true},
		{"full", load.FullEnvelope, true, false},
		{"slim", load.SlimEnvelope, false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := load.NewGenerator(load.GeneratorConfig{Seed: 3, Envelope: tt.envelope, After: 1000})
			full, slim := 0, 0
			for range 20_000 {
				said, _ := g.Next()
				r := decode(t, said.JSON)
				switch {
				case said.Position <= 1000:
					t.Fatalf("position %d", said.Position)
				case r.PartitionID == said.Partition && r.Position == said.Position:
					full++
				case r.PartitionID == 0 && r.Position == 0:
					slim++
				default:
					t.Fatalf("record %s names partition %d and position %d", r.ID, r.PartitionID, r.Position)
				}
			}
			expect.Not(t, full > 0 != tt.some || slim > 0 != tt.others, "%d records name their position, %d do not", full, slim)
		})
	}
}

func TestBatchCountsItsRecords(t *testing.T) {
	g := load.NewGenerator(load.GeneratorConfig{Seed: 11})
	for _, n := range []int{1, 2, 500, 0, 37} {
		body, totals := load.AppendBatch(nil, g, n)
		var records []json.RawMessage
		fatal.If(t, json.Unmarshal(body, &records))
		var want load.Totals
		for _, raw := range records {
			r := decode(t, raw)
			var partition, position int64
			fmt.Sscanf(r.ID, "%d-%d", &partition, &position)
			want.Bytes += int64(len(raw))
			want.KeySum += uint64(r.Key)
			want.PositionSum += uint64(position)
		}
		if len(records) != n || totals.Records != int64(n) {
			t.Errorf("batch of %d holds %d records, totals say %d", n, len(records), totals.Records)
		}
		expect.Not(t, totals.Bytes != want.Bytes || totals.KeySum != want.KeySum || totals.PositionSum != want.PositionSum, "batch of %d adds up to %+v, totals say %+v", n, want, totals)
	}
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

func TestTheApiAcceptsEveryRecord(t *testing.T) {
	g := load.NewGenerator(load.GeneratorConfig{Seed: 21})
	for range 100 {
		body, totals := load.AppendBatch(nil, g, 500)
		request := record.NewRequest()
		fatal.If(t, request.Parse(body, record.FormAuto, record.Limits{}))
		if int64(request.Len()) != totals.Records || !request.AllIDs() || request.BadTimestamps() != 0 {
			t.Errorf("of %d records, %d were understood (all with ids: %t), %d with an odd timestamp",
				totals.Records, request.Len(), request.AllIDs(), request.BadTimestamps())
		}
		expect.Not(t, request.UnknownMembers() == 0, "no record has a member beyond the specification")
		request.Release()
	}
}
