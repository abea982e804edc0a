package trial

import (
	"fmt"
	"time"
)

// Plan is the schedule of a run with so many NATS servers, as text.
func Plan(cfg Config, servers int) []string {
	s := scene{
		parts: []string{partEngine, partAPI + "-1", partIngester + "-1", partAPI + "-2", partIngester + "-2"},
		links: []string{linkClients, partAPI + "-1" + toNATS, partIngester + "-1" + toNATS, partIngester + "-1" + toEngine},
	}
	for i := range servers {
		s.nats = append(s.nats, fmt.Sprintf("%s-%d", partNATS, i+1))
	}
	s.parts = append(s.nats, s.parts...)
	var lines []string
	for _, f := range plan(cfg, s) {
		lines = append(lines, f.at.Round(time.Millisecond).String()+" "+f.String())
	}
	return lines
}

// Link is a link to the targets, for tests.
type Link struct{ *link }

// NewLink makes one.
func NewLink(targets ...string) (Link, error) {
	l, err := newLink(targets...)
	return Link{l}, err
}

// What a Link can do.
func (l Link) Addr() string                      { return l.addr() }
func (l Link) Cut() int                          { return l.cut() }
func (l Link) Stall()                            { l.stall() }
func (l Link) Resume()                           { l.resume() }
func (l Link) Await(text string) <-chan struct{} { return l.await(text) }
func (l Link) Close()                            { l.close() }
