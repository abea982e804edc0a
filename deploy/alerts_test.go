package deploy_test

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

const runbooks = "../docs/runbooks"

var (
	headings = regexp.MustCompile(`(?m)^#+ .*$`)
	blocks   = regexp.MustCompile("(?ms)^```(\\w+)\n(.*?)^```$")
	inline   = regexp.MustCompile("`(sluice [^`]+|--[a-z-]+)`")
)

// TestEachAlertHasItsRunbook: its link leads to a page with the four sections in order and
// valid PromQL.
func TestEachAlertHasItsRunbook(t *testing.T) {
	known := metricNames(t)
	index := string(read(t, filepath.Join(runbooks, "README.md")))
	pages, err := filepath.Glob(filepath.Join(runbooks, "[A-Z]*.md"))
	fatal.If(t, err)
	pages = slices.DeleteFunc(pages, func(page string) bool { return filepath.Base(page) == "README.md" })
	all := alerts(t)
	expect.Not(t, len(pages) != len(all), "there are %d alerts and %d pages", len(all), len(pages))
	for _, rule := range all {
		page := "docs/runbooks/" + rule.Alert + ".md"
		if got := rule.Annotations["runbook_url"]; got != page {
			t.Errorf("alert %s links %q, want %s", rule.Alert, got, page)
		}
		text := string(read(t, filepath.Join("..", page)))
		want := []string{"# " + rule.Alert, "## Meaning", "## First look", "## Fix", "## Resolved when"}
		if got := headings.FindAllString(blocks.ReplaceAllString(text, ""), -1); !slices.Equal(got, want) {
			t.Errorf("%s has the headings %q, want %q", page, got, want)
		}
		_, over, _ := strings.Cut(text, "## Resolved when")
		expect.Not(t, !strings.Contains(over, "```promql"), "%s does not say what Prometheus answers when it is over", page)
		expect.Not(t, !strings.Contains(index, "]("+rule.Alert+".md)"), "docs/runbooks/README.md does not list %s", rule.Alert)
		for _, expr := range blocksOf(text, "promql") {
			for _, name := range metricsOf(expr) {
				expect.Not(t, !known(name), "%s asks for %s, which nothing has", page, name)
			}
		}
	}
}

// TestCommandsOfRunbooksExist compares commands and options in runbooks with --help.
func TestCommandsOfRunbooksExist(t *testing.T) {
	t.Parallel()
	program := buildAll(t)["sluice"]
	help := map[string]string{}
	helpOf := func(command string) string {
		if _, ok := help[command]; !ok {
			out, err := exec.Command(program, append(strings.Fields(command), "--help")...).CombinedOutput()
			expect.Not(t, err != nil || !strings.Contains(string(out), "Usage: sluice "+command), "sluice %s --help: %v\n%s", command, err, out)
			help[command] = string(out)
		}
		return help[command]
	}
	helpOf("up") // an option outside of a command is sluice up's, or of a command of the page
	pages, err := filepath.Glob(filepath.Join(runbooks, "*.md"))
	fatal.When(t, err != nil || len(pages) < 20, "%d pages, %v", len(pages), err)
	for _, page := range pages {
		text := string(read(t, page))
		for _, said := range append(commandsIn(text), blocksOf(text, "sh")...) {
			command, options := split(said)
			if command == "" {
				continue
			}
			there := helpOf(command)
			for _, option := range options {
				expect.Not(t, !strings.Contains(there, option), "%s: sluice %s has no %s", page, command, option)
			}
		}
		for _, said := range inline.FindAllStringSubmatch(strings.ReplaceAll(text, "\n", " "), -1) {
			if option := said[1]; strings.HasPrefix(option, "--") && !slices.ContainsFunc(commandsIn(text), func(said string) bool {
				command, _ := split(said)
				return command != "" && strings.Contains(helpOf(command), option)
			}) && !strings.Contains(help["up"], option) {
				t.Errorf("%s names %s, which is an option neither of sluice up nor of a command of the page", page, option)
			}
		}
	}
}

// commandsIn returns the sluice commands in the text of a page.
func commandsIn(text string) (all []string) {
	for _, said := range inline.FindAllStringSubmatch(strings.ReplaceAll(blocks.ReplaceAllString(text, ""), "\n", " "), -1) {
		if strings.HasPrefix(said[1], "sluice ") {
			all = append(all, said[1])
		}
	}
	return all
}

// split separates a command line from its options.
func split(line string) (command string, options []string) {
	words := strings.Fields(line)
	if len(words) < 2 || words[0] != "sluice" || words[1] == "…" {
		return "", nil
	}
	first := slices.IndexFunc(words, func(word string) bool { return strings.HasPrefix(word, "-") })
	if first < 0 {
		first = len(words)
	}
	for _, word := range words[first:] {
		if strings.HasPrefix(word, "--") {
			options = append(options, word)
		}
	}
	return strings.Join(words[1:first], " "), options
}

// blocksOf returns the lines of a page's code blocks of a language.
func blocksOf(text, language string) (lines []string) {
	for _, block := range blocks.FindAllStringSubmatch(text, -1) {
		if block[1] == language {
			lines = append(lines, strings.Split(strings.TrimSpace(block[2]), "\n")...)
		}
	}
	return lines
}

// TestEachAlertHasItsUnitTest: make foreign runs them by promtool.
func TestEachAlertHasItsUnitTest(t *testing.T) {
	var file struct {
		Tests []struct {
			Name    string
			Queries []any `yaml:"promql_expr_test"`
		}
	}
	readYAML(t, "prometheus/alerts_test.yml", &file)
	var got, want []string
	for _, rule := range alerts(t) {
		want = append(want, rule.Alert)
	}
	for _, test := range file.Tests {
		got = append(got, test.Name)
		if n := len(test.Queries); n < 2 || n > 3 {
			t.Errorf("the test of %s has %d checks, want 3: before, while, and after it fires (2 if it fires to the end of the recording)", test.Name, n)
		}
	}
	expect.Not(t, !slices.Equal(got, want), "tested are %q\nwant the alerts in their order %q", got, want)
}
