package deploy_test

import (
	"encoding/xml"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

// TestClickHouseKnowsItsSettings looks the names in the settings files up in the engine: a
// server does not start with an unknown setting in a profile.
func TestClickHouseKnowsItsSettings(t *testing.T) {
	engine := clickhousetest.Shared(t)
	known := strings.Fields(clickhousetest.Exec(t, engine, "SELECT name FROM system.settings FORMAT TSV"))
	found := 0
	for _, path := range paths(t, "clickhouse/users.d/sluice.xml") {
		inProfile, ok := strings.CutPrefix(path, "clickhouse/profiles/")
		if !ok {
			continue
		}
		_, setting, ok := strings.Cut(inProfile, "/")
		setting = strings.TrimPrefix(setting, "constraints/")
		if !ok || setting == "constraints" {
			continue
		}
		name, _, _ := strings.Cut(setting, "/")
		found++
		expect.Not(t, !slices.Contains(known, name), "%s: ClickHouse has no such setting", path)
	}
	expect.Not(t, found < 10, "%d settings were found in the profiles", found)
	server := strings.Fields(clickhousetest.Exec(t, engine, "SELECT name FROM system.server_settings FORMAT TSV"))
	if name := "max_server_memory_usage_to_ram_ratio"; !slices.Contains(paths(t, "clickhouse/config.d/sluice.xml"), "clickhouse/"+name) || !slices.Contains(server, name) {
		t.Errorf("%s is not set, or not known", name)
	}
}

func TestClickHouseUsersHaveAPasswordAndLimitedRights(t *testing.T) {
	var config struct {
		Users struct {
			User []struct {
				XMLName  xml.Name
				Password struct {
					FromEnv string `xml:"from_env,attr"`
					Text    string `xml:",chardata"`
				} `xml:"password"`
				Profile string   `xml:"profile"`
				Grants  []string `xml:"grants>query"`
			} `xml:",any"`
		} `xml:"users"`
	}
	fatal.If(t, xml.Unmarshal(read(t, "clickhouse/users.d/sluice.xml"), &config))
	environment := compose(t).Services["clickhouse"].Environment
	users := map[string]bool{}
	for _, u := range config.Users.User {
		name := u.XMLName.Local
		users[name] = true
		if _, ok := environment[u.Password.FromEnv]; !ok || u.Password.Text != "" {
			t.Errorf("the password of %s comes from %q, which compose sets: %t", name, u.Password.FromEnv, ok)
		}
		if u.Profile != name || len(u.Grants) == 0 {
			t.Errorf("%s has profile %q and rights %q", name, u.Profile, u.Grants)
		}
		for _, grant := range u.Grants {
			models := name == "flow_modeller" && (strings.HasSuffix(grant, " ON models.*") || grant == "GRANT CREATE TEMPORARY TABLE ON *.*")
			if !strings.HasSuffix(grant, " ON flow.*") && !strings.HasPrefix(grant, "GRANT SELECT ON system.") && !models || name != "flow_writer" && strings.HasSuffix(grant, " ON flow.*") && grant != "GRANT SELECT ON flow.*" {
				t.Errorf("%s may %s", name, grant)
			}
		}
	}
	expect.Not(t, !users["flow_writer"] || !users["flow_analyst"] || !users["flow_modeller"] || !users["flow_console"], "there are users %v", users)
	if url := compose(t).Services["ingester"].Environment["SLUICE_CLICKHOUSE"]; !strings.HasPrefix(url, "clickhouse://flow_writer:") {
		t.Errorf("the ingester writes as %s", url)
	}
}

// paths lists the elements of an XML file by their paths from the root.
func paths(t *testing.T, name string) []string {
	t.Helper()
	decoder := xml.NewDecoder(strings.NewReader(string(read(t, name))))
	var all, at []string
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return all
		}
		fatal.When(t, err != nil, "%s: %v", name, err)
		switch element := token.(type) {
		case xml.StartElement:
			at = append(at, element.Name.Local)
			all = append(all, strings.Join(at, "/"))
		case xml.EndElement:
			at = at[:len(at)-1]
		}
	}
}
