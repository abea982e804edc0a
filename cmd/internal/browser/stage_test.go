// Package browser tests the console in a real browser, Debian's Chromium: make browser. No
// test is skipped; without the browser they fail. It is a module of its own, so that the
// browser's driver is no dependency of the product.
package browser

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"sluice/cmd/internal/deployment"
	"sluice/pkg/fatal"
	"sluice/pkg/programtest"
)

// stage is one `sluice up` and one Chromium for all tests. Tests run sequentially, each in
// a tab of its own.
var stage struct {
	*deployment.Deployment
	console, link string
	browser       context.Context
	simulated     bool // records of a simulated engine are stored
}

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		log.Println("browser:", err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	dir, err := os.MkdirTemp("", "sluice-browser-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir)
	stage.Deployment, err = deployment.Start(context.Background(), deployment.Config{Bin: "../../../.cache/programs/plain", Dir: dir, Up: true})
	if err != nil {
		return 1, fmt.Errorf("%w: make browser builds it", err)
	}
	defer func() { err = errors.Join(err, stage.Stop()) }()
	up := stage.Process(deployment.Up)
	stage.console = up.HTTP
	link := regexp.MustCompile(`http://\S+/sign-in#once=\S+`)
	for deadline := time.Now().Add(10 * time.Second); stage.link == ""; time.Sleep(20 * time.Millisecond) {
		if stage.link = link.FindString(up.Output()); stage.link == "" && time.Now().After(deadline) {
			return 1, fmt.Errorf("sluice up prints no link to the console:\n%s", up.Output())
		}
	}
	stop, err := startChromium()
	if err != nil {
		return 1, err
	}
	defer stop()
	return m.Run(), nil
}

// startChromium starts the browser, which ends with the context.
func startChromium() (stop func(), err error) {
	path, err := exec.LookPath("chromium")
	if err != nil {
		return nil, fmt.Errorf("%w: apt-get install chromium", err)
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path), chromedp.UserDataDir(filepath.Join(stage.Dir, "profile")),
		chromedp.WindowSize(1280, 800), chromedp.Flag("lang", "en-GB"), chromedp.Env("TZ=Europe/Berlin"))
	if os.Getuid() == 0 {
		options = append(options, chromedp.NoSandbox) // Chromium's sandbox needs another user
	}
	allocator, end := chromedp.NewExecAllocator(context.Background(), options...)
	browser, cancel := chromedp.NewContext(allocator, chromedp.WithErrorf(log.Printf))
	stage.browser = browser
	if err := chromedp.Do(browser); err != nil {
		end()
		return nil, fmt.Errorf("start Chromium: %w", err)
	}
	return func() {
		_ = chromedp.Cancel(browser) // waits for its end
		cancel()
		end()
	}, nil
}

// post sends records to the api.
func post(t *testing.T, body string) {
	t.Helper()
	fatal.If(t, postAs(stage.Token, body, http.StatusOK))
}

// postAs posts records, one per line or as an array, with a token, and waits until they
// are stored. A status other than the wanted one is an error.
func postAs(token, body string, status int) error {
	req, err := http.NewRequest(http.MethodPost, stage.URL+"/flow/flowRecord/batch?wait=stored", strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header = http.Header{"Authorization": {token}, "Content-Type": {"application/json"}}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if said, err := io.ReadAll(res.Body); err != nil || res.StatusCode != status {
		return fmt.Errorf("%s %s: %s %s %v, want %d", req.Method, req.URL, res.Status, said, err, status)
	}
	return nil
}

// query queries ClickHouse as admin.
func query(t *testing.T, sql string) string {
	t.Helper()
	answer, err := stage.Query(t.Context(), sql)
	fatal.If(t, err)
	return answer
}

// load runs sluice load in the background, and stops it at the end of the test.
func load(t *testing.T, args ...string) {
	t.Helper()
	p := programtest.New(t.TempDir(), "load", filepath.Join(stage.Bin, "sluice"), append([]string{"load", "--url", stage.URL, "--token", stage.Token}, args...)...)
	fatal.If(t, p.Start())
	t.Cleanup(func() {
		p.Kill() // it may have ended
		p.ShowIfFailed(t)
	})
}

// eventually retries a check until it succeeds.
func eventually(t *testing.T, limit time.Duration, what func() error) {
	t.Helper()
	for deadline := time.Now().Add(limit); ; time.Sleep(50 * time.Millisecond) {
		err := what()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

func quoted(text string) string {
	b, _ := json.Marshal(text) // cannot fail
	return string(b)
}
