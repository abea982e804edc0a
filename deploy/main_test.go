package deploy_test

import (
	"encoding/json"
	"os"
	"testing"

	"go.yaml.in/yaml/v3"

	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/fatal"
)

func TestMain(m *testing.M) { clickhousetest.Main(m) }

func read(t *testing.T, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(name)
	fatal.If(t, err)
	return content
}

func readYAML(t *testing.T, name string, into any) {
	t.Helper()
	if err := yaml.Unmarshal(read(t, name), into); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

func readJSON(t *testing.T, name string, into any) {
	t.Helper()
	if err := json.Unmarshal(read(t, name), into); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}
