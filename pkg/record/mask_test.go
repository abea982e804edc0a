package record_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"sluice/pkg/flow"
	"sluice/pkg/record"
)

// masked parses a body and returns what is kept of it, and its records.
func masked(t *testing.T, m *record.Mask, form record.Form, body string) (kept string, records []string) {
	t.Helper()
	r := record.NewRequest()
	defer r.Release()
	if err := r.Parse([]byte(body), form, record.Limits{Mask: m}); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	for i := range r.Len() {
		if !json.Valid(r.Record(i)) {
			t.Errorf("record %d of %s is %s", i, body, r.Record(i))
		}
		records = append(records, string(r.Record(i)))
	}
	return string(r.Body()), records
}

func TestSecretsInRecordsAreMasked(t *testing.T) {
	more, err := record.NewMask([]string{"apiKey", "größe", "worker", "variables"})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, body, want string }{
		{"a member of the record", `{"id":"a","password":"s3cret","key":1}`, `{"id":"a","password":"***","key":1}`},
		{"a member of the value", `{"id":"a","value":{"username":"ann","password":"s3cret"}}`, `{"id":"a","value":{"username":"ann","password":"***"}}`},
		{"at any depth", `{"id":"a","value":{"list":[[{"user":{"password":"s3cret"}}]]}}`, `{"id":"a","value":{"list":[[{"user":{"password":"***"}}]]}}`},
		{"in any case of letters", `{"id":"a","PassWord":"s3cret","PASSWORD":"s3cret"}`, `{"id":"a","PassWord":"***","PASSWORD":"***"}`},
		{"in letters that are the same in another case", `{"id":"a","paſſword":"s3cret"}`, `{"id":"a","paſſword":"***"}`},
		{"with escapes in its name", `{"id":"a","p\u0061ssword":"s3cret"}`, `{"id":"a","p\u0061ssword":"***"}`},
		{"twice", `{"id":"a","password":"one","password":"two"}`, `{"id":"a","password":"***","password":"***"}`},
		{"in a value that is given twice", `{"id":"a","value":{"password":"one"},"value":{"password":"two"}}`, `{"id":"a","value":{"password":"***"},"value":{"password":"***"}}`},
		{"a secret that is an object", `{"id":"a","password":{"hash":"s3cret","password":"s3cret"},"key":1}`, `{"id":"a","password":"***","key":1}`},
		{"a secret that is a list", `{"id":"a","password":["s3cret"]}`, `{"id":"a","password":"***"}`},
		{"a short text", `{"id":"a","password":"x","key":1}`, `{"id":"a","password":"*","key":1}`},
		{"a text of two", `{"id":"a","password":"xy"}`, `{"id":"a","password":"**"}`},
		{"a digit", `{"id":"a","password":7}`, `{"id":"a","password":0}`},
		{"a number", `{"id":"a","password":42,"Password":1234}`, `{"id":"a","password":"","Password":"**"}`},
		{"nothing", `{"id":"a","password":null,"Password":"","PASSWORD":{}}`, `{"id":"a","password":null,"Password":"","PASSWORD":{}}`},
		{"space around it", "{\"id\" : \"a\" , \"password\" :  \"s3cret\" , \"key\" : 1 }", "{\"id\" : \"a\" , \"password\" :  \"***\" , \"key\" : 1 }"},
		{"a name that only begins like it", `{"id":"a","password1":"x1y2","passwor":"x1y2","xpassword":"x1y2"}`, `{"id":"a","password1":"x1y2","passwor":"x1y2","xpassword":"x1y2"}`},
		{"a text that is called so", `{"id":"password","value":{"errorMessage":"password"}}`, `{"id":"password","value":{"errorMessage":"password"}}`},
		{"other names", `{"id":"a","APIKEY":"s3cret","value":{"GRÖßE":"s3cret","worker":"s3cret","variables":{"x":"s3cret"}}}`, `{"id":"a","APIKEY":"***","value":{"GRÖßE":"***","worker":"***","variables":"***"}}`},
		{"an array", `[{"id":"a","password":"s3cret"},{"id":"b"},{"id":"c","password":"s3cret"}]`, `[{"id":"a","password":"***"},{"id":"b"},{"id":"c","password":"***"}]`},
		{"wrapped", `{"password":"s3cret","records":[{"id":"a","password":"s3cret"},{"id":"b"}]}`, `{"password":"***","records":[{"id":"a","password":"***"},{"id":"b"}]}`},
		{"lines", "{\"id\":\"a\",\"password\":\"s3cret\"}\n{\"id\":\"b\",\"password\":\"s3cret\"}\n", "{\"id\":\"a\",\"password\":\"***\"}\n{\"id\":\"b\",\"password\":\"***\"}\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for range 2 { // names are remembered
				kept, records := masked(t, more, record.FormAuto, tt.body)
				if kept != tt.want {
					t.Errorf("kept is\n%s, want\n%s", kept, tt.want)
				}
				for _, r := range records {
					if !strings.Contains(tt.want, r) {
						t.Errorf("a record is %s", r)
					}
				}
				if again, _ := masked(t, more, record.FormAuto, kept); again != kept {
					t.Errorf("masked again it is %s", again)
				}
			}
		})
	}
}

// TestMasksDoNotMeet: what one mask has remembered of names is not believed
// under another.
func TestMasksDoNotMeet(t *testing.T) {
	more, err := record.NewMask([]string{"pin"})
	if err != nil {
		t.Fatal(err)
	}
	r := record.NewRequest()
	for i, m := range []*record.Mask{nil, more, nil, more} {
		if err := r.Parse([]byte(`{"id":"a","pin":"1234","value":{"pin":"1234"},"and":"much more after it, so that it is remembered"}`), record.FormAuto, record.Limits{Mask: m}); err != nil {
			t.Fatal(err)
		}
		if hidden := !strings.Contains(string(r.Body()), "1234"); hidden != (m != nil) {
			t.Errorf("%d: %s", i, r.Body())
		}
	}
}

// TestMaskedPartsAndHash: of two bodies that differ in secrets the same is kept,
// hashed and published.
func TestMaskedPartsAndHash(t *testing.T) {
	var all [2][]byte
	for i, secret := range []string{"one-secret", "another"} {
		body := `[{"id":"a","value":{"password":"` + secret + `"},"key":3},{"id":"b","key":4}]`
		r := record.NewRequest()
		if err := r.Parse([]byte(body), record.FormAuto, record.Limits{}); err != nil {
			t.Fatal(err)
		}
		chunks, err := r.Cut(flow.DefaultChunkBytes, 1, nil)
		if err != nil || len(chunks) != 1 || chunks[0].Records != 2 {
			t.Fatalf("chunks %v, %v", chunks, err)
		}
		all[i] = append([]byte(record.Hash(r.Body())), chunks[0].Body...)
		if bytes.Contains(all[i], []byte(secret)) {
			t.Errorf("published is %s", all[i])
		}
	}
	if !bytes.Equal(all[0], all[1]) {
		t.Errorf("published is\n%s and\n%s", all[0], all[1])
	}
}

func TestWhatCannotBeMaskedIsRefused(t *testing.T) {
	for _, name := range []string{"", "id", "ID", "position", "value", "Records", "tenantId", "processInstanceKey", "\xff", strings.Repeat("x", 257)} {
		if _, err := record.NewMask([]string{"fine", name}); err == nil || !strings.Contains(err.Error(), "\""+strings.ReplaceAll(name, "\xff", `\xff`)) {
			t.Errorf("%q: %v", name, err)
		}
	}
	if _, err := record.NewMask(make([]string, 65)); err == nil {
		t.Error("65 names are taken")
	}
}
