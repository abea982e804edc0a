package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"sluice/pkg/programtest"
)

// addNATS prepares the NATS servers: one, or a cluster of three.
func (s *stage) addNATS() error {
	var routes []string
	for i := range s.cfg.NATS {
		s.nats = append(s.nats, fmt.Sprintf("%s-%d", serviceNATS, i+1))
		s.natsAddrs = append(s.natsAddrs, programtest.Address())
		s.monitors = append(s.monitors, programtest.Address())
		routes = append(routes, programtest.Address())
	}
	for i, name := range s.nats {
		if s.cfg.NATS == 1 {
			s.add(name, "sluice", "nats", "--data", s.data(name), "--listen", s.natsAddrs[i], "--monitor", s.monitors[i])
			continue
		}
		file := filepath.Join(s.dir, name+".conf")
		if err := os.WriteFile(file, []byte(s.natsConf(i, routes)), 0o600); err != nil {
			return err
		}
		s.add(name, "sluice", "nats", "--config", file)
	}
	return nil
}

// natsConf is the configuration of one server of a cluster. no_advertise keeps
// clients from going around their links.
func (s *stage) natsConf(i int, routes []string) string {
	return fmt.Sprintf(`server_name: %s
listen: %q
http: %q
max_payload: 16MB
max_pending: 256MB
jetstream { store_dir: %q, max_file_store: 20GB, max_memory_store: 256MB, sync_interval: always }
cluster { name: chaos, listen: %q, routes: ["nats://%s"], no_advertise: true }
`, s.nats[i], s.natsAddrs[i], s.monitors[i], s.data(s.nats[i]), routes[i], strings.Join(routes, `", "nats://`))
}

// leader is the name of the server that leads lane 0.
func (v *view) leader(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	lane, err := v.js.Stream(ctx, "FLOW_0")
	if err != nil {
		return "", err
	}
	cluster := lane.CachedInfo().Cluster
	if cluster == nil || cluster.Leader == "" {
		return "", errors.New("lane 0 has no leader")
	}
	return cluster.Leader, nil
}

// whole waits until every server has all of every stream.
func (v *view) whole(ctx context.Context) error {
	for {
		err := v.lagging(ctx)
		if err == nil {
			return nil
		}
		if !sleep(ctx, 500*time.Millisecond) {
			return err
		}
	}
}

func (v *view) lagging(ctx context.Context) error {
	for _, addr := range v.stage.monitors {
		asking, cancel := context.WithTimeout(ctx, time.Second)
		err := answersOK(asking, "http://"+addr+"/healthz")
		cancel()
		if err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	streams := v.js.ListStreams(ctx)
	n := 0
	for info := range streams.Info() {
		n++
		if err := follows(info, len(v.stage.nats)); err != nil {
			return err
		}
	}
	if err := streams.Err(); err != nil {
		return err
	}
	if n == 0 {
		return errors.New("no stream is known")
	}
	return nil
}

func follows(info *jetstream.StreamInfo, servers int) error {
	if info.Cluster == nil || info.Cluster.Leader == "" || len(info.Cluster.Replicas) != servers-1 {
		return fmt.Errorf("stream %s has no leader or not all replicas", info.Config.Name)
	}
	for _, r := range info.Cluster.Replicas {
		if !r.Current || r.Offline || r.Lag > 0 {
			return fmt.Errorf("stream %s: %s is behind", info.Config.Name, r.Name)
		}
	}
	return nil
}
