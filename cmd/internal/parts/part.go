package parts

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"sluice/pkg/programtest"
)

// Part is one process of a deployment, which may be replaced by another.
type Part struct {
	*programtest.Process
	Name string
	Ops  string // address of its ops port, empty when it has none
	HTTP string // address of its clients; empty when it is no api
}

// Spawn starts a program that writes to a log of its name in dir. It dies with
// this process, and does not see settings meant for another program.
func Spawn(dir, name, ops, program string, args ...string) (*Part, error) {
	p := &Part{Name: name, Ops: ops}
	if err := p.start(filepath.Join(dir, name+".log"), program, args); err != nil {
		return nil, err
	}
	return p, nil
}

func (p *Part) start(log, program string, args []string) error {
	life, err := programtest.Launch(exec.Command(program, args...), log)
	if err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	p.Process = life
	return nil
}

// Replace stops the part, which must end by itself and well, starts it again with
// the program of that name in the folder bin, and waits until it can work: what a
// rolling restart does to each process.
func (p *Part) Replace(ctx context.Context, bin string) error {
	if err := p.Stop(); err != nil {
		return err
	}
	args := p.Args()
	if err := p.start(p.Log(), filepath.Join(bin, filepath.Base(args[0])), args[1:]); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return p.Ready(ctx)
}

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
		case <-p.Exited():
			return fmt.Errorf("%s has ended: %v, see %s", p.Name, p.Err(), p.Log())
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

// Stop ends the part and waits for it. The error says how it ended, if not by
// itself and well.
func (p *Part) Stop() error {
	if p.Process.Stop(15 * time.Second); p.Err() != nil {
		return fmt.Errorf("%s: %w", p.Name, p.Err())
	}
	return nil
}
