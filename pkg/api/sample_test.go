package api_test

import (
	"bufio"
	"compress/gzip"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/pkg/fatal"
)

// sampled are the records of a Camunda 8.6.0 broker, with the variable ck of its processes renamed
// to password.
func sampled(t *testing.T) (all []string) {
	t.Helper()
	f, err := os.Open("../warehouse/testdata/camunda-8.6.0.ndjson.gz")
	fatal.If(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	fatal.If(t, err)
	called := strings.NewReplacer(`"ck":`, `"password":`, `"name":"ck"`, `"name":"password"`)
	lines := bufio.NewScanner(z)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		all = append(all, called.Replace(lines.Text()))
	}
	if err := lines.Err(); err != nil || len(all) != 11_919 {
		t.Fatalf("%d records, %v", len(all), err)
	}
	return all
}

// TestPasswordsOfARealEngineAreStoredMasked: values of variables named password, and members of
// that name in variables. Nothing else changes.
func TestPasswordsOfARealEngineAreStoredMasked(t *testing.T) {
	all := sampled(t)
	variable := regexp.MustCompile(`("name":"password","value":)"(?:[^"\\]|\\.)*"`)
	member := regexp.MustCompile(`("password":)"[^"]*"`)
	want, variables, members := make([]string, len(all)), 0, 0
	for i, line := range all {
		variables += len(variable.FindAllString(line, -1))
		members += len(member.FindAllString(line, -1))
		want[i] = member.ReplaceAllString(variable.ReplaceAllString(line, `$1"***"`), `$1"***"`)
	}
	if variables != 270 || members < 200 {
		t.Fatalf("%d variables and %d members are called password", variables, members)
	}
	want = sorted(canonical(want))
	for door, post := range map[string]func(*door, []string){
		"records": func(d *door, some []string) {
			wantOK(t, d.post(strings.Join(some, "\n")+"\n", header("Content-Type", "application/x-ndjson")))
		},
		"the exporter": func(d *door, some []string) { took(t, d.exports(http.MethodPost, "/_bulk", bulkOf(some...))) },
	} {
		d := newDoor(t, config())
		for some := range slices.Chunk(all, 1000) {
			post(d, some)
		}
		if diff := cmp.Diff(want, sorted(canonical(d.stream.stored()))); diff != "" {
			t.Errorf("by %s (-want +stored):\n%.2000s", door, diff)
		}
	}
}
