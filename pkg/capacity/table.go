package capacity

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"text/tabwriter"
)

// WriteTable prints plans side by side, with the first limit of each.
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

// number formats a figure with about three significant digits and thousands separators.
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
