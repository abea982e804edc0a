package capacity

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"sluice/pkg/option"
)

// Ask is the requirements and the machines of an installation.
type Ask struct {
	Rate        float64       `kong:"-" json:"rate"` // peak records per second
	RecordBytes float64       `json:"record_bytes" default:"700" help:"Bytes of JSON of a record."`
	Batch       int           `json:"batch" default:"500" help:"Records per request."`
	Retention   time.Duration `json:"-" default:"9600h" help:"How long tables keep records."`
	Log         time.Duration `json:"-" name:"log-time" default:"24h" help:"Longest ClickHouse outage the log can buffer."`
	Copies      int           `json:"copies" default:"3" help:"Copies of every entry of the log: 1, 3 or 5."`
	Replicas    int           `json:"replicas" default:"2" help:"Replicas of every shard of ClickHouse."`
	Cores       int           `json:"cores" default:"16" help:"Cores of a machine."`
	Gigabits    float64       `json:"gigabits" default:"10" help:"Gigabits per second of its network."`
	Terabytes   float64       `json:"terabytes" default:"60" help:"Terabytes of its disks."`
	Use         float64       `json:"use" default:"0.6" help:"Target utilization of cores, network, disks, and lanes at that rate."` // from 0 to 1
}

// Default is the default of sluice capacity and docs/scaling.md, without a Rate.
var Default = func() (a Ask) {
	option.Defaults(&a)
	return a
}()

// Check fails if a value is out of range.
func (a Ask) Check() error {
	switch {
	case !(a.Rate > 0 && a.Rate <= 1e9):
		return fmt.Errorf("--rate is %v: must be from above 0 to a billion records per second", a.Rate)
	case !(a.RecordBytes >= 50 && a.RecordBytes <= 1<<20):
		return fmt.Errorf("--record-bytes is %v: must be from 50 to 1048576", a.RecordBytes)
	case a.Batch < 1 || a.Batch > 100_000:
		return fmt.Errorf("--batch is %d: must be from 1 to 100000", a.Batch)
	case a.Retention < 48*time.Hour:
		return fmt.Errorf("--retention is %s: must be at least 48h", a.Retention)
	case a.Log < 0 || a.Log > a.Retention:
		return fmt.Errorf("--log-time is %s: must be from 0s to --retention, %s", a.Log, a.Retention)
	case a.Copies != 1 && a.Copies != 3 && a.Copies != 5:
		return fmt.Errorf("--copies is %d: must be 1, 3 or 5", a.Copies)
	case a.Replicas < 1 || a.Replicas > 9:
		return fmt.Errorf("--replicas is %d: must be from 1 to 9", a.Replicas)
	case a.Cores < 1 || a.Cores > 1024:
		return fmt.Errorf("--cores is %d: must be from 1 to 1024", a.Cores)
	case !(a.Gigabits > 0):
		return fmt.Errorf("--gigabits is %v: must be more than 0", a.Gigabits)
	case !(a.Terabytes > 0):
		return fmt.Errorf("--terabytes is %v: must be more than 0", a.Terabytes)
	case !(a.Use > 0 && a.Use <= 1):
		return fmt.Errorf("--use is %v: must be more than 0 and at most 1", a.Use)
	}
	return nil
}

// Plan is the required processes and machines.
type Plan struct {
	Ask       Ask     `json:"ask"`
	APIs      int     `json:"apis"`
	Lanes     int     `json:"lanes"`
	NATS      int     `json:"nats_nodes"`
	Ingesters int     `json:"ingesters"`
	Shards    int     `json:"shards"`
	Servers   int     `json:"clickhouse_servers"`
	Cores     float64 `json:"cores_busy"` // of all processes, at the rate
	Machines  int     `json:"machines"`
	OneWould  bool    `json:"one_machine_would_do"` // by its cores, without copies

	LogTB    float64 `json:"log_terabytes"`     // of all nodes
	TablesTB float64 `json:"table_terabytes"`   // of all servers
	Syncs    float64 `json:"syncs_per_second"`  // of each NATS node
	Blocks   float64 `json:"blocks_per_second"` // each creates a part in every shard
	Age      float64 `json:"block_age_seconds"` // --block-age of the ingesters
	Rows     int     `json:"block_rows"`        // --block-rows of the ingesters
	Limits   []Limit `json:"limits"`            // the first one reached first
}

// Limit is the use of a bounded resource.
type Limit struct {
	What string  `json:"what"`
	Used float64 `json:"used"` // share of its capacity
	Then string  `json:"then"` // the remedy
}

// First is the limit reached first at a higher rate.
func (p Plan) First() Limit { return p.Limits[0] }

// At is the rate at which it is reached.
func (p Plan) At() float64 { return p.Ask.Rate / p.First().Used }

// Plan computes the required processes. The error names the flag whose value no number of
// machines can satisfy.
func (m Model) Plan(a Ask) (Plan, error) {
	if err := a.Check(); err != nil {
		return Plan{}, err
	}
	p := Plan{Ask: a, APIs: 2, NATS: a.Copies, Ingesters: 2}
	size := a.RecordBytes / m.Bytes // per-record costs scale with its bytes
	cost := func(process string) Cost {
		c := m.Costs[process]
		c.Record *= size
		if process == Engine {
			c.Second = 0
		}
		return c
	}
	room := a.Use * float64(a.Cores)
	p.Lanes = int(math.Ceil(a.Rate * size / (m.Lane * a.Use)))

	// Shards divide records but not blocks: each block creates a part in every shard.
	// When that takes half of a server's target use, blocks must be larger and older.
	for times := 1.0; ; times *= 2 {
		p.Age, p.Rows = blockAge*times, int(inBlock(times))
		server, err := m.fill(&p, size, cost, room, times)
		if err != nil || server <= room/2 || times == maxTimes {
			return p, err
		}
	}
}

// maxTimes bounds the age of blocks, as a multiple of the default: records are then
// queryable after some 8 s.
const maxTimes = 16

// fill computes the plan for one block size. It returns the cores that parts of blocks take
// on every server.
func (m Model) fill(p *Plan, size float64, cost func(string) Cost, room, times float64) (every float64, err error) {
	a := p.Ask
	flow := m.traffic(a, size)
	kept := func(bytes float64, of time.Duration) float64 { return bytes * size * a.Rate * of.Seconds() / 1e12 }
	p.LogTB = kept(m.streamed(a.Batch), a.Log) * float64(a.Copies)
	p.TablesTB = kept(m.Measured.Table, a.Retention) * float64(a.Replicas)
	// More apis make more and smaller entries, more ingesters hold fewer lanes each:
	// iterate until the numbers are stable.
	var l load
	var api, nats, ingester float64
	for range 100 {
		before := *p
		p.Lanes = max(p.Lanes, p.Ingesters)
		pairs := float64(p.APIs * p.Lanes)
		l = load{records: a.Rate, requests: a.Rate / float64(a.Batch)}
		l.entries = pairs * m.entries(l.requests/pairs)
		l.blocks = float64(p.Lanes) * blocks(a.Rate/float64(p.Lanes), p.Lanes <= p.Ingesters, times)
		api, nats, ingester = cost(API).of(l, p.APIs), cost(NATS).of(l, 1)*float64(a.Copies), cost(Ingester).of(l, p.Ingesters)
		syncs := (l.entries + l.blocks) * float64(a.Copies) * m.Measured.Sync // sequential
		p.APIs = max(p.APIs, whole(api/room), whole(flow.api/a.Use))
		p.Ingesters = max(p.Ingesters, whole(ingester/room), whole(flow.ingester/a.Use))
		p.NATS = max(p.NATS, whole(nats/room), whole(syncs/a.Use), whole(flow.nats/a.Use), whole(p.LogTB/(a.Terabytes*a.Use)))
		p.Syncs = (l.entries + l.blocks) * float64(a.Copies) / float64(p.NATS)
		if before.APIs == p.APIs && before.Ingesters == p.Ingesters && before.NATS == p.NATS && before.Lanes == p.Lanes {
			break
		}
	}
	p.Blocks = l.blocks

	engine := cost(Engine)
	merged := 1 + m.Measured.Merges
	each := engine.Record * a.Rate * merged
	every = engine.Block * l.blocks * merged
	if every >= room && times < maxTimes {
		return every, nil // retried with larger blocks
	}
	if every >= room {
		return every, fmt.Errorf("--rate %.0f with --cores %d: %.0f blocks per second create parts in every shard, which take %.1f cores of each: use larger machines or several installations",
			a.Rate, a.Cores, l.blocks, every)
	}
	p.Shards = max(1, whole(each/(room-every)), whole(flow.server/a.Use), whole(p.TablesTB/float64(a.Replicas)/(a.Terabytes*a.Use)))
	p.Servers = p.Shards * a.Replicas
	clickhouse := float64(a.Replicas) * (each + every*float64(p.Shards))

	p.Cores = api + nats + ingester + clickhouse
	p.Machines = p.APIs + p.NATS + p.Ingesters + p.Servers
	p.OneWould = api+nats/float64(a.Copies)+ingester+each+every <= room
	p.limits(m, flow, api, nats, ingester, each/float64(p.Shards)+every, every)
	return every, nil
}

// whole rounds up to whole machines.
func whole(n float64) int { return int(math.Ceil(n)) }

// traffic is the network traffic of all machines of a kind, relative to one machine's capacity.
type traffic struct{ api, nats, ingester, server float64 }

func (m Model) traffic(a Ask, size float64) traffic {
	wire := a.Gigabits * 1e9 / 8
	streamed, inserted, stored := a.Rate*m.streamed(a.Batch)*size, a.Rate*m.Measured.Inserted*size, a.Rate*m.Measured.Table*size
	return traffic{
		api:      a.Rate * a.RecordBytes / wire,
		nats:     streamed * float64(1+a.Copies-1+1) / wire, // from the api, to the other copies, to the ingester
		ingester: inserted / wire,
		server:   (inserted + stored*float64(a.Replicas-1)) / wire,
	}
}

// limits computes the use of every resource.
func (p *Plan) limits(m Model, flow traffic, api, nats, ingester, server, every float64) {
	cores, apis, nodes, ingesters, shards := float64(p.Ask.Cores), float64(p.APIs), float64(p.NATS), float64(p.Ingesters), float64(p.Shards)
	size := p.Ask.RecordBytes / m.Bytes
	p.Limits = []Limit{
		{"cores of the apis", api / (apis * cores), "another api"},
		{"what a lane takes", p.Ask.Rate * size / float64(p.Lanes) / m.Lane, "more lanes: sluice lanes add"},
		{"cores of the NATS nodes", nats / (nodes * cores), "another NATS node"},
		{"syncs of a NATS node", p.Syncs * m.Measured.Sync, "more records in a request, or another NATS node"},
		{"disks of the NATS nodes", p.LogTB / (nodes * p.Ask.Terabytes), "another NATS node, or a shorter log"},
		{"cores of the ingesters", ingester / (ingesters * cores), "another ingester"},
		{"cores of the ClickHouse servers", server / cores, "another shard, and a rebuild"},
		{"disks of the ClickHouse servers", p.TablesTB / (float64(p.Servers) * p.Ask.Terabytes), "a shorter retention, or another shard and a rebuild"},
		{"blocks, each a part of every shard", every / cores, "larger and older blocks"},
		{"network of the apis", flow.api / apis, "another api, or compressed requests"},
		{"network of the NATS nodes", flow.nats / nodes, "another NATS node"},
		{"network of the ingesters", flow.ingester / ingesters, "another ingester"},
		{"network of the ClickHouse servers", flow.server / shards, "another shard, and a rebuild"},
	}
	slices.SortStableFunc(p.Limits, func(a, b Limit) int { return cmp.Compare(b.Used, a.Used) })
}
