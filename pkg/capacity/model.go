package capacity

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
)

// Cost is what a process spends, in core-seconds.
type Cost struct {
	Record  float64 `json:"record"`
	Request float64 `json:"request"`
	Entry   float64 `json:"entry"`
	Block   float64 `json:"block"`
	Second  float64 `json:"second"` // of each process, whatever happens; of ClickHouse, the questions of the bench are in it
}

// Model is what follows from the points that were measured.
type Model struct {
	Costs    map[string]Cost `json:"costs"`
	Publish  float64         `json:"publish_seconds"` // from an entry to the next one of the same api and lane, at least
	Lane     float64         `json:"lane_rate"`       // records per second of one lane, on the machine of the bench with all else
	Streamed []Streamed      `json:"streamed"`        // what a record takes in the log, by the size of requests
	Bytes    float64         `json:"record_bytes"`    // of a record as JSON
	Measured Measured        `json:"-"`
}

// Streamed is what a record takes in the log when requests have so many: what few
// records have in common is not told once for many, and compresses worse.
type Streamed struct {
	Batch float64 `json:"batch"`
	Bytes float64 `json:"bytes"`
}

// A lane closes a block at this age, at half of it when its ingester has no other,
// or when it is full, unless the ingester is told otherwise (--block-age and
// --block-rows).
const (
	blockAge  = 0.5 // seconds
	blockRows = 200_000
	mostRows  = 400_000 // of records of usual size, in the most memory that one token of ClickHouse covers
)

// inBlock is how many rows a block has at most that is so many times as large as by default.
func inBlock(times float64) float64 { return min(blockRows*times, mostRows) }

// shares are the things that a process can spend its time on.
var shares = map[string][5]bool{ // record, request, entry, block, second
	API:      {true, true, true, false, true},
	NATS:     {true, false, true, false, true},
	Ingester: {true, true, true, true, true}, // the records of each request are decoded by themselves
	Engine:   {true, false, false, true, true},
	Load:     {true, true, false, false, false},
}

// Fit makes the model of the points.
func Fit(m Measured) (Model, error) {
	model := Model{Costs: map[string]Cost{}, Publish: math.Inf(1), Measured: m}
	var records, bytes float64
	streamed := map[int]Point{} // by what requests had
	for process, can := range shares {
		var rows [][5]float64
		var spent []float64
		for _, p := range m.Points {
			if p.CPU[process] > 0 {
				rows = append(rows, p.counts())
				spent = append(spent, p.CPU[process])
			}
		}
		if len(rows) < 4 {
			return model, fmt.Errorf("%d points say what %s costs, at least 4 are needed", len(rows), process)
		}
		model.Costs[process] = leastSquares(rows, spent, can)
	}
	for _, p := range m.Points {
		records, bytes = records+p.Records, bytes+p.Bytes
		sum := streamed[p.Batch]
		sum.Records, sum.Streamed = sum.Records+p.Records, sum.Streamed+p.Streamed
		streamed[p.Batch] = sum
		if gathered := p.Requests / p.Entries; p.Rate == 0 {
			model.Publish = min(model.Publish, p.Seconds/p.Entries)
		} else if gathered > 1.05 { // less may be chance
			model.Publish = min(model.Publish, math.Sqrt(gathered*gathered-1)*p.Seconds/p.Requests)
		}
	}
	for _, batch := range slices.Sorted(maps.Keys(streamed)) {
		sum := streamed[batch]
		model.Streamed = append(model.Streamed, Streamed{float64(batch), sum.Streamed / sum.Records})
	}
	if m.Lane <= 0 || math.IsInf(model.Publish, 1) {
		return model, errors.New("no point says how much goes in at most")
	}
	model.Lane, model.Bytes = m.Lane, bytes/records
	return model, nil
}

func (p Point) counts() [5]float64 {
	return [5]float64{p.Records, p.Requests, p.Entries, p.Blocks, p.Seconds}
}

// Most notes how much went in at most.
func (m *Measured) Most() {
	for _, p := range m.Points {
		if p.Rate == 0 {
			m.Lane = max(m.Lane, p.Records/p.Seconds)
		}
	}
}

// leastSquares finds the shares, none below zero, whose sums come nearest to what
// was spent, by its relative error.
func leastSquares(rows [][5]float64, spent []float64, can [5]bool) Cost {
	var x [5]float64
	const rounds = 20_000
	for range rounds {
		for j := range x {
			if !can[j] {
				continue
			}
			var up, down float64
			for i, row := range rows {
				rest := 1.0
				for k := range x {
					if k != j {
						rest -= row[k] / spent[i] * x[k]
					}
				}
				a := row[j] / spent[i]
				up, down = up+a*rest, down+a*a
			}
			if down > 0 {
				x[j] = max(0, up/down)
			}
		}
	}
	return Cost{Record: x[0], Request: x[1], Entry: x[2], Block: x[3], Second: x[4]}
}

// load is what goes through an installation in a second.
type load struct {
	records, requests, entries, blocks float64
}

// of is what so many processes spend on it together, in cores.
func (c Cost) of(l load, processes int) float64 {
	return c.Record*l.records + c.Request*l.requests + c.Entry*l.entries + c.Block*l.blocks + c.Second*float64(processes)
}

// streamed is what a record takes in the log: between two sizes of requests that were
// measured it changes with the logarithm of the size.
func (m Model) streamed(batch int) float64 {
	b := float64(batch)
	for i, next := range m.Streamed {
		switch {
		case b > next.Batch:
		case i == 0:
			return next.Bytes
		default:
			before := m.Streamed[i-1]
			return before.Bytes + (next.Bytes-before.Bytes)*math.Log(b/before.Batch)/math.Log(next.Batch/before.Batch)
		}
	}
	return m.Streamed[len(m.Streamed)-1].Bytes
}

// entries is how many entries an api makes for a lane in a second of so many
// requests: each its own while they are far apart; else what comes while an entry
// is on its way goes into the next.
func (m Model) entries(requests float64) float64 {
	return requests / math.Sqrt(1+math.Pow(requests*m.Publish, 2))
}

// blocks is how many blocks a lane makes in a second, which are so many times as old
// and as large as they are by default.
func blocks(records float64, alone bool, times float64) float64 {
	slowest := 1 / (blockAge * times)
	if alone {
		slowest *= 2
	}
	return max(slowest, records/inBlock(times))
}
