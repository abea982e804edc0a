package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"sluice/pkg/auth"
	"sluice/pkg/embedded/clickhouse/library"
	"sluice/pkg/flow"
	"sluice/pkg/programtest"
)

// Names of services and links. Where there are several of a service, each has a number.
const (
	serviceNATS     = "nats"
	serviceEngine   = "engine"
	serviceAPI      = "api"
	serviceIngester = "ingester"

	linkClients   = "clients→api"
	linkExporters = "exporters→api" // where the api speaks Elasticsearch
	toNATS        = "→nats"
	toEngine      = "→engine"
)

const twins = 2 // apis, and ingesters

// stage is everything that runs, and how it is reached.
type stage struct {
	cfg     Config
	dir     string
	tokens  map[string]string // by source
	journal *journal

	services map[string]*service
	order    []string           // of services, in which they are started
	links    map[string][]*link // one per server behind it
	disks    map[string]*disk   // by the service they belong to; none without SmallDisk

	apis      []string // names
	apiAddrs  []string // addresses of the apis themselves
	nats      []string // names
	natsAddrs []string // of the servers themselves, for our own questions
	monitors  []string // their monitoring addresses
	engine    string   // address of the engine itself
	ready     []string // ops addresses
}

// newStage prepares all services and links in dir; nothing is started.
func newStage(cfg Config, dir string, j *journal) (*stage, error) {
	file, err := library.Fetched()
	if err != nil {
		return nil, err
	}
	s := &stage{
		cfg: cfg, dir: dir, journal: j, tokens: map[string]string{},
		services: map[string]*service{}, links: map[string][]*link{}, disks: map[string]*disk{},
	}
	for _, name := range []string{"logs", "clocks"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o700); err != nil {
			return nil, err
		}
	}
	if err := s.writeTokens(); err != nil {
		return nil, err
	}
	if cfg.SmallDisk {
		if err := s.mount(); err != nil {
			return s, err
		}
	}
	if err := s.addNATS(); err != nil {
		return s, err
	}
	s.engine = programtest.Address()
	s.add(serviceEngine, "sluice", "clickhouse", "--data", s.data(serviceEngine), "--listen", s.engine,
		"--http", "", "--clickhouse-library", file)
	var apis, elastic []string
	for i := range twins {
		addr, bulks, err := s.addAPI(i + 1)
		if err != nil {
			return s, err
		}
		apis, elastic = append(apis, addr), append(elastic, bulks)
		if err := s.addIngester(i + 1); err != nil {
			return s, err
		}
	}
	return s, errors.Join(s.connect(linkClients, apis), s.connect(linkExporters, elastic))
}

// data is the folder of a service's data.
func (s *stage) data(service string) string { return filepath.Join(s.dir, "data", service) }

func (s *stage) add(name, program string, args ...string) {
	s.services[name] = &service{
		name: name, program: filepath.Join(s.cfg.Bin, program), args: args, env: s.withClock(name),
		log: filepath.Join(s.dir, "logs", name+".log"), ended: s.crashed,
	}
	s.order = append(s.order, name)
}

// connect makes a link that hands connections to any of the targets.
func (s *stage) connect(name string, targets []string) error {
	l, err := newLink(targets...)
	if err != nil {
		return err
	}
	s.links[name] = append(s.links[name], l)
	return nil
}

// via gives the addresses under which a service reaches servers: a link to each.
func (s *stage) via(name string, servers ...string) ([]string, error) {
	var addrs []string
	for _, server := range servers {
		if err := s.connect(name, []string{server}); err != nil {
			return nil, err
		}
		links := s.links[name]
		addrs = append(addrs, links[len(links)-1].addr())
	}
	return addrs, nil
}

// writeTokens makes a token for every source.
func (s *stage) writeTokens() error {
	var file strings.Builder
	for _, name := range s.cfg.posts().sources() {
		s.tokens[name] = auth.NewToken()
		entry := auth.Entry{Subject: name, SHA256: auth.Digest(s.tokens[name]), Scopes: []flow.Scope{flow.ScopeRecordsWrite}}
		fmt.Fprintln(&file, entry.Line())
	}
	return os.WriteFile(s.tokensFile(), []byte(file.String()), 0o600)
}

func (s *stage) tokensFile() string { return filepath.Join(s.dir, "tokens.yaml") }

func (s *stage) addAPI(n int) (http, elastic string, err error) {
	name := fmt.Sprintf("%s-%d", serviceAPI, n)
	nats, err := s.via(name+toNATS, s.natsAddrs...)
	if err != nil {
		return "", "", err
	}
	http, elastic = programtest.Address(), programtest.Address()
	ops := programtest.Address()
	s.ready = append(s.ready, ops)
	s.apis, s.apiAddrs = append(s.apis, name), append(s.apiAddrs, http)
	args := append([]string{"--http", http, "--elasticsearch", elastic, "--ops", ops, "--nats", natsURL(nats), "--tokens", s.tokensFile(),
		"--fingerprint-key", filepath.Join(s.dir, "fingerprint.key")}, s.streams()...)
	s.add(name, "api", args...)
	return http, elastic, nil
}

func (s *stage) addIngester(n int) error {
	name := fmt.Sprintf("%s-%d", serviceIngester, n)
	nats, err := s.via(name+toNATS, s.natsAddrs...)
	if err != nil {
		return err
	}
	warehouse, err := s.via(name+toEngine, s.engine)
	if err != nil {
		return err
	}
	ops := programtest.Address()
	s.ready = append(s.ready, ops)
	// Small blocks, so that some are full after every outage: those are inserted in
	// pieces at once, and a lane is taken over by one who makes as many or more.
	args := append([]string{"--ops", ops, "--nats", natsURL(nats), "--block-bytes", "1048576", "--block-inserts", strconv.Itoa(n + 1),
		"--clickhouse", "clickhouse://default@" + warehouse[0] + "/flow", "--history", s.cfg.History.String()}, s.streams()...)
	s.add(name, "ingester", args...)
	return nil
}

// streams are the options of every program that may make a stream.
func (s *stage) streams() []string {
	return []string{"--stream-max-bytes", fmt.Sprint(s.cfg.StreamMaxBytes), "--stream-replicas", fmt.Sprint(s.cfg.NATS),
		"--repeat-window", s.cfg.RepeatWindow.String()}
}

func natsURL(addrs []string) string { return "nats://" + strings.Join(addrs, ",nats://") }

// scene is what of it may be broken.
func (s *stage) scene() scene {
	sc := scene{services: s.order, nats: s.nats, apis: s.apis, sources: s.cfg.posts().sources()}
	for name := range s.links {
		sc.links = append(sc.links, name)
	}
	for name := range s.disks {
		sc.disks = append(sc.disks, name)
	}
	slices.Sort(sc.links)
	slices.Sort(sc.disks)
	return sc
}

// start starts all services and waits until they can work.
func (s *stage) start(ctx context.Context) error {
	for _, name := range s.order {
		if err := s.services[name].start(); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for _, addr := range s.ready {
		if err := answersOK(ctx, "http://"+addr+"/readyz"); err != nil {
			return err
		}
	}
	return nil
}

// answersOK asks until the answer is 200.
func answersOK(ctx context.Context, url string) error {
	client := &http.Client{Timeout: 2 * time.Second}
	for {
		res, err := client.Get(url)
		if err == nil {
			res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return nil
			}
			err = errors.New(res.Status)
		}
		if !sleep(ctx, 100*time.Millisecond) {
			return fmt.Errorf("%s: %w", url, err)
		}
	}
}

// crashed starts a service again that ended unasked, as a
// supervisor would.
func (s *stage) crashed(p *service, status string) {
	s.journal.count(func(c *Counts) { c.Crashes++ })
	s.journal.note("%s ended by itself: %s", p.name, status)
	time.Sleep(time.Second)
	if err := p.start(); err != nil {
		s.journal.note("%v", err)
	}
}

// stop ends all services, the first ones last, and gives those that did not end
// as they should.
func (s *stage) stop() {
	for _, name := range slices.Backward(s.order) {
		if ran, status := s.services[name].end(sigterm, 15*time.Second); ran && status != 0 {
			s.journal.count(func(c *Counts) { c.Unclean++ })
			s.journal.note("%s did not stop cleanly: exit status %d", name, status)
		}
	}
}

// close ends what is left and lets go of everything but the folder.
func (s *stage) close() {
	for _, p := range s.services {
		p.kill()
	}
	for _, links := range s.links {
		for _, l := range links {
			l.close()
		}
	}
	for _, d := range s.disks {
		d.unmount()
	}
}

// sleep tells whether d passed before ctx was done.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
