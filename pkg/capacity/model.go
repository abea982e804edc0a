package capacity

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
)

// Cost is the CPU cost of a process, in core-seconds.
type Cost struct {
	Record  float64 `json:"record"`
	Request float64 `json:"request"`
	Entry   float64 `json:"entry"`
	Block   float64 `json:"block"`
	Second  float64 `json:"second"` // idle cost of each process; of ClickHouse, including the queries of the bench
}

// Model is the model fitted to the points.
type Model struct {
	Costs    map[string]Cost `json:"costs"`
	Publish  float64         `json:"publish_seconds"` // shortest interval of entries of one api and lane
	Lane     float64         `json:"lane_rate"`       // records per second of one lane, on the bench's machine
	Streamed []Streamed      `json:"streamed"`        // log bytes per record, by request size
	Bytes    float64         `json:"record_bytes"`    // of a record as JSON
	Measured Measured        `json:"-"`
}

// Streamed is the log bytes per record at a request size: small requests share less and
// compress worse.
type Streamed struct {
	Batch float64 `json:"batch"`
	Bytes float64 `json:"bytes"`
}

// A lane closes a block at this age, at half of it if its ingester has no other lane, or
// when it is full: by default of these rows, which --memory limits (--block-age and --block-rows).
const (
	blockAge  = 0.5 // seconds
	blockRows = 200_000
	maxRows   = 400_000 // of records of usual size, in the largest block of one deduplication token
)

// inBlock is the row limit of a block this many times the default size.
func inBlock(times float64) float64 { return min(blockRows*times, maxRows) }

// shares are the cost shares that each process may have.
var shares = map[string][5]bool{ // record, request, entry, block, second
	API:      {true, true, true, false, true},
	NATS:     {true, false, true, false, true},
	Ingester: {true, true, true, true, true}, // each request is decoded separately
	Engine:   {true, false, false, true, true},
	Load:     {true, true, false, false, false},
}

// Fit fits a Model to the points.
func Fit(m Measured) (Model, error) {
	model := Model{Costs: map[string]Cost{}, Publish: math.Inf(1), Measured: m}
	var records, bytes float64
	streamed := map[int]Point{} // by records per request
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
			return model, fmt.Errorf("%d points measure %s: at least 4 are needed", len(rows), process)
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
		} else if gathered > 1.05 { // less may be noise
			model.Publish = min(model.Publish, math.Sqrt(gathered*gathered-1)*p.Seconds/p.Requests)
		}
	}
	for _, batch := range slices.Sorted(maps.Keys(streamed)) {
		sum := streamed[batch]
		model.Streamed = append(model.Streamed, Streamed{float64(batch), sum.Streamed / sum.Records})
	}
	if m.Lane <= 0 || math.IsInf(model.Publish, 1) {
		return model, errors.New("no point measures the highest rate")
	}
	model.Lane, model.Bytes = m.Lane, bytes/records
	return model, nil
}

func (p Point) counts() [5]float64 {
	return [5]float64{p.Records, p.Requests, p.Entries, p.Blocks, p.Seconds}
}

// Max sets the highest measured rate.
func (m *Measured) Max() {
	for _, p := range m.Points {
		if p.Rate == 0 {
			m.Lane = max(m.Lane, p.Records/p.Seconds)
		}
	}
}

// leastSquares fits non-negative shares that minimize the relative error of the sums.
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

// load is the work of an installation per second.
type load struct {
	records, requests, entries, blocks float64
}

// of is the cores that this many processes use for a load.
func (c Cost) of(l load, processes int) float64 {
	return c.Record*l.records + c.Request*l.requests + c.Entry*l.entries + c.Block*l.blocks + c.Second*float64(processes)
}

// streamed is the log bytes per record, interpolated between measured request sizes by the
// logarithm of the size.
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

// entries is the entries per second of one api and lane: one per request while requests are
// far apart, else one per publish time.
func (m Model) entries(requests float64) float64 {
	return requests / math.Sqrt(1+math.Pow(requests*m.Publish, 2))
}

// blocks is the blocks per second of a lane whose blocks are this many times the default age
// and size.
func blocks(records float64, alone bool, times float64) float64 {
	slowest := 1 / (blockAge * times)
	if alone {
		slowest *= 2
	}
	return max(slowest, records/inBlock(times))
}
