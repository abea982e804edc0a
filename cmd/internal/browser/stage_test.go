// Package browser opens the console in a real browser, Debian's Chromium, and does
// what people do there: make browser. Nothing of it is skipped: what is missing
// fails. It is a module of its own, so that what drives the browser is no
// dependency of the product.
package browser

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// stage is one `sluice up` and one Chromium, which all tests share. Tests run one
// after the other, each in a tab of its own.
var stage struct {
	dir, sluice           string
	http, console, chHTTP string
	token, link           string
	up                    *exec.Cmd
	browser               context.Context
	out                   *os.File
	simulated             bool // records of a simulated engine are there
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
	if stage.dir, err = os.MkdirTemp("", "sluice-browser-"); err != nil {
		return 1, err
	}
	defer os.RemoveAll(stage.dir)
	if stage.sluice, err = filepath.Abs("../../../bin/sluice"); err != nil {
		return 1, err
	}
	if err := startUp(); err != nil {
		return 1, errors.Join(err, stopUp())
	}
	defer func() { err = errors.Join(err, stopUp()) }()
	stop, err := startChromium()
	if err != nil {
		return 1, err
	}
	defer stop()
	return m.Run(), nil
}

// address is one that no process listens on now.
func address() string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// startUp starts the product and waits until it works.
func startUp() error {
	data, ops := filepath.Join(stage.dir, "data"), address()
	stage.http, stage.console, stage.chHTTP = address(), address(), address()
	out, err := os.Create(filepath.Join(stage.dir, "up.log"))
	if err != nil {
		return err
	}
	stage.out = out
	stage.up = exec.Command(stage.sluice, "up", "--data", data, "--http", stage.http, "--ops", ops, "--nats", address(),
		"--clickhouse", address(), "--clickhouse-http", stage.chHTTP, "--console", stage.console)
	stage.up.Stdout, stage.up.Stderr = out, out
	stage.up.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := stage.up.Start(); err != nil {
		return fmt.Errorf("%w: make browser builds it", err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		res, err := http.Get("http://" + ops + "/readyz")
		if err == nil {
			res.Body.Close()
			if res.StatusCode == http.StatusOK {
				break
			}
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("sluice up is not ready: %v\n%s", err, said())
		}
	}
	link := regexp.MustCompile(`http://\S+/sign-in#once=\S+`)
	for deadline := time.Now().Add(10 * time.Second); stage.link == ""; time.Sleep(20 * time.Millisecond) {
		if stage.link = link.FindString(said()); stage.link == "" && time.Now().After(deadline) {
			return fmt.Errorf("sluice up prints no link to the console:\n%s", said())
		}
	}
	token, err := os.ReadFile(filepath.Join(data, "token"))
	stage.token = strings.TrimSpace(string(token))
	return err
}

// said is what the product has written.
func said() string {
	text, err := os.ReadFile(stage.out.Name())
	if err != nil {
		return err.Error()
	}
	return string(text)
}

func stopUp() error {
	if stage.up == nil || stage.up.Process == nil {
		return nil
	}
	if err := stage.up.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	if err := stage.up.Wait(); err != nil {
		return fmt.Errorf("sluice up: %w\n%s", err, said())
	}
	return nil
}

// startChromium starts the browser, which ends with the context.
func startChromium() (stop func(), err error) {
	path, err := exec.LookPath("chromium")
	if err != nil {
		return nil, fmt.Errorf("%w: apt-get install chromium", err)
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path), chromedp.UserDataDir(filepath.Join(stage.dir, "profile")),
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
	req, err := http.NewRequest(http.MethodPost, "http://"+stage.http+"/flow/flowRecord/batch", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+stage.token)
	req.Header.Set("Content-Type", "application/json")
	do(t, req)
}

// query asks ClickHouse as its admin.
func query(t *testing.T, sql string) string {
	t.Helper()
	password, err := os.ReadFile(filepath.Join(stage.dir, "data", "secrets", "clickhouse-admin"))
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequest(http.MethodPost, "http://"+stage.chHTTP+"/", strings.NewReader(sql))
	if err != nil {
		t.Fatal(err)
	}
	req.SetBasicAuth("admin", strings.TrimSpace(string(password)))
	return do(t, req)
}

func do(t *testing.T, req *http.Request) string {
	t.Helper()
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%s %s: %s %s %v", req.Method, req.URL, res.Status, body, err)
	}
	return strings.TrimSpace(string(body))
}

// load runs sluice load in the background, and stops it at the end of the test.
func load(t *testing.T, args ...string) {
	t.Helper()
	var out bytes.Buffer
	cmd := exec.Command(stage.sluice, append([]string{"load", "--url", "http://" + stage.http, "--token", stage.token}, args...)...)
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGINT) // it may have ended
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("sluice load: %s", out.String())
		}
	})
}

// engine is the process of ClickHouse, a child of sluice up.
func engine(t *testing.T) int {
	t.Helper()
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", stage.up.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", stage.up.Process.Pid))
	for _, thread := range threads {
		if more, err := os.ReadFile(thread); err == nil {
			children = append(append(children, ' '), more...)
		}
	}
	fields := strings.Fields(string(children))
	if len(fields) == 0 {
		t.Fatal("sluice up has no child")
	}
	pid, err := strconv.Atoi(fields[0])
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// eventually waits until what should happen has.
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
	b, _ := json.Marshal(text) // never fails of a string
	return string(b)
}
