package endtoend

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sluice/pkg/fatal"
)

const mib = 1 << 20

// peak is the most memory the process ever had resident, in bytes.
func (p *process) peak() int64 {
	p.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
	if err != nil {
		p.t.Fatalf("the peak of memory is read from Linux's /proc: %v", err)
	}
	found := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(status)
	if found == nil {
		p.t.Fatalf("no VmHWM in:\n%s", status)
	}
	kb, err := strconv.ParseInt(string(found[1]), 10, 64)
	fatal.If(p.t, err)
	return kb << 10
}

// outcomes counts answers by status; 0 stands for none.
type outcomes struct {
	mu  sync.Mutex
	all map[int]int
}

// add counts an answer and returns how many have had its status.
func (o *outcomes) add(status int) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.all == nil {
		o.all = map[int]int{}
	}
	o.all[status]++
	return o.all[status]
}

func (o *outcomes) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return fmt.Sprint(o.all)
}

// hugeBody is records of about size bytes each, as many as total holds. Less
// than half of each does not shrink when it is compressed; the rest does.
func hugeBody(seed uint64, size, total int) []byte {
	rng := rand.New(rand.NewPCG(seed, 1))
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	body := []byte{'['}
	for i := 0; len(body)+size < total; i++ {
		if i > 0 {
			body = append(body, ',')
		}
		begun := len(body)
		body = fmt.Appendf(body, `{"id":"%d-%d","valueType":"JOB","value":{"errorMessage":"`, seed, i)
		for len(body) < begun+size*3/5 {
			body = append(body, "the same words again and again, "...)
		}
		for len(body) < begun+size-len(`"}}`) {
			body = append(body, letters[rng.IntN(len(letters))])
		}
		body = append(body, `"}}`...)
	}
	return append(body, ']')
}

func gzipped(t *testing.T, body []byte) []byte {
	t.Helper()
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := w.Write(body); err != nil {
		t.Fatal(err)
	}
	fatal.If(t, w.Close())
	return packed.Bytes()
}

// flood is many clients at once.
type flood struct {
	*stack
	ctx      context.Context
	client   *http.Client
	together sync.WaitGroup
}

// repeat posts again and again, from so many clients.
func (f *flood) repeat(clients int, pause time.Duration, encoding string, body func(client, turn int) io.Reader, sum *outcomes) {
	for n := range clients {
		f.together.Go(func() {
			for turn := 0; f.ctx.Err() == nil; turn++ {
				sum.add(f.once(encoding, body(n, turn)))
				select {
				case <-time.After(pause):
				case <-f.ctx.Done():
				}
			}
		})
	}
}

func (f *flood) once(encoding string, body io.Reader) int {
	req, err := http.NewRequestWithContext(f.ctx, http.MethodPost, "http://"+f.http+"/flow/flowRecord/batch", body)
	if err != nil {
		panic(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", f.token)
	if encoding != "" {
		req.Header.Set("Content-Encoding", encoding)
	}
	res, err := f.client.Do(req)
	if err != nil {
		return 0
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, res.Body)
	return res.StatusCode
}

// TestTheMemoryOfTheAPIIsBounded posts huge bodies and bombs at once: the api stays
// within --memory, and good clients are served. Slow ones: pkg/api.
func TestTheMemoryOfTheAPIIsBounded(t *testing.T) {
	const bound, lasting, wanted = 256 * mib, 7 * time.Second, 100
	s := newStack(t)
	s.startNATS()
	api := s.startAPI("--memory", strconv.Itoa(bound))
	s.waitReady(api, s.ops)
	before := api.peak()

	ctx, end := context.WithTimeout(t.Context(), 10*lasting)
	defer end()
	f := &flood{stack: s, ctx: ctx, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true}}}
	begun := time.Now()
	bodies := [][]byte{hugeBody(1, 1*mib, 16*mib), hugeBody(2, 400, 16*mib), hugeBody(3, 3*mib/2, 16*mib)}
	bombs := [][]byte{
		gzipped(t, bytes.Repeat([]byte(" "), 256*mib)), // 1000 times as much, and too much
		gzipped(t, slices.Concat([]byte(`{"id":"1","value":{"errorMessage":"`), bytes.Repeat([]byte("a"), 4*mib-100), []byte(`"}}`))),
		gzipped(t, bodies[0]),
	}
	var huge, bomb, good outcomes
	f.repeat(32, 100*time.Millisecond, "", func(n, turn int) io.Reader { return bytes.NewReader(bodies[(n+turn)%len(bodies)]) }, &huge)
	f.repeat(16, 100*time.Millisecond, "gzip", func(n, turn int) io.Reader { return bytes.NewReader(bombs[(n+turn)%len(bombs)]) }, &bomb)

	var worst atomic.Int64
	for n := range 4 {
		f.together.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				began := time.Now()
				status := f.once("", bytes.NewReader(hugeBody(uint64(1000+100_000*n+i), 300, 20_000)))
				if ctx.Err() == nil {
					if good.add(status) >= wanted && time.Since(begun) > lasting {
						end()
					}
					worst.Store(max(worst.Load(), int64(time.Since(began))))
				}
				time.Sleep(20 * time.Millisecond)
			}
		})
	}
	f.together.Wait()

	t.Logf("peak %d MiB (%d before), huge %v, bombs %v, well-behaved %v, the slowest of those %v",
		api.peak()/mib, before/mib, &huge, &bomb, &good, time.Duration(worst.Load()))
	if got := api.peak(); got > bound {
		t.Errorf("the api took %d MiB at its peak, want at most %d", got/mib, bound/mib)
	}
	if good.all[http.StatusOK] < wanted || len(good.all) > 1 {
		t.Errorf("well-behaved clients were answered %v, want at least %d OK and nothing else", &good, wanted)
	}
	if huge.all[http.StatusOK] == 0 || bomb.all[http.StatusRequestEntityTooLarge] == 0 {
		t.Errorf("huge bodies were answered %v and bombs %v: the flood has shown nothing", &huge, &bomb)
	}
}

// TestTheMemoryOfTheIngesterIsBounded: huge records gather while ClickHouse
// stands still, and then a long backlog is drained.
func TestTheMemoryOfTheIngesterIsBounded(t *testing.T) {
	const bound = 512 * mib
	s := newStack(t)
	_, engine, _, ingester := s.apart()
	before := ingester.peak()

	engine.signal(syscall.SIGSTOP)
	posted := 0
	for seed := range uint64(20) {
		size := []int{4*mib - 200, 1 * mib, 400}[seed%3]
		body := hugeBody(seed, size, 15*mib)
		body = bytes.ReplaceAll(body, []byte(`"errorMessage":"`), []byte([]string{`"errorMessage":"`, `"variables":"`, `"unknown":"`, `"customHeaders":"`}[seed%4]))
		eventually(t, 10*time.Second, func() error { return wantOK(s.post(body)) })
		posted += bytes.Count(body, []byte(`{"id"`))
	}
	paused := ingester.peak()
	engine.signal(syscall.SIGCONT)
	s.eventuallyQuery(60*time.Second, "SELECT count(), uniqExact(id) FROM flow.records", fmt.Sprintf("%d\t%d", posted, posted))

	t.Logf("peak %d MiB, %d while ClickHouse stood still, %d before; %d records", ingester.peak()/mib, paused/mib, before/mib, posted)
	if got := ingester.peak(); got > bound {
		t.Errorf("the ingester took %d MiB at its peak, want at most %d", got/mib, bound/mib)
	}
}
