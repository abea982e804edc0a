package server_test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/ClickHouse/ch-go/proto"
	"github.com/google/go-cmp/cmp"

	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/embedded/clickhouse/server"
	"sluice/pkg/fatal"
)

func TestHelloIsRead(t *testing.T) {
	var b proto.Buffer
	proto.ClientHello{Name: "me", Major: 1, Minor: 2, ProtocolVersion: 54999, Database: "d", User: "u", Password: "p"}.Encode(&b)
	got, err := server.ReadHello(bufio.NewReader(bytes.NewReader(b.Buf)))
	want := server.Hello{Client: "me", Revision: server.Revision, Database: "d", User: "u", Password: "p"}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

// chQuery is a complete query of ch-go, as a client of this revision sends it.
func chQuery(revision int, traced bool) []byte {
	q := proto.Query{
		ID: "id", Body: "SELECT 1", Secret: "", Compression: proto.CompressionEnabled,
		Info:     proto.ClientInfo{Query: proto.ClientQueryInitial, Interface: proto.InterfaceTCP, ClientName: "me", InitialUser: "u", QuotaKey: "q", OSUser: "o", ClientHostname: "h"},
		Settings: []proto.Setting{{Key: "a", Value: "1", Important: true}, {Key: "b", Value: strings.Repeat("x", 1000)}},
	}
	if traced {
		q.Info.Span = q.Info.Span.WithTraceID([16]byte{1}).WithSpanID([8]byte{2})
	}
	var b proto.Buffer
	q.EncodeAware(&b, revision)
	return b.Buf
}

func TestQueryIsReadAtEveryRevision(t *testing.T) {
	want := server.Query{ID: "id", Body: "SELECT 1", Compressed: true, Settings: [][2]string{{"a", "1"}, {"b", strings.Repeat("x", 1000)}}}
	for revision := 54429; revision <= server.Revision; revision++ {
		for _, traced := range []bool{false, true} {
			r := bufio.NewReader(bytes.NewReader(append(chQuery(revision, traced), "after"...)))
			r.ReadByte() // the packet's code
			got, err := server.ReadQuery(r, revision)
			if diff := cmp.Diff(want, got); diff != "" || err != nil {
				t.Fatalf("revision %d: %v (-want +got):\n%s", revision, err, diff)
			}
			if rest, _ := io.ReadAll(r); string(rest) != "after" {
				t.Fatalf("revision %d: %q is left", revision, rest)
			}
		}
	}
}

// FuzzReadQuery compares with ch-go, except where ch-go fails.
func FuzzReadQuery(f *testing.F) {
	f.Add(chQuery(server.Revision, false)[1:])
	f.Add(chQuery(server.Revision, true)[1:])
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := server.ReadQuery(bufio.NewReader(bytes.NewReader(data)), server.Revision)
		if _, helloErr := server.ReadHello(bufio.NewReader(bytes.NewReader(data))); err != nil || helloErr == nil && len(data) == 0 {
			return
		}
		var want proto.Query
		if want.DecodeAware(proto.NewReader(bytes.NewReader(data)), server.Revision) != nil {
			return // it also checks values
		}
		if want.Info.Query == proto.ClientQueryNone {
			return // the client info ends here, which ch-go does not support
		}
		if got.ID != want.ID || got.Body != want.Body || len(got.Settings) != len(want.Settings) || got.Compressed != (want.Compression == proto.CompressionEnabled) {
			t.Fatalf("got %+v, want %+v", got, want)
		}
	})
}

func TestNativePortAnswersStrangers(t *testing.T) {
	e := clickhousetest.Shared(t)
	huge := []byte{0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f} // a hello with a name of 2^63 bytes
	for name, c := range map[string]struct {
		sent []byte
		want string
	}{
		"an HTTP client":        {[]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), "native port of ClickHouse"},
		"a text without an end": {huge, "is longer than"},
	} {
		t.Run(name, func(t *testing.T) {
			socket, err := net.Dial("tcp", e.Addr())
			fatal.If(t, err)
			defer socket.Close()
			socket.SetDeadline(time.Now().Add(5 * time.Second))
			socket.Write(c.sent)
			answer, err := io.ReadAll(socket)
			if err != nil && !errors.Is(err, io.EOF) || !strings.Contains(string(answer), c.want) {
				t.Errorf("got %q, %v, want %q", answer, err, c.want)
			}
		})
	}
	if got, _ := post(t, nil, "SELECT 1"); got != ok("1\n") {
		t.Errorf("afterwards: %v", got)
	}
}
