package main

import (
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestPage saves figures, reads them again and shows them.
func TestPage(t *testing.T) {
	f := &figures{
		Taken: time.Date(2025, 11, 21, 5, 0, 0, 0, time.UTC), Engine: "26.7.2.1", Cores: 2,
		Steps: []*step{
			{Records: 2_000_000, Load: "1, 1, 1", Took: 30, Bytes: 40_000_000, Answers: []answer{
				{"durations", cost{80, 40.4, 60, 20_500, 1_234_567}, cost{30, 12, 20, 1500, 100_000}},
				{"timeline", cost{50, 19, 30, 900, 70_000}, cost{}},
			}},
			{Records: 20_000_000, Load: "1, 1, 1", Took: 300, Bytes: 400_000_000, Answers: []answer{
				{"durations", cost{800, 120.4, 220, 2_050_000, 12_345_678}, cost{31, 13, 20, 1600, 100_000}},
				{"timeline", cost{60, 20.5, 40, 900, 70_000}, cost{}},
			}},
			{Records: 40_000_000, Copies: 1, Load: "1, 1, 1", Bytes: 800_000_000, Answers: []answer{
				{"durations", cost{900, 240, 460, 4_100_000, 24_345_678}, cost{31, 9.96, 20, 1600, 100_000}},
				{"timeline", cost{60, 21, 40, 900, 70_000}, cost{}},
			}},
		},
	}
	file := filepath.Join(t.TempDir(), "figures.json")
	if err := f.save(file); err != nil {
		t.Fatal(err)
	}
	read, err := readFigures(file)
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	if err := writePage(&text, read); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| 20 million records | posted and stored in 300 s; 20.0 bytes each in all tables; load of the machine before 1, 1, 1 |\n",
		"| 40 million records | the ones before, and 1 copies of them as other engines, each a month earlier; 20.0 bytes",
		"| [durations](../analytics.md#durations) | 800 | **120** | 220 | 2.05 M | 12.3 | 31 | 13 | 20 | 1.6 k | 0.1 |\n",
		"| [timeline](../analytics.md#timeline) | 60 | **20** | 40 | 900 | 0.1 | | | | | |\n",
		"Within their goal: 0 of 2 about all the time, 1 of 1 about a day.\n",
		"| durations | 40 | 12 | **120** | 13 | **240** | 10.0 |\n",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the page lacks %q:\n%s", want, &text)
		}
	}
}
