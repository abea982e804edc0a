package record_test

import (
	"bytes"
	"testing"

	"sluice/pkg/flow"
	"sluice/pkg/record"
	"sluice/pkg/record/recordtest"
)

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
