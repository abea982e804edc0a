package api_test

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sluice/pkg/fatal"
)

// TestSlowBodiesTakeNoMemoryFromOthers: an announced body takes no memory, and slow senders never
// hold so much that others wait.
func TestSlowBodiesTakeNoMemoryFromOthers(t *testing.T) {
	cfg := config()
	cfg.BodyBytes, cfg.RecordBytes, cfg.InFlightBytes = 4<<20, 1<<20, 16<<20
	d := newDoor(t, cfg)
	addr, _ := d.run(t)
	const clients, announced = 32, 1 << 19
	var cutOff atomic.Int32
	for range clients {
		conn, err := net.Dial("tcp", addr)
		fatal.If(t, err)
		t.Cleanup(func() { conn.Close() })
		go func() {
			fmt.Fprintf(conn, "%sContent-Length: %d\r\n\r\n[%s", head, announced, strings.Repeat(" ", announced/2))
			if _, err := conn.Read(make([]byte, 1)); err == nil {
				cutOff.Add(1)
			}
		}()
	}
	time.Sleep(150 * time.Millisecond) // they no longer count as new
	url := "http://" + addr + "/flow/flowRecord/batch"
	post := func(i int) {
		r := request(http.MethodPost, url, fmt.Sprintf(`{"id":"1-%d"}`, i)+strings.Repeat(" ", 100<<10))
		r.RequestURI = ""
		start := time.Now()
		resp, err := http.DefaultClient.Do(r)
		fatal.If(t, err)
		wantOK(t, resp)
		if took := time.Since(start); took > 250*time.Millisecond*slowdown {
			t.Errorf("post %d took %s beside slow ones", i, took)
		}
	}
	for i := range 50 {
		post(i)
	}
	eventually(t, "the slow hold at most half of the 8 MiB for small bodies", func() bool { post(50); return d.held(t) <= 4<<20 })
	if n := cutOff.Load(); n == 0 || n == clients {
		t.Errorf("%d of %d slow clients were cut off, want some", n, clients)
	}
}

// TestASubjectLeavesMemoryToOthers: however many and slow its posts are, another subject gets memory immediately.
func TestASubjectLeavesMemoryToOthers(t *testing.T) {
	cfg := config()
	cfg.BodyBytes, cfg.RecordBytes, cfg.InFlightBytes, cfg.InFlightWait = 4<<20, 1<<20, 16<<20, 5*time.Second
	d := newDoor(t, cfg)
	entered, free, proceed := d.block()
	answers := d.serveAll(40, `{"id":"1-1"}`+strings.Repeat(" ", 500<<10))
	// The subject may hold four fifths of 8 MiB for small bodies: 12 of half a MiB.
	eventually(t, "they hold their share", func() bool { return len(entered) == 12 })
	free.Store(true)
	start := time.Now()
	wantOK(t, d.serveOne(request(http.MethodPost, "/flow/flowRecord/batch", `{"id":"1-1"}`+strings.Repeat(" ", 500<<10), header("Authorization", "other"))))
	if took := time.Since(start); took > time.Second {
		t.Errorf("another subject waited %s", took)
	}
	proceed()
	for range cap(answers) {
		wantOK(t, <-answers)
	}
	eventually(t, "the memory is given back", func() bool { return d.held(t) == 0 })
}

// TestBodiesWithAFalseSizeStallNoOthers: they wait for more memory, without holding a decoder.
func TestBodiesWithAFalseSizeStallNoOthers(t *testing.T) {
	cfg := config()
	cfg.BodyBytes, cfg.RecordBytes, cfg.InFlightBytes, cfg.InFlightWait = 4<<20, 1<<20, 16<<20, 10*time.Second
	d := newDoor(t, cfg)
	entered, free, proceed := d.block()
	large := d.serveAll(2, `{"id":"1-1"}`+strings.Repeat(" ", 3<<20)) // all of the memory for large bodies
	eventually(t, "the large pool is full", func() bool { return len(entered) == 2 })
	free.Store(true)
	liars := d.serveAll(3, liar(gzipped(t, scrambled(3<<20))), header("Content-Encoding", "gzip"))
	time.Sleep(300 * time.Millisecond) // each is at its false end, and waits
	start := time.Now()
	wantOK(t, d.serveOne(request(http.MethodPost, "/flow/flowRecord/batch", gzipped(t, `[{"id":"1-2"}]`), header("Content-Encoding", "gzip"))))
	if took := time.Since(start); took > time.Second {
		t.Errorf("an honest body waited %s for a decoder", took)
	}
	proceed()
	for range 2 {
		wantOK(t, <-large)
	}
	for range 3 { // the checksum covers the size, so they are refused in the end
		wantProblem(t, <-liars, 400, "bad_compression")
	}
}

// TestHashingHoldsNoPlaceForDocuments: a document without passwords does not queue behind one with
// many.
func TestHashingHoldsNoPlaceForDocuments(t *testing.T) {
	cfg := config()
	cfg.Documents = 1
	d := newDoor(t, cfg)
	passwords := `{"projects":[` + strings.TrimSuffix(strings.Repeat(`{"password":"x"},`, 16), ",") + `]}`
	hashed := make(chan *http.Response, 1)
	go func() { hashed <- d.serveOne(request(http.MethodPatch, "/spm/login/current/user", passwords)) }()
	time.Sleep(50 * time.Millisecond) // hashing takes some 20 ms for each
	wantOK(t, d.serveOne(request(http.MethodPut, fieldPath("t", "f"), `{"name":"f"}`, header("Authorization", "other"))))
	select {
	case <-hashed:
		t.Error("the document was behind the passwords")
	default:
		wantOK(t, <-hashed)
	}
}

// TestASubjectsPasswordsLeaveRoomForOthers: at most two patches of a subject are hashed
// concurrently, so another subject's proceeds.
func TestASubjectsPasswordsLeaveRoomForOthers(t *testing.T) {
	d := newDoor(t, config())
	passwords := `{"projects":[` + strings.TrimSuffix(strings.Repeat(`{"password":"x"},`, 16), ",") + `]}`
	answers := make(chan *http.Response, 24)
	for range cap(answers) {
		go func() { answers <- d.serveOne(request(http.MethodPatch, "/spm/login/current/user", passwords)) }()
	}
	time.Sleep(50 * time.Millisecond) // they hash, or queue for it
	for range 3 {
		wantOK(t, d.serveOne(request(http.MethodPatch, "/spm/login/current/user", `{"password":"x"}`, header("Authorization", "other"))))
	}
	for range cap(answers) {
		if resp := <-answers; resp.StatusCode != http.StatusOK {
			wantProblem(t, resp, 429, "passwords_busy")
		}
	}
}
