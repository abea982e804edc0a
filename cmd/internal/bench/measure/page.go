package measure

import (
	"bytes"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"text/template"
	"time"
)

// Page is everything that was measured. What was not is empty.
type Page struct {
	Command  string
	Short    bool
	Runs     int
	Records  float64 // of each drain
	Began    time.Time
	Took     time.Duration
	Machine  Machine
	Versions Versions
	Goals    []Row
	Curves   []Curve
	Drains   []Drain
}

var (
	//go:embed page.md.tmpl
	source string
	//go:embed delay.md.tmpl
	delaySource string
)

// execute fills a page in.
func (p Page) execute(source string) ([]byte, error) {
	page, err := template.New("page").Funcs(template.FuncMap{
		"number":  number,
		"ms":      ms,
		"least":   func() string { return ms(pauseLeast) },
		"minutes": func(d time.Duration) string { return number(d.Minutes()) },
	}).Parse(source)
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	err = page.Execute(&text, p)
	return text.Bytes(), err
}

// write writes performance.md and the plots into dir.
func (p Page) write(dir string) error {
	text, err := p.execute(source)
	if err != nil {
		return err
	}
	plots := filepath.Join(dir, "performance")
	if err := os.MkdirAll(plots, 0o755); err != nil {
		return err
	}
	for _, c := range p.Curves {
		if err := c.draw(plots); err != nil {
			return fmt.Errorf("plot %s: %w", c.Slug, err)
		}
	}
	return os.WriteFile(filepath.Join(dir, "performance.md"), text, 0o644)
}

// writeDelay writes performance/delay.md into dir.
func (p Page) writeDelay(dir string) error {
	text, err := p.execute(delaySource)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(dir, "performance"), 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "performance", "delay.md"), text, 0o644)
}

func ms(d time.Duration) string { return number(float64(d) / float64(time.Millisecond)) }

// Missed are the rows whose goal is not met.
func (p Page) Missed() (missed []Row) {
	for _, r := range p.Goals {
		if r.Verdict() == no {
			missed = append(missed, r)
		}
	}
	return missed
}
