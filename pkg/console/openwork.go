package console

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// openWork exports gauges of open incidents, overdue timers, tasks and jobs, and stuck
// instances. One statement a minute counts all of them. While ClickHouse does not answer,
// the gauges are absent: a stale number would look current.
type openWork struct {
	db     Warehouse
	every  time.Duration
	quiet  time.Duration
	log    *slog.Logger
	last   atomic.Pointer[openCount] // nil if the last count failed
	failed prometheus.Counter
}

type openCount struct {
	At   time.Time
	Rows []openRow
}

// openRow counts one kind of open work in a process: incident, stuck, task, job or timer.
type openRow struct {
	Kind, Process, Type string
	Count               uint64
}

// maxSeries is the maximum number of series per kind; the rest is summed up as "other".
const maxSeries = 50

var (
	incidentsDesc = prometheus.NewDesc("sluice_open_incidents", "Open incidents, by process and error type. The 50 largest; the rest as other.", []string{"process", "type"}, nil)
	overdueDesc   = prometheus.NewDesc("sluice_overdue", "Timers and user tasks past their due date, and jobs past their deadline (if JOB_BATCH records are exported), by kind (timer, task, job) and process. The 50 largest of each kind; the rest as other.", []string{"kind", "process"}, nil)
	stuckDesc     = prometheus.NewDesc("sluice_stuck_instances", "Active instances without an event for --stuck-after, by process; sluice ask stuck lists them. The 50 largest; the rest as other.", []string{"process"}, nil)
)

func newOpenWork(cfg Config, db Warehouse, reg prometheus.Registerer, log *slog.Logger) *openWork {
	w := &openWork{
		db: db, every: cfg.Work, quiet: cfg.Stuck, log: log,
		failed: promauto.With(reg).NewCounter(prometheus.CounterOpts{
			Name: "sluice_open_work_failures_total",
			Help: "Failed counts of open work: sluice_open_incidents, sluice_overdue, and sluice_stuck_instances are absent until a count succeeds.",
		}),
	}
	if reg != nil {
		reg.MustRegister(w)
	}
	return w
}

func (w *openWork) run(ctx context.Context) {
	for {
		pause := w.every
		count, err := w.count(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			w.last.Store(count)
		default:
			pause = min(pause, 5*time.Second) // retry soon
			w.failed.Inc()
			if w.last.Swap(nil) != nil {
				w.log.Warn("open work not counted: ClickHouse does not answer", "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

func (w *openWork) count(ctx context.Context) (*openCount, error) {
	ctx, cancel := context.WithTimeout(ctx, w.every/2)
	defer cancel()
	at := time.Now().Truncate(time.Second)
	found := rowsOf[openRow](clickhouse.Context(ctx, clickhouse.WithSettings(clickhouse.Settings{"max_threads": 1})), w.db, openWorkSQL(at, w.quiet, maxSeries))
	if found.Err != nil {
		return nil, fmt.Errorf("count open work: %w", found.Err)
	}
	return &openCount{at, found.Rows}, nil
}

func openWorkSQL(at time.Time, quiet time.Duration, limit int64) string {
	return fill(openWorkQuery, "now", moment(at), "quiet", moment(at.Add(-quiet)), "most", itoa(limit))
}

// Describe and Collect make openWork a prometheus.Collector.
func (w *openWork) Describe(all chan<- *prometheus.Desc) {
	all <- incidentsDesc
	all <- overdueDesc
	all <- stuckDesc
}

func (w *openWork) Collect(all chan<- prometheus.Metric) {
	last := w.last.Load()
	if last == nil {
		return
	}
	for _, r := range last.Rows {
		desc, labels := overdueDesc, []string{r.Kind, r.Process}
		switch r.Kind {
		case "incident":
			desc, labels = incidentsDesc, []string{r.Process, r.Type}
		case "stuck":
			desc, labels = stuckDesc, []string{r.Process}
		}
		for i := range labels {
			labels[i] = strings.ToValidUTF8(labels[i], "?")
		}
		all <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(r.Count), labels...)
	}
}

// openWorkQuery counts open work: the $most largest series of each kind, the rest as other.
const openWorkQuery = `SELECT kind, if(place <= $most, process, 'other') AS named, if(place <= $most, type, 'other') AS typed, sum(n) AS open
FROM
(
    SELECT kind, process, type, n, row_number() OVER (PARTITION BY kind ORDER BY n DESC, process, type) AS place
    FROM
    (
        SELECT 'incident' AS kind, toString(bpmn_process_id) AS process, toString(error_type) AS type, count() AS n
        FROM flow.v_incidents WHERE open = 1 GROUP BY process, type
        UNION ALL
        SELECT 'stuck', toString(bpmn_process_id) AS process, '', count()
        FROM flow.v_process_instances WHERE state = 'ACTIVE' AND last_seen < $quiet GROUP BY process
        UNION ALL
        SELECT 'task', toString(bpmn_process_id) AS process, '', count()
        FROM flow.v_user_tasks WHERE state = 'CREATED' AND due_at < $now GROUP BY process
        UNION ALL
        SELECT 'job', toString(bpmn_process_id) AS process, '', count()
        FROM flow.v_jobs WHERE open = 1 AND deadline_at < $now GROUP BY process
        UNION ALL
        SELECT 'timer', bpmn_process_id AS process, '', count()
        FROM flow.v_timers WHERE state = 'WAITING' AND due_at < $now GROUP BY process
    )
)
GROUP BY kind, named, typed`
