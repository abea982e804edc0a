package export

import (
	"encoding/csv"
	"encoding/json"
	"strconv"
	"time"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress/zstd"

	"sluice/pkg/warehouse"
)

// row is one event with all that is known of its instance, under the names that
// tools for process mining look for.
type row struct {
	Case       string `json:"case:concept:name" parquet:"case:concept:name,dict"`
	Activity   string `json:"concept:name" parquet:"concept:name,dict"`
	Transition string `json:"lifecycle:transition" parquet:"lifecycle:transition,dict"`
	At         milli  `json:"time:timestamp" parquet:"time:timestamp,timestamp(millisecond)"`
	Resource   string `json:"org:resource" parquet:"org:resource,dict"`
	Instance   string `json:"concept:instance" parquet:"concept:instance"`
	Type       string `json:"bpmn:type" parquet:"bpmn:type,dict"`
	Source     string `json:"case:source" parquet:"case:source,dict"`
	Key        string `json:"case:key" parquet:"case:key,dict"`
	Process    string `json:"case:process" parquet:"case:process,dict"`
	Version    *int64 `json:"case:version" parquet:"case:version,optional"`
	Tenant     string `json:"case:tenant" parquet:"case:tenant,dict"`
	State      string `json:"case:state" parquet:"case:state,dict"`
}

// milli is a moment, ms since 1970; as text it is what stamp makes of it.
type milli int64

func (m milli) text() string { return stamp(time.UnixMilli(int64(m))) }

// MarshalText is for JSON.
func (m milli) MarshalText() ([]byte, error) { return []byte(m.text()), nil }

// columns are the names of a row, in order.
var columns = []string{
	"case:concept:name", "concept:name", "lifecycle:transition", "time:timestamp", "org:resource", "concept:instance", "bpmn:type",
	"case:source", "case:key", "case:process", "case:version", "case:tenant", "case:state",
}

func rows(c *warehouse.Case) []row {
	var all []row
	for _, v := range events(c) {
		all = append(all, row{
			Case: caseID(c), Activity: v.element.Element, Transition: v.transition, At: milli(v.at.UnixMilli()), Resource: v.resource,
			Instance: strconv.FormatInt(v.element.Key, 10), Type: v.element.Type,
			Source: c.Source, Key: c.Key, Process: c.Process, Version: c.Version, Tenant: c.Tenant, State: c.State,
		})
	}
	return all
}

// rowFormat is a format whose rows are written some at a time.
type rowFormat struct {
	write  func([]row) error
	finish func() error
}

func (f rowFormat) instance(c *warehouse.Case) (uint64, error) {
	all := rows(c)
	return uint64(len(all)), f.write(all)
}

func (f rowFormat) close() error { return f.finish() }

// rowsInGroup bounds a row group of Parquet, which is in memory until it is
// complete.
const rowsInGroup = 100_000

func newParquet(to *output) format {
	w := parquet.NewGenericWriter[row](to, parquet.Compression(&zstd.Codec{Level: zstd.SpeedFastest}), parquet.MaxRowsPerRowGroup(rowsInGroup))
	return rowFormat{
		write: func(all []row) error {
			_, err := w.Write(all)
			return err
		},
		finish: w.Close,
	}
}

func newCSV(to *output) (format, error) {
	w := csv.NewWriter(to)
	return rowFormat{
		write: func(all []row) error {
			for _, r := range all {
				version := ""
				if r.Version != nil {
					version = strconv.FormatInt(*r.Version, 10)
				}
				if err := w.Write([]string{
					r.Case, r.Activity, r.Transition, r.At.text(), r.Resource, r.Instance, r.Type,
					r.Source, r.Key, r.Process, version, r.Tenant, r.State,
				}); err != nil {
					return err
				}
			}
			return nil
		},
		finish: func() error {
			w.Flush()
			return w.Error()
		},
	}, w.Write(columns)
}

func newNDJSON(to *output) format {
	e := json.NewEncoder(to)
	e.SetEscapeHTML(false)
	return rowFormat{
		write: func(all []row) error {
			for i := range all {
				if err := e.Encode(&all[i]); err != nil {
					return err
				}
			}
			return nil
		},
		finish: func() error { return nil },
	}
}
