package export

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"time"

	"github.com/klauspost/compress/zstd"
)

// ocelJSON writes OCEL 2.0 as JSON: events as they come, then the objects,
// which wait in a temporary file, and at last the types, which are few.
type ocelJSON struct {
	to      *output
	waiting *os.File // objects, compressed; it has no name any more
	packed  *zstd.Encoder
	objects bool // there is one
	events  bool

	eventTypes  []typed
	objectTypes []typed
}

// typed is a type as the file declares it.
type typed struct {
	Name       string      `json:"name"`
	Attributes []attribute `json:"attributes"`
}

// always is the time of what does not change, by the convention of OCEL.
var always = time.Unix(0, 0).UTC()

func newOCEL(to *output) (*ocelJSON, error) {
	o := &ocelJSON{to: to}
	var err error
	if o.waiting, err = os.CreateTemp("", "sluice-export-"); err != nil {
		return nil, err
	}
	if err := os.Remove(o.waiting.Name()); err != nil {
		return nil, err
	}
	if o.packed, err = zstd.NewWriter(o.waiting, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1)); err != nil {
		return nil, err
	}
	_, err = to.WriteString("{\"events\":[")
	return o, err
}

func (o *ocelJSON) objectType(name string, attributes []attribute) error {
	o.objectTypes = append(o.objectTypes, typed{name, attributes})
	return nil
}

func (o *ocelJSON) eventType(name string, attributes []attribute) error {
	o.eventTypes = append(o.eventTypes, typed{name, attributes})
	return nil
}

type ocelValue struct {
	Name  string `json:"name"`
	Time  string `json:"time,omitempty"` // of objects
	Value any    `json:"value"`
}

func (o *ocelJSON) object(one object) error {
	values := make([]ocelValue, 0, len(one.values))
	for _, v := range one.values {
		at := v.at
		if at.IsZero() {
			at = always
		}
		values = append(values, ocelValue{v.name, stamp(at), v.is})
	}
	return o.item(o.packed, &o.objects, struct {
		ID            string      `json:"id"`
		Type          string      `json:"type"`
		Attributes    []ocelValue `json:"attributes"`
		Relationships []relation  `json:"relationships"`
	}{one.id, one.kind, values, append([]relation{}, one.relations...)})
}

func (o *ocelJSON) event(one objectEvent) error {
	values := make([]ocelValue, 0, len(one.values))
	for _, v := range one.values {
		values = append(values, ocelValue{Name: v.name, Value: v.is})
	}
	return o.item(o.to, &o.events, struct {
		ID            string      `json:"id"`
		Type          string      `json:"type"`
		Time          string      `json:"time"`
		Attributes    []ocelValue `json:"attributes"`
		Relationships []relation  `json:"relationships"`
	}{one.id, one.kind, stamp(one.at), values, one.relations})
}

// item writes one of a list.
func (o *ocelJSON) item(to io.Writer, more *bool, one any) error {
	text, err := json.Marshal(one)
	if err != nil {
		return err
	}
	if *more {
		text = append([]byte(",\n"), text...)
	} else {
		text = append([]byte("\n"), text...)
	}
	*more = true
	_, err = to.Write(text)
	return err
}

func (o *ocelJSON) close() error {
	defer o.waiting.Close()
	if err := o.packed.Close(); err != nil {
		return err
	}
	if _, err := o.waiting.Seek(0, io.SeekStart); err != nil {
		return err
	}
	unpacked, err := zstd.NewReader(bufio.NewReader(o.waiting), zstd.WithDecoderConcurrency(1))
	if err != nil {
		return err
	}
	defer unpacked.Close()
	if _, err := o.to.WriteString("\n],\n\"objects\":["); err != nil {
		return err
	}
	if _, err := io.Copy(o.to, unpacked); err != nil {
		return err
	}
	types, err := json.Marshal(struct {
		EventTypes  []typed `json:"eventTypes"`
		ObjectTypes []typed `json:"objectTypes"`
	}{append([]typed{}, o.eventTypes...), o.objectTypes})
	if err != nil {
		return err
	}
	_, err = o.to.WriteString("\n],\n" + string(types[1:]) + "\n")
	return err
}
