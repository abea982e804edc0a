package browser

import (
	"io"
	"net"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/network"

	"sluice/pkg/fatal"
	"sluice/pkg/programtest"
)

// wire is what lies between the browser and the console, and can be cut.
type wire struct {
	t    *testing.T
	host string

	mu    sync.Mutex
	door  net.Listener
	conns []net.Conn
	all   sync.WaitGroup
}

func newWire(t *testing.T) *wire {
	w := &wire{t: t, host: programtest.Address()}
	w.mend()
	t.Cleanup(w.cut)
	return w
}

// mend lets connections through.
func (w *wire) mend() {
	w.t.Helper()
	door, err := net.Listen("tcp", w.host)
	fatal.If(w.t, err)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.door = door
	w.all.Go(func() {
		for {
			from, err := door.Accept()
			if err != nil {
				return // it was cut
			}
			to, err := net.Dial("tcp", stage.console)
			if err != nil {
				from.Close()
				continue
			}
			w.mu.Lock()
			w.conns = append(w.conns, from, to)
			w.mu.Unlock()
			w.all.Go(func() { _, _ = io.Copy(to, from); to.Close() })
			w.all.Go(func() { _, _ = io.Copy(from, to); from.Close() })
		}
	})
}

// cut ends all connections, and takes no new ones.
func (w *wire) cut() {
	w.mu.Lock()
	w.door.Close()
	for _, c := range w.conns {
		c.Close()
	}
	w.conns = nil
	w.mu.Unlock()
	w.all.Wait()
}

// TestALostConnectionIsTakenUpAgain: a page that follows something says when it
// cannot, goes on by itself, lets go while it is not seen, and asks for a sign-in when
// the console has forgotten.
func TestALostConnectionIsTakenUpAgain(t *testing.T) {
	w := newWire(t)
	tb := signedInAt(t, w.host)
	tb.expects = true // requests fail, which is no error of the page
	for path, live := range map[string]string{"/": "As of", "/records": "Live"} {
		tb.open(path)
		tb.shows(live)
		w.cut()
		tb.shows("The connection to the console is lost. Retrying")
		w.mend()
		tb.shows(live)
		for _, hidden := range []struct{ is, says string }{{"true", "Not updated while the page is hidden"}, {"false", live}} {
			if _, err := evaluate[int](tb, `Object.defineProperty(document, 'hidden', { value: `+hidden.is+`, configurable: true }); document.dispatchEvent(new Event('visibilitychange')); 0`); err != nil {
				t.Fatal(err)
			}
			tb.shows(hidden.says)
		}
	}
	tb.open("/records?type=JOB")
	tb.shows("Live")
	w.cut()
	call(tb, network.ClearBrowserCookies, cdp.Empty{})
	w.mend()
	tb.shows("Access token")
	tb.is("it comes back to the page", `document.querySelector('[name=next]').value === '/records?type=JOB'`)
}
