package record_test

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/record"
	"sluice/pkg/record/recordtest"
)

func TestEverySampleComesBackAsItWasPosted(t *testing.T) {
	for _, raw := range recordtest.Samples() {
		var c record.Columns
		fatal.If(t, c.Append(message("["+string(raw)+"]")))
		got, err := recordtest.Queried(recordtest.RowOf(&c, 0))
		fatal.If(t, err)
		if diff := cmp.Diff(recordtest.Posted(raw), got); diff != "" {
			t.Errorf("%s (-posted +queried):\n%s", raw, diff)
		}
	}
}

func TestOddBodiesAreTreatedAsTheSlowDecoderSays(t *testing.T) {
	for _, body := range oddBodies {
		compareParse(t, []byte(body), record.FormAuto, tight)
		compareParse(t, []byte(body), record.FormNDJSON, tight)
		compareColumns(t, message("["+body+"]"))
	}
	all := bytes.Join(recordtest.Samples(), []byte(","))
	compareColumns(t, message("["+string(all)+"]"))
}

func message(body string) *flow.Message {
	return &flow.Message{Lane: 3, Seq: 7, Incarnation: 1763704800000, Source: "cluster-a", Body: []byte(body), Received: received}
}
