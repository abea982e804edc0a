package endtoend

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"sluice/pkg/fatal"
	"sluice/pkg/record/recordtest"
)

// TestRecordsComeBackAsTheyWerePosted to one `sluice up`: of many shapes, and large.
func TestRecordsComeBackAsTheyWerePosted(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.up()
	samplesComeBackAsTheyWerePosted(t, s)
	largeRecordsArriveWhole(t, s)
}

// samplesComeBackAsTheyWerePosted posts records of many shapes, odd ones included,
// and compares what ClickHouse gives back field for field.
func samplesComeBackAsTheyWerePosted(t *testing.T, s *stack) {
	for _, sample := range recordtest.Samples() {
		fatal.If(t, wantOK(s.post(sample)))
	}
	for i, sample := range recordtest.Samples() {
		t.Run(fmt.Sprintf("sample %d", i+1), func(t *testing.T) {
			var id struct{ ID string }
			fatal.If(t, json.Unmarshal(sample, &id))
			if wrong := recordtest.Compare(sample, s.row(t, id.ID)); wrong != nil {
				t.Errorf("queried differs from posted: %v", wrong)
			}
		})
	}
}

// row waits for the record and returns it as a person would read it.
func (s *stack) row(t *testing.T, id string) map[string]any {
	t.Helper()
	sql := fmt.Sprintf("SELECT * FROM flow.v_records WHERE id = '%s' FORMAT JSONEachRow SETTINGS output_format_json_quote_64bit_integers = 1", id)
	var row map[string]any
	eventually(t, 10*time.Second, func() error {
		answer, err := s.query(sql)
		if err != nil {
			return err
		}
		decoder := json.NewDecoder(strings.NewReader(answer))
		decoder.UseNumber()
		return decoder.Decode(&row)
	})
	return row
}
