package deploy_test

import (
	"encoding/xml"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

// TestTheClusterToTryFitsTogether: every server of remote_servers is a service that mounts
// the readable files of the cluster, its macros, and the profile.
func TestTheClusterToTryFitsTogether(t *testing.T) {
	const folder = "clickhouse-cluster"
	var c struct {
		Services map[string]struct {
			Image    string
			Hostname string
			Ports    []string
			Volumes  []string
		}
	}
	readYAML(t, folder+"/docker-compose.yml", &c)
	type shard struct {
		Internal string `xml:"internal_replication"`
		Weight   string `xml:"weight"`
		Replicas []struct {
			Host string `xml:"host"`
			Port string `xml:"port"`
		} `xml:"replica"`
	}
	var cluster struct {
		Keepers []string `xml:"zookeeper>node>host"`
		Shards  []shard  `xml:"remote_servers>main>shard"`
	}
	readXML(t, filepath.Join(folder, "cluster.xml"), &cluster)
	fatal.When(t, len(cluster.Shards) != 2, "%d shards, want 2", len(cluster.Shards))
	var servers []string
	for i, s := range cluster.Shards {
		expect.Not(t, s.Internal != "true" || s.Weight != "" || len(s.Replicas) != 2, "shard %d: %+v: want two replicas with internal replication, without a weight", i+1, s)
		for _, r := range s.Replicas {
			servers = append(servers, r.Host)
			service, is := c.Services[r.Host]
			if !is || service.Hostname != r.Host || r.Port != "9000" {
				t.Errorf("%s:%s: no service has this host name", r.Host, r.Port)
			}
			var macros struct {
				Shard   string `xml:"macros>shard"`
				Replica string `xml:"macros>replica"`
			}
			for _, volume := range service.Volumes {
				file, _, _ := strings.Cut(volume, ":")
				if strings.Contains(volume, "macros") {
					readXML(t, filepath.Join(folder, file), &macros)
				}
			}
			if macros.Shard != fmt.Sprint(i+1) || macros.Replica != r.Host {
				t.Errorf("%s is in shard %d, but has the macros %+v", r.Host, i+1, macros)
			}
			for _, file := range []string{"./cluster.xml:/etc/clickhouse-server/config.d/", "./profile.xml:/etc/clickhouse-server/users.d/"} {
				if !slices.ContainsFunc(service.Volumes, func(v string) bool { return strings.HasPrefix(v, file) }) {
					t.Errorf("%s does not mount %s", r.Host, file)
				}
			}
		}
	}
	for name, service := range c.Services {
		expect.Not(t, !slices.Contains(servers, name) && !slices.Contains(cluster.Keepers, name), "%s is in no shard and no Keeper", name)
		for _, port := range service.Ports {
			expect.Not(t, !strings.HasPrefix(port, "127.0.0.1:"), "%s listens on %s: on loopback only, there are no passwords", name, port)
		}
	}
	for _, file := range []string{"keeper.xml", "profile.xml"} {
		var any struct{}
		readXML(t, filepath.Join(folder, file), &any)
	}
}

func readXML(t *testing.T, file string, v any) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err == nil {
		err = xml.Unmarshal(text, v)
	}
	fatal.When(t, err != nil, "%s: %v", file, err)
}
