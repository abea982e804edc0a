package change_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"sluice/pkg/change"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

func secrets() *change.Secrets {
	return &change.Secrets{Key: []byte(strings.Repeat("k", 32))}
}

func TestNewUserPatch(t *testing.T) {
	for _, tc := range []struct {
		name, body string
		admin      bool
		want       string // body of the change
		members    []string
		warnings   change.Warnings
	}{
		{name: "an empty patch touches nothing", body: `{}`, want: `{}`},
		{name: "members of the specification", body: `{"name":"n","telephone":"+1","tableFieldsSetting":{"x":[1]}}`,
			want: `{"name":"n","tableFieldsSetting":{"x":[1]},"telephone":"+1"}`, members: []string{"name", "tableFieldsSetting", "telephone"}},
		{name: "null removes a member of any type", body: `{"name":null,"projects":null,"tableFieldsSetting":null}`,
			want: `{"name":null,"projects":null,"tableFieldsSetting":null}`, members: []string{"name", "projects", "tableFieldsSetting"}},
		{name: "unknown members are kept as they are", body: `{"shoe":{"size":42.50,"a":[null,9007199254740993]}}`,
			want: `{"shoe":{"a":[null,9007199254740993],"size":42.50}}`, members: []string{"shoe"}},
		{name: "the own id changes nothing", body: `{"id":"ann","name":"n"}`, want: `{"name":"n"}`, members: []string{"name"}},
		{name: "the id cannot be removed", body: `{"id":null}`, want: `{}`},
		{name: "of two members the last counts", body: `{"name":1,"name":"n"}`, want: `{"name":"n"}`, members: []string{"name"}},
		{name: "integers keep their text", admin: true, body: `{"type":5.0,"privileges":[1e3,-9223372036854775808]}`,
			want: `{"privileges":[1e3,-9223372036854775808],"type":5.0}`, members: []string{"privileges", "type"}},
		{name: "unknown features are kept and counted", admin: true, body: `{"grant":{"feature":["gis","warp","AI","tea"]}}`,
			want: `{"grant":{"feature":["gis","warp","AI","tea"]}}`, members: []string{"grant"}, warnings: change.Warnings{change.UnknownFeature: 2}},
		{name: "an admin sets what gives authority", admin: true, body: `{"status":true,"type":1,"privileges":[1],"grant":{"edition":"free"},"projects":[{"id":"p","license":{},"grant":{}}]}`,
			want:    `{"grant":{"edition":"free"},"privileges":[1],"projects":[{"grant":{},"id":"p","license":{}}],"status":true,"type":1}`,
			members: []string{"grant", "privileges", "projects", "status", "type"}},
		{name: "others do not, and it is counted", body: `{"status":null,"type":1,"privileges":[1],"grant":{"edition":"free"},"projects":[{"id":"p","license":{},"grant":null,"name":"x"}]}`,
			want: `{"projects":[{"id":"p","name":"x"}]}`, members: []string{"projects"}, warnings: change.Warnings{change.AuthorityIgnored: 6}},
		{name: "placeholders leave everything as it was", body: `{"ak":"<ACCESS_KEY>","sk":"<SECRET_KEY>","password":"<PASSWORD>","password1":"<PASSWORD>","telephone":"<PHONE>"}`, want: `{}`},
		{name: "masks leave everything as it was", body: `{"sk":"****","password":"","password1":"***"}`, want: `{}`},
		{name: "null removes a secret", body: `{"sk":null,"password":null,"password1":null}`, want: `{"password":null,"sk":null}`, members: []string{"password", "sk"}},
		{name: "a mask within an array holds its place", body: `{"projects":[{"id":"p","user":{"sk":"*****","password":""}}]}`,
			want: `{"projects":[{"id":"p","user":{"password":"****","sk":"****"}}]}`, members: []string{"projects"}},
		{name: "settings of a column called password are no secret", body: `{"tableFieldsSetting":{"password":{"width":10,"label":"x"},"password1":{"width":11},"sk":true}}`,
			want: `{"tableFieldsSetting":{"password":{"label":"x","width":10},"password1":{"width":11},"sk":true}}`, members: []string{"tableFieldsSetting"}},
		{name: "brackets within a text do not nest", body: `{"remarks":"\"` + strings.Repeat("[", 40) + `\\"}`,
			want: `{"remarks":"\"` + strings.Repeat("[", 40) + `\\"}`, members: []string{"remarks"}},
		{name: "text is written unchanged", body: `{"remarks":"<a href=\"x\">&\u0000"}`, want: `{"remarks":"<a href=\"x\">&\u0000"}`, members: []string{"remarks"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, warnings, err := change.NewUserPatch(t.Context(), "ann", tc.admin, []byte(tc.body), secrets())
			fatal.If(t, err)
			expect.Not(t, string(c.Body) != tc.want, "body is %s\nwant    %s", c.Body, tc.want)
			expect.Equal(t, "members", append([]string{}, tc.members...), append([]string{}, c.Members...))
			if len(tc.warnings)+len(warnings) > 0 {
				expect.Equal(t, "warnings", tc.warnings, warnings)
			}
			expect.Equal(t, "Empty", len(tc.members) == 0, c.Empty())
			expect.Not(t, c.Kind != change.UserPatched || c.Target.User != "ann" || c.By != "ann" || c.Admin != tc.admin || c.At.IsZero() || c.ID == "", "change is %+v", c)
		})
	}
}

func TestNewUserPatchRefuses(t *testing.T) {
	long := strings.Repeat("x", change.MaxBody)
	for _, tc := range []struct {
		name, body string
		want       string // pointer and code of each problem, or the error
	}{
		{"an empty body", ``, "syntax"},
		{"invalid JSON", `{"name":`, "syntax"},
		{"a second value", `{} {}`, "syntax"},
		{"bad UTF-8", "{\"name\":\"\xff\"}", "syntax"},
		{"raw control characters", "{\"name\":\"\x01\"}", "syntax"},
		{"a body too large", `{"name":"` + long + `"}`, "too large"},
		{"a body that grows too large", `{"name":"` + strings.Repeat("\u2028", change.MaxBody/3-10) + `"}`, "too large"},
		{"another user's id", `{"id":"bob"}`, "conflict"},
		{"an array", `[]`, "# not_an_object"},
		{"null", `null`, "# not_an_object"},
		{"deep nesting", `{"a":` + strings.Repeat("[", 32) + strings.Repeat("]", 32) + `}`, "# too_deep"},
		{"deep nesting that never ends", strings.Repeat(`{"a":`, 20000), "# too_deep"},
		{"very many values", `{"a":[` + strings.Repeat("1,", change.MaxValues) + `1]}`, "# too_many_values"},
		{"a text as a number", `{"name":1}`, "#/name wrong_type"},
		{"the id as a number", `{"id":1}`, "#/id wrong_type"},
		{"a password as a number", `{"password":1}`, "#/password wrong_type"},
		{"a boolean as a text", `{"status":"true"}`, "#/status wrong_type"},
		{"an integer as a text", `{"type":"1"}`, "#/type wrong_type"},
		{"a fraction", `{"type":1.5}`, "#/type not_an_integer"},
		{"an integer beyond 64 bits", `{"type":9223372036854775808}`, "#/type not_an_integer"},
		{"an integer far beyond", `{"type":1e999999999}`, "#/type not_an_integer"},
		{"an object as a text", `{"tableFieldsSetting":"x"}`, "#/tableFieldsSetting wrong_type"},
		{"an array as an object", `{"projects":{}}`, "#/projects wrong_type"},
		{"elements of the wrong type", `{"privileges":[1,null,"2"]}`, "#/privileges/1 wrong_type, #/privileges/2 wrong_type"},
		{"an unknown edition", `{"grant":{"edition":"gold"}}`, "#/grant/edition unknown_value"},
		{"an unknown edition of a license", `{"projects":[{"id":"p"},{"license":{"edition":""}}]}`, "#/projects/1/license/edition unknown_value"},
		{"a feature that is not a text", `{"grant":{"feature":["gis",1]}}`, "#/grant/feature/1 wrong_type"},
		{"counts", `{"grant":{"flow":{"flowCount":"1"},"visual":{"dashboardCount":false},"dataGathering":{"point":0.1}}}`,
			"#/grant/dataGathering/point not_an_integer, #/grant/flow/flowCount wrong_type, #/grant/visual/dashboardCount wrong_type"},
		{"two different passwords", `{"password":"one","password1":"two"}`, "#/password1 password_mismatch"},
		{"a confirmation of a mask", `{"password":"****","password1":"two"}`, "#/password1 password_mismatch"},
		{"a mask for a confirmation", `{"password":"one","password1":""}`, "#/password1 password_mismatch"},
		{"two different passwords of a project's user", `{"projects":[{"user":{"a/b~c é":{"password":"one","password1":"two"}}}]}`,
			"#/projects/0/user/a~1b~0c%20%C3%A9/password1 password_mismatch"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, _, err := change.NewUserPatch(t.Context(), "ann", true, []byte(tc.body), secrets())
			expect.Not(t, c != nil, "a change was made: %+v", c)
			expect.Equal(t, "result", tc.want, describe(err))
		})
	}
}

// describe names an error by the cases that the api distinguishes.
func describe(err error) string {
	var (
		problems *change.ProblemsError
		syntax   *change.SyntaxError
		target   *change.TargetError
		bad      *change.BadChangeError
	)
	switch {
	case errors.As(err, &problems):
		var all []string
		for _, p := range problems.Problems {
			all = append(all, p.Pointer+" "+p.Code)
		}
		return strings.Join(all, ", ")
	case errors.As(err, &syntax):
		return "syntax"
	case errors.As(err, &target):
		return "target " + target.Name
	case errors.As(err, &bad):
		return "bad " + bad.Code
	case errors.Is(err, change.ErrTooLarge):
		return "too large"
	case errors.Is(err, change.ErrConflict):
		return "conflict"
	case errors.Is(err, change.ErrBusy):
		return "busy"
	}
	return fmt.Sprint(err)
}

// TestProblemsHoldNoValue: no error, however it is printed, quotes a submitted value.
func TestProblemsHoldNoValue(t *testing.T) {
	for _, body := range []string{
		`{"name":7734,"grant":{"edition":"s3cr3t","feature":[7734]}}`, `{"password":"s3cr3t","password1":"s3cr3t7734"}`,
		`{"name":s3cr3t}`, `{"name":"s3cr3t"} s3cr3t`, `"s3cr3t"`, `{"id":"s3cr3t"}`,
	} {
		_, _, err := change.NewUserPatch(t.Context(), "ann", true, []byte(body), secrets())
		expect.Not(t, err == nil, "%s was accepted", body)
		text, _ := json.Marshal(err)
		if text := fmt.Sprintf("%s %+v %s", err, err, text); strings.Contains(text, "s3cr3t") || strings.Contains(text, "7734") {
			t.Errorf("%s: the error quotes it: %s", body, text)
		}
	}
}

func TestProblemsAndMembersAreBounded(t *testing.T) {
	_, _, err := change.NewUserPatch(t.Context(), "ann", true, []byte(`{"privileges":["x"`+strings.Repeat(`,"x"`, 5000)+`]}`), secrets())
	var problems *change.ProblemsError
	if !errors.As(err, &problems) || len(problems.Problems) != 100 {
		t.Errorf("%d problems, want 100", len(problems.Problems))
	}

	projects := `{"projects":[{}` + strings.Repeat(`,{"id":1,"name":1,"url":1}`, 5000) + `]}`
	_, _, err = change.NewUserPatch(t.Context(), "ann", true, []byte(projects), secrets())
	if !errors.As(err, &problems) || len(problems.Problems) != 100 {
		t.Errorf("%d problems in threes, want 100", len(problems.Problems))
	}

	name := strings.Repeat("é", 10_000)
	_, _, err = change.NewUserPatch(t.Context(), "ann", true, []byte(`{"`+name+`":{"password":"a","password1":"b"}}`), secrets())
	expect.Not(t, !errors.As(err, &problems) || len(problems.Problems[0].Pointer) > 1000, "got %.2000v, want one problem with a short pointer", err)

	var body strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&body, `,"%s%d":1`, name[:200], i)
	}
	c, _, err := change.NewUserPatch(t.Context(), "ann", true, []byte(`{"a":1`+body.String()+"}"), secrets())
	fatal.If(t, err)
	if n := len(c.Members); n != 257 || c.Members[256] != "…" || len(c.Members[1]) > 140 {
		t.Errorf("%d members, the last %q", n, c.Members[n-1])
	}
}

func TestSubjectsAreChecked(t *testing.T) {
	for _, subject := range []string{"", strings.Repeat("s", 257), "a\nb", "\xff"} {
		_, _, err := change.NewUserPatch(context.Background(), subject, false, []byte(`{}`), secrets())
		if got := describe(err); got != "target user" {
			t.Errorf("%q: got %s, want a *TargetError", subject, got)
		}
	}
}

func TestNewFieldPut(t *testing.T) {
	for _, tc := range []struct{ name, body, want string }{
		{"an empty field has its names", `{}`, `{"id":"f/1","tableId":"t 1"}`},
		{"null as a name", `{"id":null,"tableId":null,"style":null}`, `{"id":"f/1","style":null,"tableId":"t 1"}`},
		{"all members", `{"id":"f/1","name":"n","originalName":"o","biType":"b","originalBiType":"c","biTypeFmt":"date:YYYY","originalType":"VARCHAR","calculated":true,"checked":false,"isMeasure":true,"colIndex":1,"userColIdx":2,"size":9007199254740993,"style":{"w":1.50},"tableId":"t 1","tableName":"T","createdAt":"2024-05-06T07:08:09.123Z","updatedAt":"2024-05-06T07:08:09Z"}`,
			`{"biType":"b","biTypeFmt":"date:YYYY","calculated":true,"checked":false,"colIndex":1,"createdAt":"2024-05-06T07:08:09.123Z","id":"f/1","isMeasure":true,"name":"n","originalBiType":"c","originalName":"o","originalType":"VARCHAR","size":9007199254740993,"style":{"w":1.50},"tableId":"t 1","tableName":"T","updatedAt":"2024-05-06T07:08:09Z","userColIdx":2}`},
		{"unknown members", `{"x":[1.0]}`, `{"id":"f/1","tableId":"t 1","x":[1.0]}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, _, err := change.NewFieldPut("t 1", "f/1", "ann", []byte(tc.body))
			fatal.When(t, err != nil || string(c.Body) != tc.want, "got %+v, %v; want %s", c, err, tc.want)
			expect.Not(t, c.Kind != change.FieldPut || c.By != "ann" || c.Expected != nil || c.Empty(), "change is %+v", c)
		})
	}
}

func TestNewFieldPutRefuses(t *testing.T) {
	for _, tc := range []struct{ name, table, field, body, want string }{
		{"another id", "t", "f", `{"id":"g"}`, "conflict"},
		{"another table", "t", "f", `{"tableId":"u"}`, "conflict"},
		{"wrong types", "t", "f", `{"size":"1","style":[],"checked":0}`, "#/checked wrong_type, #/size wrong_type, #/style wrong_type"},
		{"an invalid date", "t", "f", `{"createdAt":"yesterday"}`, "#/createdAt not_a_date_time"},
		{"an array", "t", "f", `[{}]`, "# not_an_object"},
		{"no JSON", "t", "f", ``, "syntax"},
		{"an empty table", "", "f", `{}`, "target tableId"},
		{"an empty field", "t", "", `{}`, "target fieldId"},
		{"a long field", "t", strings.Repeat("f", 257), `{}`, "target fieldId"},
		{"control characters", "t\x00", "f", `{}`, "target tableId"},
		{"other control characters", "t", "f\u0085", `{}`, "target fieldId"},
		{"bad UTF-8", "t", "f\xc3", `{}`, "target fieldId"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, _, err := change.NewFieldPut(tc.table, tc.field, "ann", []byte(tc.body))
			if got := describe(err); got != tc.want || c != nil {
				t.Errorf("got %s and %v, want %s", got, c, tc.want)
			}
		})
	}
}

func TestNewFieldDelete(t *testing.T) {
	c, err := change.NewFieldDelete("t", "f", "ann", 7)
	expect.Not(t, err != nil || c.Kind != change.FieldDeleted || *c.Expected != 7 || c.Body != nil || c.Empty(), "got %+v, %v", c, err)
	if _, err := change.NewFieldDelete("t", "f\n", "ann", 0); describe(err) != "target fieldId" {
		t.Errorf("got %v, want a *TargetError", err)
	}
}
