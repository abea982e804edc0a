package api_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/api"
	"sluice/pkg/change"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/programtest"
)

// These make this test binary serve, or attack a server, instead of testing. The api's memory is
// then measured apart from its clients', and hostile clients do not delay good ones before the
// server.
const (
	serverOfItsOwn  = "API_TEST_SERVE"
	hostileOfItsOwn = "API_TEST_ATTACK" // the address

	quietMachine = "API_TEST_QUIET" // an idle machine: no allowance is made for other load, see make hostile
)

func TestMain(m *testing.M) {
	var err error
	switch {
	case os.Getenv(serverOfItsOwn) != "":
		err = serveUntilStdinEnds()
	case os.Getenv(hostileOfItsOwn) != "":
		err = attackFromStdin(os.Getenv(hostileOfItsOwn))
	default:
		os.Exit(m.Run())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// forgetful is a Stream that takes some time and stores nothing.
type forgetful struct{}

func (forgetful) Slots(context.Context, string) (int, error) { return 1, nil }

func (forgetful) Publish(context.Context, *flow.Submission) (flow.Receipt, error) {
	time.Sleep(5 * time.Millisecond)
	return flow.Receipt{}, nil
}

func serveUntilStdinEnds() error {
	debug.SetMemoryLimit(224 << 20) // as in the api program, for 256 MiB
	cfg := config()
	cfg.Drain = 100 * time.Millisecond // its last clients never end
	cfg.Connections, cfg.AddressConnections = 400, 200
	changes := newLedger()
	s, err := api.New(cfg, api.Deps{
		Auth: allSubjects, Stream: forgetful{}, Changes: changes, Last: changes, State: changes, Usage: changes, Dead: &letters{},
		Secrets: &change.Secrets{Key: bytes.Repeat([]byte("k"), 32)},
	}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
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
	_ = s.Run(ctx) // its error reports that endless bodies were cut off
	return nil
}

// process is another process of this test binary, started by the command before. It ends with its
// stdin, at the end of the test.
type process struct {
	t     *testing.T
	pid   int
	stdin io.Writer
	said  *bufio.Reader
}

func apart(t *testing.T, setting string, before ...string) *process {
	t.Helper()
	line := append(before, os.Args[0])
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Env = append(programtest.Environ(), setting)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	fatal.If(t, err)
	stdout, err := cmd.StdoutPipe()
	fatal.If(t, err)
	fatal.If(t, cmd.Start())
	t.Cleanup(func() {
		stdin.Close()
		_, _ = io.Copy(io.Discard, stdout)
		_ = cmd.Wait() // cut off amid endless bodies
	})
	return &process{t, cmd.Process.Pid, stdin, bufio.NewReader(stdout)}
}

// line is the next line of its output.
func (p *process) line() string {
	p.t.Helper()
	line, err := p.said.ReadString('\n')
	fatal.If(p.t, err)
	return strings.TrimSpace(line)
}

// attack starts another attack, and returns the answers to the previous one.
func (p *process) attack(name string) (answers string) {
	p.t.Helper()
	if _, err := fmt.Fprintln(p.stdin, name); err != nil {
		p.t.Fatal(err)
	}
	return p.line()
}

func serveApart(t *testing.T) (addr string, pid int) {
	t.Helper()
	server := apart(t, serverOfItsOwn+"=1")
	return server.line(), server.pid
}

// peakMemory is the largest resident size of a process, in MiB.
func peakMemory(t *testing.T, pid int) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	fatal.If(t, err)
	for line := range strings.Lines(string(status)) {
		var kib int
		if n, _ := fmt.Sscanf(line, "VmHWM: %d kB", &kib); n == 1 {
			return kib / 1024
		}
	}
	t.Fatal("no VmHWM in the status of the process")
	return 0
}

// TestNoClientStarvesOthers lets 64 clients post bodies of 16 MiB, bombs, endless
// bodies, false sizes, slow bodies and passwords, and hoard connections. Each attack runs alone,
// then all at once, repeatedly, while two clients post normally. The api's memory stays bounded,
// and those two keep their latency.
func TestNoClientStarvesOthers(t *testing.T) {
	addr, pid := serveApart(t)
	control, _ := serveApart(t) // not attacked: the baseline of the machine
	// In production hostile clients have their own machines. Where good posts get no allowance for
	// machine load, the attackers are niced: otherwise good posts would wait for clients that
	// build bodies.
	var before []string
	if os.Getenv(quietMachine) != "" {
		before = []string{"nice", "-n", "19"}
	}
	attacker := apart(t, hostileOfItsOwn+"="+addr, before...)
	length := 800 * time.Millisecond
	if os.Getenv(quietMachine) != "" {
		length = 1200 * time.Millisecond
	}
	var names []string
	for _, a := range newClient("127.0.0.1", addr, "").attacks() {
		names = append(names, a.name)
	}
	for _, name := range append(names, everyAttack) {
		attacker.attack(name)
		time.Sleep(300 * time.Millisecond) // all clients are attacking
		long, tries := length, 3
		if name == everyAttack {
			long, tries = 5*time.Second, 1
		}
		// Load of other programs passes; the api's delay stays.
		var missed string
		for range tries {
			beside, alone := postBeside(t, addr, control, long)
			if missed = hardlyNoticed(t, name, beside, alone); missed == "" {
				break
			}
		}
		expect.Not(t, missed != "", "%s: %s", name, missed)
	}
	answers := attacker.attack("none")
	t.Logf("answers to all at once: %s", answers)
	expect.Not(t, !strings.Contains(answers, "413:") || !strings.Contains(answers, "429:"), "the hostile clients did not reach the limits: %s", answers)
	peak := peakMemory(t, pid)
	t.Logf("peak %d MiB", peak)
	expect.Not(t, peak > 256, "the api took %d MiB, want at most 256", peak)
}

// goodPosts bounds the p99 of good posts, whatever others do.
const goodPosts = 25 * time.Millisecond

// hardlyNoticed describes an excess in the times of good posts beside an attack, relative to posts
// to the control. This test's clients share the CPUs; their cost is not the api's.
func hardlyNoticed(t *testing.T, name string, beside, alone []time.Duration) string {
	p99 := func(sorted []time.Duration) time.Duration { return sorted[len(sorted)*99/100] }
	t.Logf("%-26s %4d good posts beside it, p50 %6s, p99 %6s (%6s without an attack), max %6s", name,
		len(beside), ms(beside[len(beside)/2]), ms(p99(beside)), ms(p99(alone)), ms(beside[len(beside)-1]))
	ceiling, floor := goodPosts, 20
	if name == everyAttack { // longer than a single attack
		floor = 50
	}
	if os.Getenv(quietMachine) == "" {
		ceiling = max(ceiling, 4*p99(alone))
	}
	switch {
	case p99(beside) > ceiling:
		return fmt.Sprintf("p99 of good posts is %s, want at most %s", p99(beside), ceiling)
	case len(beside) < floor:
		return fmt.Sprintf("only %d good posts went through", len(beside))
	}
	return ""
}

func ms(d time.Duration) string { return fmt.Sprintf("%.1fms", float64(d)/float64(time.Millisecond)) }

// postBeside posts normally to an attacked server and to the control, and returns the sorted
// latencies.
func postBeside(t *testing.T, addr, control string, long time.Duration) (beside, alone []time.Duration) {
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	var both sync.WaitGroup
	both.Go(func() { beside = postAsOneShould(ctx, t, addr, "other") })
	both.Go(func() { alone = postAsOneShould(ctx, t, control, "other") })
	both.Wait()
	return beside, alone
}

// postAsOneShould posts batches of 100 KB from two clients until ctx ends, and returns the sorted
// latencies.
func postAsOneShould(ctx context.Context, t *testing.T, addr, token string) []time.Duration {
	c := newClient("127.0.0.3", addr, token)
	batch := scrambled(100_000)
	waits := make([][]time.Duration, 2)
	var wg sync.WaitGroup
	for i := range waits {
		wg.Go(func() {
			for ctx.Err() == nil {
				start := time.Now()
				status, err := c.post(context.Background(), strings.NewReader(batch), int64(len(batch)), "")
				expect.Not(t, err != nil || status != http.StatusOK, "a correct client got %d %v", status, err)
				waits[i] = append(waits[i], time.Since(start))
				time.Sleep(5 * time.Millisecond)
			}
		})
	}
	wg.Wait()
	return slices.Sorted(slices.Values(slices.Concat(waits...)))
}
