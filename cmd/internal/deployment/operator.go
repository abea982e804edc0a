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

// Process is a program of a deployment.
type Process struct {
	*programtest.Process
	Kind string // API

	// Address is for programs: NATS's clients, the engine's native protocol. HTTP is the
	// api, the console, the engine's HTTP, or NATS's monitoring. Elastic is the api's
	// listener for Camunda's exporters.
	Address, HTTP, Elastic string

	Data string // folder of its data; empty when it has none
}

// Sluice runs an operator's command in the folder of the deployment: elsewhere it would use
// the passwords of another installation's ./data. The error contains its log.
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

// Verify runs sluice verify on all records, with further options.
func (d *Deployment) Verify(ctx context.Context, options ...string) (string, error) {
	return d.Sluice(ctx, append([]string{"verify", "--deep", "--nats", d.NATSURL, "--clickhouse", d.ClickHouse()}, options...)...)
}

// Query queries the engine over HTTP, that of `sluice up` as the user admin. The answer is
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

// Number queries one integer.
func (d *Deployment) Number(ctx context.Context, sql string) (int64, error) {
	text, err := d.Query(ctx, sql)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(text, 10, 64)
}

// Rows is Query for large answers. The answer is streamed: an error midway is a line of
// its own.
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

// Ask queries an engine over HTTP, as user unless that is empty, and trims the answer.
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

// SignalEngine sends a signal to the engine of `sluice up`, its one child.
func (d *Deployment) SignalEngine(sig syscall.Signal) error {
	pid := d.Process(Up).PID()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		return err
	}
	for _, task := range tasks {
		children, _ := os.ReadFile(task) // a thread may have ended meanwhile
		for _, child := range strings.Fields(string(children)) {
			engine, err := strconv.Atoi(child)
			if err != nil {
				return err
			}
			return syscall.Kill(engine, sig)
		}
	}
	return fmt.Errorf("process %d has no child", pid)
}
