package parts

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Part is one process.
type Part struct {
	Name string
	Ops  string // address of its ops port, empty when it has none
	HTTP string // address of its clients; empty when it is no api

	cmd    *exec.Cmd
	log    *os.File
	exited chan struct{}
	err    error // how it ended; valid once exited is closed
}

// Spawn starts a program that writes to a log of its name in dir. It dies with
// this process, and does not see settings meant for another program.
func Spawn(dir, name, ops, program string, args ...string) (*Part, error) {
	p := &Part{Name: name, Ops: ops}
	if err := p.start(dir+"/"+name+".log", program, args); err != nil {
		return nil, err
	}
	return p, nil
}

func (p *Part) start(file, program string, args []string) error {
	log, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	cmd, exited := exec.Command(program, args...), make(chan struct{})
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = Environ()
	cmd.SysProcAttr = DieWithUs()
	if err := cmd.Start(); err != nil {
		return errors.Join(fmt.Errorf("start %s: %w", p.Name, err), log.Close())
	}
	p.cmd, p.log, p.exited, p.err = cmd, log, exited, nil
	go func() {
		p.err = cmd.Wait()
		close(exited)
	}()
	return nil
}

// Replace stops the part, which must end by itself and well, starts it again with
// the program of that name in the folder bin, and waits until it can work: what a
// rolling restart does to each process.
func (p *Part) Replace(ctx context.Context, bin string) error {
	if err := p.Stop(); err != nil {
		return err
	}
	if err := p.start(p.log.Name(), filepath.Join(bin, filepath.Base(p.cmd.Path)), p.cmd.Args[1:]); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return p.Ready(ctx)
}

// Environ is the environment without settings of Sluice.
func Environ() []string {
	var env []string
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "SLUICE_") {
			env = append(env, entry)
		}
	}
	return env
}

// PID is the number of the process.
func (p *Part) PID() int { return p.cmd.Process.Pid }

// Ready waits until the part says that it can work. A part without an ops port
// is not asked.
func (p *Part) Ready(ctx context.Context) error {
	if p.Ops == "" {
		return nil
	}
	const pause = 5 * time.Millisecond
	client := &http.Client{Timeout: 2 * time.Second}
	defer client.CloseIdleConnections()
	for {
		res, err := client.Get("http://" + p.Ops + "/readyz")
		if err == nil {
			res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return nil
			}
			err = errors.New(res.Status)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w", p.Name, err)
		case <-p.exited:
			return fmt.Errorf("%s has ended: %v, see %s", p.Name, p.err, p.log.Name())
		case <-time.After(pause):
		}
	}
}

// Metrics are the values at the ops port, by name with labels.
func (p *Part) Metrics(ctx context.Context) (map[string]float64, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.Ops+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("metrics of %s: %w", p.Name, err)
	}
	defer res.Body.Close()
	all := map[string]float64{}
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		if i := strings.LastIndexByte(lines.Text(), ' '); i > 0 && lines.Text()[0] != '#' {
			if v, err := strconv.ParseFloat(lines.Text()[i+1:], 64); err == nil {
				all[lines.Text()[:i]] = v
			}
		}
	}
	return all, lines.Err()
}

// Kill ends the part without warning and waits until it is gone.
func (p *Part) Kill() error {
	err := p.cmd.Process.Kill()
	<-p.exited
	return errors.Join(err, p.log.Close())
}

// Tail is the end of what the part has written.
func (p *Part) Tail(lines int) string {
	said, err := os.ReadFile(p.log.Name())
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(said)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// Stop ends the part and waits for it. The error says how it ended, if not by
// itself and well.
func (p *Part) Stop() error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	late := time.AfterFunc(15*time.Second, func() { _ = p.cmd.Process.Kill() })
	<-p.exited
	late.Stop()
	err := p.log.Close()
	if p.err != nil {
		err = errors.Join(fmt.Errorf("%s: %w", p.Name, p.err), err)
	}
	return err
}
