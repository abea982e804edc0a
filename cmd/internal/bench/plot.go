package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// panel is one of the plots of a curve.
type panel struct {
	title string
	row   func(Point) Row
}

func panels() []panel {
	return []panel{
		{"records per second", func(p Point) Row { return p.Rate }},
		{"CPU-seconds per million records", func(p Point) Row { return p.CPU }},
		{"ack p99, ms", func(p Point) Row { return p.Ack }},
	}
}

// draw writes the plots of a curve, side by side, as one SVG into dir.
func (c Curve) draw(dir string) error {
	const width, height, gap = 26 * vg.Centimeter, 7 * vg.Centimeter, 6 * vg.Millimeter
	image := vgsvg.New(width, height)
	var plots []*plot.Plot
	for _, panel := range panels() {
		p, err := c.plot(panel)
		if err != nil {
			return err
		}
		plots = append(plots, p)
	}
	tiles := draw.Tiles{Rows: 1, Cols: len(plots), PadX: gap, PadTop: gap / 2, PadBottom: gap / 2, PadLeft: gap / 2, PadRight: gap / 2}
	for i, at := range plot.Align([][]*plot.Plot{plots}, tiles, draw.New(image))[0] {
		plots[i].Draw(at)
	}
	file, err := os.Create(filepath.Join(dir, c.Slug+".svg"))
	if err != nil {
		return err
	}
	if _, err := image.WriteTo(file); err != nil {
		file.Close()
		return fmt.Errorf("draw %s: %w", c.Slug, err)
	}
	return file.Close()
}

// plot draws the median of each point, one line per number of ingesters, and
// the spread of the runs.
func (c Curve) plot(panel panel) (*plot.Plot, error) {
	p := plot.New()
	sans(p)
	p.Title.Text, p.X.Label.Text = panel.title, c.What
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, c.ticks()
	p.Y.Tick.Marker = plot.TickerFunc(func(low, high float64) []plot.Tick {
		ticks := plot.DefaultTicks{}.Ticks(low, high)
		for i, t := range ticks {
			if t.Label != "" {
				ticks[i].Label = number(t.Value)
			}
		}
		return ticks
	})
	lines := map[int]*spread{}
	var order []int
	for _, at := range c.Points {
		if lines[at.Ingesters] == nil {
			lines[at.Ingesters] = new(spread)
			order = append(order, at.Ingesters)
		}
		lines[at.Ingesters].add(float64(at.X), panel.row(at))
	}
	for i, ingesters := range order {
		if err := lines[ingesters].draw(p, i, fmt.Sprintf("ingesters: %d", ingesters), len(order) > 1); err != nil {
			return nil, err
		}
	}
	p.Add(plotter.NewGrid())
	p.X.Min, p.X.Max = p.X.Min/1.3, p.X.Max*1.3 // a point at the edge is half a point, and one alone has no range
	p.Y.Min, p.Y.Max = 0, p.Y.Max*1.1
	p.Legend.Top = false
	return p, nil
}

// sans takes the serifs off.
func sans(p *plot.Plot) {
	for _, style := range []*draw.TextStyle{
		&p.Title.TextStyle, &p.X.Label.TextStyle, &p.Y.Label.TextStyle, &p.X.Tick.Label, &p.Y.Tick.Label, &p.Legend.TextStyle,
	} {
		style.Font.Variant = "Sans"
	}
}

// ticks are at the points.
func (c Curve) ticks() plot.ConstantTicks {
	var ticks plot.ConstantTicks
	for _, at := range c.Points {
		ticks = append(ticks, plot.Tick{Value: float64(at.X), Label: number(float64(at.X))})
	}
	return ticks
}

// spread is a line of medians with bars from the least to the most.
type spread struct {
	plotter.XYs
	plotter.YErrors
}

func (s *spread) add(x float64, r Row) {
	m := r.Median()
	low, high := m, m
	for _, v := range r.Runs {
		low, high = math.Min(low, v), math.Max(high, v)
	}
	s.XYs = append(s.XYs, plotter.XY{X: x, Y: m})
	s.YErrors = append(s.YErrors, struct{ Low, High float64 }{m - low, high - m})
}

func (s *spread) draw(p *plot.Plot, n int, name string, legend bool) error {
	line, points, err := plotter.NewLinePoints(s.XYs)
	if err != nil {
		return err
	}
	bars, err := plotter.NewYErrorBars(s)
	if err != nil {
		return err
	}
	line.Color, points.Color, bars.Color = plotutil.Color(n), plotutil.Color(n), plotutil.Color(n)
	line.Width, points.Shape = vg.Points(1.5), plotutil.Shape(n)
	p.Add(line, points, bars)
	if legend {
		p.Legend.Add(name, line, points)
	}
	return nil
}
