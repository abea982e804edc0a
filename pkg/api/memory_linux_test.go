package api_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/api"
	"sluice/pkg/record"
)

// serverOfItsOwn makes this test binary serve instead of testing, so that the
// memory of the api can be told from that of its clients.
const serverOfItsOwn = "API_TEST_SERVE"

func TestMain(m *testing.M) {
	if os.Getenv(serverOfItsOwn) == "" {
		os.Exit(m.Run())
	}
	if err := serveUntilStdinEnds(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// forgetful is a Stream that takes some time and keeps nothing.
type forgetful struct{}

func (forgetful) Publish(context.Context, *record.Submission) (record.Receipt, error) {
	time.Sleep(5 * time.Millisecond)
	return record.Receipt{}, nil
}

func serveUntilStdinEnds() error {
	cfg := config()
	cfg.Drain = 100 * time.Millisecond // its last clients never end
	s, err := api.New(cfg, api.Deps{Auth: everyone, Stream: forgetful{}}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		return err
	}
	addr, err := s.Listen()
	if err != nil {
		return err
	}
	fmt.Println(addr)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	_ = s.Run(ctx) // says that bodies that never end were cut off
	return nil
}

// serveApart starts the api in a process of its own.
func serveApart(t *testing.T) (addr string, pid int) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), serverOfItsOwn+"=1")
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stdin.Close()
		_ = cmd.Wait() // cut off in the middle of bodies that never end
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(line), cmd.Process.Pid
}

// peakMemory reads the largest resident size a process ever had, in MiB.
func peakMemory(t *testing.T, pid int) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		var kib int
		if n, _ := fmt.Sscanf(line, "VmHWM: %d kB", &kib); n == 1 {
			return kib / 1024
		}
	}
	t.Fatal("no VmHWM in the status of the process")
	return 0
}

// TestMemoryIsBoundedWhateverClientsDo lets 64 clients post bodies of 16 MiB,
// bombs and bodies that never end, all at once, over and over, while two
// clients post as they should.
func TestMemoryIsBoundedWhateverClientsDo(t *testing.T) {
	addr, pid := serveApart(t)
	url := "http://" + addr + "/flow/flowRecord/batch"
	huge := scrambled(16 << 20)
	gzipBomb, zstdBomb := gzipped(t, strings.Repeat(" ", 16<<20)), zstded(t, strings.Repeat(" ", 16<<20))
	dense := gzipped(t, huge)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100}, Timeout: time.Minute}
	send := func(ctx context.Context, body io.Reader, length int64, encoding string) (int, error) {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, body)
		if err != nil {
			return 0, err
		}
		r.ContentLength = length
		r.Header.Set("Authorization", "engine")
		r.Header.Set("Content-Encoding", encoding)
		resp, err := client.Do(r)
		if err != nil {
			return 0, err
		}
		defer resp.Body.Close()
		_, err = io.Copy(io.Discard, resp.Body)
		return resp.StatusCode, err
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	attacks := []func() (int, error){
		func() (int, error) { return send(ctx, strings.NewReader(huge), int64(len(huge)), "") },
		func() (int, error) { return send(ctx, strings.NewReader(huge), -1, "") },
		func() (int, error) { return send(ctx, strings.NewReader(dense), int64(len(dense)), "gzip") },
		func() (int, error) { return send(ctx, strings.NewReader(gzipBomb), int64(len(gzipBomb)), "gzip") },
		func() (int, error) { return send(ctx, strings.NewReader(zstdBomb), int64(len(zstdBomb)), "zstd") },
		func() (int, error) { return send(ctx, endless{}, -1, "") },
		func() (int, error) { return send(ctx, endless{200 * time.Microsecond}, -1, "") },
		func() (int, error) { return 0, sayAndWait(ctx, addr) },
	}
	var answers [600]atomic.Int64
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			for ctx.Err() == nil {
				if status, err := attacks[i%len(attacks)](); err == nil {
					answers[status].Add(1)
				}
			}
		})
	}
	waits := make([][]time.Duration, 2)
	for i := range waits {
		wg.Go(func() {
			batch := scrambled(100_000)
			for ctx.Err() == nil {
				start := time.Now()
				status, err := send(context.Background(), strings.NewReader(batch), int64(len(batch)), "")
				if err != nil || status != http.StatusOK {
					t.Errorf("a client that does as it should got %d %v", status, err)
				}
				waits[i] = append(waits[i], time.Since(start))
			}
		})
	}
	wg.Wait()
	all := slices.Sorted(slices.Values(slices.Concat(waits...)))
	peak := peakMemory(t, pid)
	t.Logf("peak %d MiB; %d good posts beside it, p50 %s, p99 %s, max %s; hostile ones answered 200: %d, 413: %d, 429: %d",
		peak, len(all), all[len(all)/2], all[len(all)*99/100], all[len(all)-1], answers[200].Load(), answers[413].Load(), answers[429].Load())
	if peak > 256*slowdown {
		t.Errorf("the api took %d MiB, want at most %d", peak, 256*slowdown)
	}
	if len(all) < 50/slowdown {
		t.Errorf("only %d good posts went through beside the hostile ones", len(all))
	}
	if answers[413].Load()+answers[429].Load() == 0 {
		t.Error("the hostile clients did not come up against the limits")
	}
}

// endless is a body that never ends, with a pause between its pieces.
type endless struct{ pause time.Duration }

func (e endless) Read(b []byte) (int, error) {
	time.Sleep(e.pause)
	n := min(len(b), 4096)
	for i := range n {
		b[i] = ' '
	}
	return n, nil
}

// sayAndWait announces a body of 16 MiB and sends only its beginning.
func sayAndWait(ctx context.Context, addr string) error {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	fmt.Fprintf(conn, "%sContent-Length: %d\r\n\r\n[", head, 16<<20)
	_, err = io.Copy(io.Discard, conn)
	return err
}
