package capacity

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"text/tabwriter"
)

// WriteTable prints plans side by side, and what of each breaks first.
func WriteTable(w io.Writer, plans []Plan) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, row := range rows(plans) {
		for _, cell := range row {
			fmt.Fprintf(t, "%s\t", cell)
		}
		fmt.Fprintln(t)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, p := range plans {
		first := p.First()
		if _, err := fmt.Fprintf(w, "\nat %s records/s the first to break, at %s: %s; then %s", number(p.Ask.Rate), number(p.At()), first.What, first.Then); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintln(w)
	return err
}

func rows(plans []Plan) [][]string {
	all := [][]string{{"records per second"}}
	for _, p := range plans {
		all[0] = append(all[0], number(p.Ask.Rate))
	}
	add := func(what string, of func(Plan) string) {
		row := []string{what}
		for _, p := range plans {
			row = append(row, of(p))
		}
		all = append(all, row)
	}
	count := func(n func(Plan) int) func(Plan) string {
		return func(p Plan) string { return strconv.Itoa(n(p)) }
	}
	add("apis", count(func(p Plan) int { return p.APIs }))
	add("lanes", count(func(p Plan) int { return p.Lanes }))
	add("NATS nodes", count(func(p Plan) int { return p.NATS }))
	add("– log on each, TB", func(p Plan) string { return number(p.LogTB / float64(p.NATS)) })
	add("– syncs of each, per second", func(p Plan) string { return number(p.Syncs) })
	add("ingesters", count(func(p Plan) int { return p.Ingesters }))
	add("– --block-age", func(p Plan) string { return strconv.FormatFloat(p.Age, 'g', -1, 64) + "s" })
	add("– --block-rows", count(func(p Plan) int { return p.Rows }))
	add("shards", count(func(p Plan) int { return p.Shards }))
	add("ClickHouse servers", count(func(p Plan) int { return p.Servers }))
	add("– tables on each, TB", func(p Plan) string { return number(p.TablesTB / float64(p.Servers)) })
	add("– parts each gets, per second", func(p Plan) string { return number(p.Blocks) })
	add("machines", count(func(p Plan) int { return p.Machines }))
	add("one machine would do", func(p Plan) string {
		if p.OneWould {
			return "yes"
		}
		return "no"
	})
	add("a month: core-months busy", func(p Plan) string { return number(p.Cores) })
	add("– core-months paid", func(p Plan) string { return number(float64(p.Machines * p.Ask.Cores)) })
	add("– terabyte-months", func(p Plan) string { return number(p.LogTB + p.TablesTB) })
	return all
}

// Compared is a point that the model was not made of, and what the model says of it.
type Compared struct {
	Point    string
	What     string
	Unit     string
	Measured float64
	Said     float64
}

// Off is how far what was said is from what was measured, of that.
func (c Compared) Off() float64 { return c.Said/c.Measured - 1 }

// Compare says what the model predicts of the points that are held out.
func (m Model) Compare() (all []Compared) {
	for _, p := range m.Measured.Points {
		if p.Fit {
			continue
		}
		rate, connections := p.Records/p.Seconds, 0
		if p.Rate == 0 {
			connections = p.Connections
		}
		if p.Rate == 0 && m.Measured.Quiet() {
			all = append(all, Compared{p.Name, "most that goes in", "records/s", rate, m.Most(p.Batch, connections)})
		}
		said := m.Predict(rate, p.Batch, connections)
		all = append(all,
			Compared{p.Name, "api, NATS and ingester", "CPU-s per million", (p.CPU[API] + p.CPU[NATS] + p.CPU[Ingester]) / p.Records * 1e6,
				(said[API] + said[NATS] + said[Ingester]) * 1e6},
			Compared{p.Name, "ClickHouse", "CPU-s per million", p.CPU[Engine] / p.Records * 1e6, said[Engine] * 1e6},
		)
		if p.Streamed > 0 {
			all = append(all, Compared{p.Name, "log", "bytes per record", p.Streamed / p.Records, m.streamed(p.Batch)})
		}
	}
	return all
}

// WriteCompared prints that as a table of Markdown.
func WriteCompared(w io.Writer, all []Compared) error {
	var b strings.Builder
	b.WriteString("| load | what | unit | measured | said | off by |\n|---|---|---|--:|--:|--:|\n")
	for _, c := range all {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %+.0f %% |\n", c.Point, c.What, c.Unit, number(c.Measured), number(c.Said), c.Off()*100)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// number writes a figure with three digits or so, thousands apart.
func number(v float64) string {
	switch a := math.Abs(v); {
	case a < 1:
		return strconv.FormatFloat(v, 'f', 2, 64)
	case a < 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	text := strconv.FormatFloat(v, 'f', 0, 64)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + " " + text[i:]
	}
	return text
}

// WriteCosts prints what the model is made of.
func (m Model) WriteCosts(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "Measured %s by `%s` at %s, on %s, %.0f cores, mean loads before %s; one write of 4 KiB with fsync took %.2f ms.\n\n",
		m.Measured.When, m.Measured.Command, m.Measured.Commit, m.Measured.Machine, m.Measured.Cores, m.Measured.Busy, m.Measured.Sync*1e3)
	if m.Measured.Note != "" {
		fmt.Fprintf(&b, "%s\n\n", m.Measured.Note)
	}
	b.WriteString("| core-time | a record, µs | a request, µs | an entry, µs | a block, ms |\n|---|--:|--:|--:|--:|\n")
	for _, process := range []string{API, NATS, Ingester, Engine} {
		c := m.Costs[process]
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", process, number(c.Record*1e6), number(c.Request*1e6), number(c.Entry*1e6), number(c.Block*1e3))
	}
	fmt.Fprintf(&b, "\n- Each api, NATS server and ingester takes %s, %s and %s of a core beside that, whatever happens.\n", number(m.Costs[API].Second), number(m.Costs[NATS].Second), number(m.Costs[Ingester].Second))
	var log []string
	for _, s := range m.Streamed {
		log = append(log, fmt.Sprintf("%s (%.0f a request)", number(s.Bytes), s.Batch))
	}
	fmt.Fprintf(&b, "- A record of %.0f bytes takes %s in the tables, and in the log %s.\n", m.Bytes, number(m.Measured.Table), strings.Join(log, ", "))
	fmt.Fprintf(&b, "- An api and a lane have an entry every %s ms at most; each copy syncs it.\n", number(m.Publish*1e3))
	fmt.Fprintf(&b, "- A lane takes %s records/s beside everything else on that machine, of whose cores %.0f %% were used then.\n", number(m.Lane), m.Full*100)
	fmt.Fprintf(&b, "- Merges that come after the load take ClickHouse %.0f %% more.\n", m.Measured.Merges*100)
	_, err := io.WriteString(w, b.String())
	return err
}
