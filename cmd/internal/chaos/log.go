package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"sluice/cmd/internal/deployment"
	"sluice/pkg/load/simulator"
)

// logs are the logs of a workflow engine, one per partition. Exporters may read them
// repeatedly.
type logs struct {
	engine     *simulator.Engine
	partitions map[int64]*partitionLog
}

type partitionLog struct {
	file *os.File // concatenated records

	mu    sync.Mutex
	ends  []int64 // offset of the end of each record
	whole bool    // complete
}

func newLogs(dir, name string, cfg simulator.Config) (*logs, error) {
	s := &logs{engine: simulator.New(cfg), partitions: map[int64]*partitionLog{}}
	for p := int64(1); p <= int64(cfg.Partitions); p++ {
		file, err := os.OpenFile(filepath.Join(dir, fmt.Sprintf("%s-%d.records", name, p)), os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
		if err != nil {
			s.close()
			return nil, err
		}
		s.partitions[p] = &partitionLog{file: file}
	}
	return s, nil
}

func (s *logs) close() {
	for _, l := range s.partitions {
		l.file.Close()
	}
}

// write appends records in real time, until then.
func (s *logs) write(ctx context.Context, until time.Time) error {
	defer func() {
		for _, l := range s.partitions {
			l.finish()
		}
	}()
	for {
		now := time.Now()
		if now.After(until) {
			return nil
		}
		for r, more := s.engine.NextBy(now); more; r, more = s.engine.NextBy(now) {
			if err := s.partitions[r.Partition].append(r.JSON); err != nil {
				return fmt.Errorf("write the log of partition %d: %w", r.Partition, err)
			}
		}
		if !deployment.Sleep(ctx, 20*time.Millisecond) {
			return ctx.Err()
		}
	}
}

func (l *partitionLog) append(record []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	start := int64(0)
	if n := len(l.ends); n > 0 {
		start = l.ends[n-1]
	}
	if _, err := l.file.WriteAt(record, start); err != nil {
		return err
	}
	l.ends = append(l.ends, start+int64(len(record)))
	return nil
}

func (l *partitionLog) finish() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.whole = true
}

// Len returns the number of records, and whether the log is complete.
func (l *partitionLog) Len() (n int, whole bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.ends), l.whole
}

// Read returns the records from..to-1, counted from 0.
func (l *partitionLog) Read(from, to int) ([][]byte, error) {
	l.mu.Lock()
	start := int64(0)
	if from > 0 {
		start = l.ends[from-1]
	}
	ends := l.ends[from:to]
	l.mu.Unlock()
	all := make([]byte, ends[len(ends)-1]-start)
	if _, err := l.file.ReadAt(all, start); err != nil {
		return nil, err
	}
	records := make([][]byte, 0, len(ends))
	for _, end := range ends {
		n := end - start
		records = append(records, all[:n:n])
		all, start = all[n:], end
	}
	return records, nil
}
