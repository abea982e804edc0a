package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"sluice/pkg/programtest"
)

// loops are the programs of docs/clients.md. Each posts records without identity to an
// unreliable api; every record must be stored once.
type loops struct{ page, python string }

// loopRecords is the number of records per program: some tens of batches.
const loopRecords = 10_000

var loopPrograms = regexp.MustCompile("(?s)```(go|java|python|js)\n(.*?)```")

func (l loops) check(ctx context.Context, dir string, env map[string]string) (r result) {
	page, err := os.ReadFile(l.page)
	if err != nil {
		return result{failed: []string{err.Error()}}
	}
	programs := loopPrograms.FindAllSubmatch(page, -1)
	if len(programs) != 4 {
		return result{failed: []string{fmt.Sprintf("%s has %d programs, not 4", l.page, len(programs))}}
	}
	errs := make([]error, len(programs))
	var all sync.WaitGroup
	for i, p := range programs {
		all.Go(func() { errs[i] = l.one(ctx, dir, env, string(p[1]), p[2]) })
	}
	all.Wait()
	for i, err := range errs {
		if err != nil {
			r.failed = append(r.failed, fmt.Sprintf("%s: %v", programs[i][1], err))
		} else {
			r.ok++
		}
	}
	return r
}

// one runs the program of one language.
func (l loops) one(ctx context.Context, dir string, env map[string]string, language string, program []byte) error {
	name := map[string]string{"go": "sender.go", "java": "Sender.java", "python": "sender.py", "js": "sender.mjs"}[language]
	command := map[string][]string{"go": {"go", "run"}, "java": {"java"}, "python": {l.python}, "js": {"node"}}[language]
	file := filepath.Join(dir, name)
	if err := os.WriteFile(file, program, 0o600); err != nil {
		return err
	}
	api, err := unreliable(env["API"])
	if err != nil {
		return err
	}
	defer api.Close()
	var records bytes.Buffer
	for i := range loopRecords { // every third is byte-identical to the one before
		fmt.Fprintf(&records, `{"valueType":"JOB","timestamp":%d,"value":{"type":"loop-%s","retries":%d}}`+"\n", time.Now().Unix()*1000, language, i-i%3/2)
	}
	cmd := exec.CommandContext(ctx, command[0], append(command[1:], file, api.URL, env["TOKEN"])...)
	cmd.Dir, cmd.Env, cmd.Stdin = dir, programtest.Environ(), &records
	cmd.WaitDelay = time.Second
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, said)
	}
	if n := api.faults.Load(); n < 4 {
		return fmt.Errorf("the api failed only %d times", n)
	}
	want := fmt.Sprintf("%d\t%d", loopRecords, loopRecords-loopRecords/3)
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(200 * time.Millisecond) {
		got, err := query(ctx, env, "SELECT count(), uniqExact(retries) FROM flow.records WHERE job_type = 'loop-"+language+"'")
		if err != nil {
			return err
		}
		if got == want {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("records and distinct ones are %q, want %q", got, want)
		}
	}
}

// faulty is an api whose connection fails at random.
type faulty struct {
	*httptest.Server
	faults atomic.Int64
}

// unreliable forwards requests to an api. Half of them fail: before they arrive, with
// 429, 503, or no answer; or after they are stored, with no answer or half of one.
func unreliable(api string) (*faulty, error) {
	target, err := url.Parse(api)
	if err != nil {
		return nil, err
	}
	f := &faulty{}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) },
		ModifyResponse: func(resp *http.Response) error {
			if rand.N(4) > 0 {
				return nil
			}
			_, _ = io.Copy(io.Discard, resp.Body) // it is stored
			return errors.New("the answer is lost")
		},
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) {
			f.faults.Add(1)
			panic(http.ErrAbortHandler) // ends the connection without an answer
		},
	}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status := [12]int{429, 503, 500, 1}[rand.N(12)]
		if status == 0 {
			proxy.ServeHTTP(w, r)
			return
		}
		f.faults.Add(1)
		_, _ = io.Copy(io.Discard, r.Body)
		if status == 1 {
			panic(http.ErrAbortHandler)
		}
		w.Header().Set("Retry-After", "0")
		http.Error(w, "at random", status)
	}))
	return f, nil
}

// query queries the ClickHouse of sluice up.
func query(ctx context.Context, env map[string]string, sql string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+env["HOST"]+":"+env["HTTP_PORT"], strings.NewReader(sql))
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, text)
	}
	return strings.TrimSpace(string(text)), err
}
