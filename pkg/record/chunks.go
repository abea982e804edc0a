package record

import (
	"cmp"
	"slices"

	"github.com/klauspost/compress/s2"
	"github.com/zeebo/xxh3"

	"sluice/pkg/flow"
)

// maxPlainBytes bounds a chunk before compression, and so the memory of its writer and
// readers: records often shrink to a tenth. A larger record is a chunk alone.
const maxPlainBytes = 1 << 20

// maxChunkRows bounds the rows of a chunk: tiny records take more memory as columns than as JSON.
const maxChunkRows = 16 << 10

// Cut appends the records to dst as chunks for a source with this many lanes: the columns
// of whole records, by lane and in order, compressed with S2. A body is at
// most target bytes, unless it holds a single record. Equal requests yield equal chunks.
// They belong to r and are valid until the next Cut, Parse, or Release. The error is a
// *LimitError: a record does not fit even alone.
func (r *Request) Cut(target, lanes int, dst []flow.Chunk) ([]flow.Chunk, error) {
	r.takeWorkspace()
	defer r.returnWorkspace()
	r.used, r.lanes = 0, uint64(max(1, lanes))
	r.byLane()
	guess := maxPlainBytes // estimated bytes of records per chunk
	for from := 0; from < len(r.records); {
		list := r.records[from:]
		to := r.upTo(list, guess)
		chunk := r.chunk(from, from+to)
		for len(chunk.Body) > target && to > 1 {
			r.used--
			guess = shrink(list[:to], len(chunk.Body), target)
			to = min(to-1, r.upTo(list, guess))
			chunk = r.chunk(from, from+to)
		}
		if len(chunk.Body) > flow.MaxChunkBytes || len(r.joined) > maxMessageBytes {
			return dst, &LimitError{Code: CodeRecordTooLarge, Index: int(list[0].index), Limit: flow.MaxChunkBytes, Detail: details[CodeRecordTooLarge] + ", even compressed"}
		}
		dst = append(dst, chunk)
		from += to
	}
	return dst, nil
}

// posted is a record of a request: its span in the body, and its route to a lane.
type posted struct {
	span
	route uint64
	index uint32 // in the body, excluded records counted
	rule  uint16 // that excludes it, counted from 1; 0: none
}

func (s span) size() int { return int(s.end - s.start) }

// laneOf is the index of a record's lane in the list of its source.
func (r *Request) laneOf(p posted) int { return int(p.route % r.lanes) }

// byLane sorts the records and their rows by lane.
func (r *Request) byLane() {
	sorted := func(a, b posted) int { return cmp.Or(r.laneOf(a)-r.laneOf(b), int(a.index)-int(b.index)) }
	if slices.IsSortedFunc(r.records, sorted) { // an exporter's request is of one partition
		return
	}
	order, before := make([]int, len(r.records)), slices.Clone(r.records)
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int { return sorted(before[i], before[j]) })
	for i, from := range order {
		r.records[i] = before[from]
	}
	if !r.again {
		r.columns.Arrange(order)
	}
}

// remake recreates the rows, for these records only.
func (r *Request) remake(records []posted) {
	w := r.walker()
	r.columns.Reset()
	for _, one := range records {
		w.until = 0
		r.row(int(one.start), w.record(int(one.start), deepest))
	}
	w.masked = w.masked[:0]
	r.columns.fill(new(flow.Message))
}

// route decides the lane of the record just read, from the record alone: it goes to
// list[route mod length] of its source's lanes. It is the partition where the record is
// identified by position, else the hash of its id, else 0.
func (w *walker) route() uint64 {
	const maxPartition, end = 8191, 4_102_444_800_000 // of Camunda's partitions, and of 2099 in ms
	partition, code := w.integer(w.get(fieldPartitionID))
	if code == "" && partition >= 1 && partition <= maxPartition {
		position, code := w.integer(w.get(fieldPosition))
		if ms, wrong := w.time(w.get(fieldTimestamp)); code == "" && position >= 1 && wrong == "" && ms >= earliest && ms < end {
			return uint64(partition)
		}
	}
	if id := w.text(w.get(fieldID)); len(id) > 0 {
		return xxh3.Hash(id)
	}
	return 0
}

// LaneOf is the lane index that Cut would choose for one record; 0 if it cannot be read.
func LaneOf(raw []byte, lanes int) int {
	var w walker
	w.b = raw
	i := w.space(0)
	if lanes <= 1 || i == len(raw) || raw[i] != '{' || w.record(i, deepest) < 0 {
		return 0
	}
	return int(w.route() % uint64(lanes))
}

// upTo returns how many leading records of the list, all of one lane, fit in n bytes; at
// least one.
func (r *Request) upTo(list []posted, n int) int {
	to, lane := 1, r.laneOf(list[0])
	n -= list[0].size() + len("[]")
	for ; to < min(len(list), maxChunkRows); to++ {
		if n -= list[to].size() + len(","); n < 0 || r.laneOf(list[to]) != lane {
			break
		}
	}
	return to
}

// shrink returns how many bytes of records to try next, after these became encoded
// bytes: slightly less than fits at the same ratio.
func shrink(list []posted, encoded, target int) int {
	plain := 0
	for _, p := range list {
		plain += p.size() + len(",")
	}
	return int(int64(plain) * int64(target) / int64(encoded) * 15 / 16)
}

// chunk encodes the records from to to-1, of one lane.
func (r *Request) chunk(from, to int) flow.Chunk {
	if r.again {
		r.remake(r.records[from:to])
		r.joined = r.columns.encode(r.joined[:0], 0, to-from)
	} else {
		r.joined = r.columns.encode(r.joined[:0], from, to)
	}
	if room := s2.MaxEncodedLen(len(r.joined)); cap(r.encoded) < room {
		r.encoded = make([]byte, room)
	}
	body := s2.Encode(r.encoded[:cap(r.encoded)], r.joined)
	if r.used == len(r.bodies) {
		r.bodies = append(r.bodies, nil)
	}
	r.bodies[r.used] = append(r.bodies[r.used][:0], body...)
	r.used++
	return flow.Chunk{Body: r.bodies[r.used-1], Encoding: flow.EncodingColumns, Records: to - from, Lane: r.laneOf(r.records[from])}
}
