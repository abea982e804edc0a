package deployment

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"sluice/pkg/programtest"
)

type Process struct {
	*programtest.Process
	Kind string // such as API

	// Address is for programs: NATS's clients, the engine's native protocol. HTTP is that
	// of the api, the console, the engine, or NATS's monitoring. Elastic is the api's
	// listener for Camunda's exporters.
	Address, HTTP, Elastic string

	Data string // empty without data
}

// Sluice runs a command in the deployment's folder: elsewhere it would use the passwords of
// another installation's ./data. The error includes its log.
func (d *Deployment) Sluice(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(d.Bin, "sluice"), args...)
	cmd.Dir, cmd.Env = d.Dir, programtest.Environ()
	if d.Clocks {
		cmd.Env = d.withClock(Operator)
	}
	var log strings.Builder
	cmd.Stderr = &log
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("sluice %s: %w\n%s%s", strings.Join(args, " "), err, out, log.String())
	}
	return strings.TrimSpace(string(out)), err
}

func (d *Deployment) Verify(ctx context.Context, options ...string) (string, error) {
	return d.Sluice(ctx, append([]string{"verify", "--deep", "--nats", d.NATSURL, "--clickhouse", d.ClickHouse()}, options...)...)
}

// Query queries the engine over HTTP, with `sluice up` as user admin. The answer is
// TabSeparated.
func (d *Deployment) Query(ctx context.Context, sql string) (string, error) {
	user, password := "", ""
	if d.Up { // it generated a password
		secret, err := os.ReadFile(d.path("data/secrets/clickhouse-admin"))
		if err != nil {
			return "", err
		}
		user, password = "admin", strings.TrimSpace(string(secret))
	}
	return Ask(ctx, "http://"+d.HTTP+"/", user, password, sql)
}

func (d *Deployment) Exec(ctx context.Context, sql string) error {
	_, err := d.Query(ctx, sql)
	return err
}

func (d *Deployment) Number(ctx context.Context, sql string) (int64, error) {
	text, err := d.Query(ctx, sql)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(text, 10, 64)
}

// Rows streams a large answer. An error after the first row is a line of the answer.
func (d *Deployment) Rows(ctx context.Context, sql string) (io.ReadCloser, error) {
	return Stream(ctx, "http://"+d.HTTP+"/", sql)
}

// Stream is Rows for the engine at an address.
func Stream(ctx context.Context, address, sql string) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address, strings.NewReader(sql))
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		body, err := io.ReadAll(res.Body)
		return nil, errors.Join(fmt.Errorf("%s: %s", res.Status, body), err, res.Body.Close())
	}
	return res.Body, nil
}

// Ask queries an engine over HTTP, as user unless empty, and trims the answer.
func Ask(ctx context.Context, address, user, password, sql string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address+"?query="+url.QueryEscape(sql), nil)
	if err != nil {
		return "", err
	}
	if user != "" {
		req.SetBasicAuth(user, password)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", res.Status, body)
	}
	return strings.TrimSpace(string(body)), err
}

// SignalEngine sends a signal to the engine of `sluice up`.
func (d *Deployment) SignalEngine(sig syscall.Signal) error {
	pid, err := d.EnginePID()
	if err != nil {
		return err
	}
	return syscall.Kill(pid, sig)
}

// EnginePID is the process of the engine of `sluice up`, its only child.
func (d *Deployment) EnginePID() (int, error) {
	pid := d.Process(Up).PID()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		return 0, err
	}
	for _, task := range tasks {
		children, _ := os.ReadFile(task) // a thread may have ended meanwhile
		for _, child := range strings.Fields(string(children)) {
			return strconv.Atoi(child)
		}
	}
	return 0, fmt.Errorf("process %d has no child", pid)
}
