package record_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/record"
)

// masked parses a body and returns the kept body and its records.
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
	fatal.If(t, err)
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
		{"a short text", `{"id":"a","password":"x","key":1}`, `{"id":"a","password":"***","key":1}`},
		{"a text of two", `{"id":"a","password":"xy"}`, `{"id":"a","password":"***"}`},
		{"a digit", `{"id":"a","password":7}`, `{"id":"a","password":"***"}`},
		{"a number", `{"id":"a","password":42,"Password":1234}`, `{"id":"a","password":"***","Password":"***"}`},
		{"nothing", `{"id":"a","password":null,"Password":"","PASSWORD":{}}`, `{"id":"a","password":null,"Password":"","PASSWORD":{}}`},
		{"space around it", "{\"id\" : \"a\" , \"password\" :  \"s3cret\" , \"key\" : 1 }", "{\"id\" : \"a\" , \"password\" :  \"***\" , \"key\" : 1 }"},
		{"a name that only begins like it", `{"id":"a","password1":"x1y2","passwor":"x1y2","xpassword":"x1y2"}`, `{"id":"a","password1":"x1y2","passwor":"x1y2","xpassword":"x1y2"}`},
		{"a text that is called so", `{"id":"password","value":{"errorMessage":"password"}}`, `{"id":"password","value":{"errorMessage":"password"}}`},
		{"other names", `{"id":"a","APIKEY":"s3cret","value":{"GRÖßE":"s3cret","worker":"s3cret","variables":{"x":"s3cret"}}}`, `{"id":"a","APIKEY":"***","value":{"GRÖßE":"***","worker":"***","variables":"***"}}`},
		{"short ones after a long one", `{"id":"a","password":"a-long-secret","value":{"password":1,"x":2,"Password":""},"PASSWORD":3}`, `{"id":"a","password":"***","value":{"password":"***","x":2,"Password":""},"PASSWORD":"***"}`},
		{"a name whose value was null before", `[{"id":"a","password":null,"and":"much more after it, so that it is remembered"},{"id":"a","password":"s3cret","and":"much more after it"}]`, `[{"id":"a","password":null,"and":"much more after it, so that it is remembered"},{"id":"a","password":"***","and":"much more after it"}]`},

		{"a variable", `{"valueType":"VARIABLE","value":{"name":"password","value":"\"s3cret\"","scopeKey":7}}`, `{"valueType":"VARIABLE","value":{"name":"password","value":"***","scopeKey":7}}`},
		{"a variable whose type comes last and name after its value", `{"value":{"value":"\"s3cret\"","name":"PassWord"},"valueType":"VARIABLE"}`, `{"value":{"value":"***","name":"PassWord"},"valueType":"VARIABLE"}`},
		{"a variable of the cluster", `{"valueType":"CLUSTER_VARIABLE","value":{"name":"password","value":"\"s3cret\""}}`, `{"valueType":"CLUSTER_VARIABLE","value":{"name":"password","value":"***"}}`},
		{"a variable with escapes in its name and type", `{"valueType":"VARI\u0041BLE","value":{"name":"p\u0061ssword","value":"1"}}`, `{"valueType":"VARI\u0041BLE","value":{"name":"p\u0061ssword","value":"***"}}`},
		{"a variable that is given twice", `{"valueType":"VARIABLE","value":{"name":"password","value":"one"},"value":{"value":"two","value":"three","name":"password","name":"x"}}`, `{"valueType":"VARIABLE","value":{"name":"password","value":"***"},"value":{"value":"***","value":"***","name":"password","name":"x"}}`},
		{"a variable that is JSON with members of the name", `{"valueType":"VARIABLE","value":{"value":"{\"password\":\"s3cret\"}","name":"password"}}`, `{"valueType":"VARIABLE","value":{"value":"***","name":"password"}}`},
		{"a variable of another name", `{"valueType":"VARIABLE","value":{"name":"passwort","value":"\"x1y2\""}}`, `{"valueType":"VARIABLE","value":{"name":"passwort","value":"\"x1y2\""}}`},
		{"a variable after that of a secret", `[{"valueType":"VARIABLE","value":{"name":"password","value":"1"}},{"valueType":"VARIABLE","value":{"name":"count","value":"1"}}]`, `[{"valueType":"VARIABLE","value":{"name":"password","value":"***"}},{"valueType":"VARIABLE","value":{"name":"count","value":"1"}}]`},
		{"variables within a wrapper", `{"records":[{"valueType":"VARIABLE","value":{"name":"password","value":"1"}},{"valueType":"VARIABLE","value":{"name":"count","value":"{\"password\":1}"}}]}`, `{"records":[{"valueType":"VARIABLE","value":{"name":"password","value":"***"}},{"valueType":"VARIABLE","value":{"name":"count","value":"{\"password\":\"***\"}"}}]}`},
		{"a record of another type", `{"valueType":"FORM","value":{"name":"password","value":"x1y2"}}`, `{"valueType":"FORM","value":{"name":"password","value":"x1y2"}}`},
		{"an object with name and value within a value", `{"valueType":"VARIABLE","value":{"name":"x","value":"1","list":[{"name":"password","value":"x1y2"}]}}`, `{"valueType":"VARIABLE","value":{"name":"x","value":"1","list":[{"name":"password","value":"x1y2"}]}}`},

		{"a text that is JSON", `{"value":{"name":"login","value":"{\"user\":\"ann\",\"password\":\"s3cret\",\"n\":1}"}}`, `{"value":{"name":"login","value":"{\"user\":\"ann\",\"password\":\"***\",\"n\":1}"}}`},
		{"a list in a text", `{"value":{"value":" [{\"Password\" : 7 },\n{\"password\":[1,2]}]"}}`, `{"value":{"value":" [{\"Password\" : \"***\" },\n{\"password\":\"***\"}]"}}`},
		{"escapes in a text", `{"value":{"value":"\u007b\"a\":\"\u00e9\ud83d\ude00\/\",\"pass\u0077ord\":\"s3\\u0063\\nret\"}"}}`, `{"value":{"value":"\u007b\"a\":\"\u00e9\ud83d\ude00\/\",\"pass\u0077ord\":\"***\"}"}}`},
		{"a text in a text", `{"value":{"value":"{\"body\":\"{\\\"password\\\":\\\"s3cret\\\",\\\"a\\\":1}\",\"pASSWORD\":\"s3cret\"}"}}`, `{"value":{"value":"{\"body\":\"{\\\"password\\\":\\\"***\\\",\\\"a\\\":1}\",\"pASSWORD\":\"***\"}"}}`},
		{"a text that is a text", `{"value":{"value":"\"{\\\"password\\\":\\\"s3cret\\\"}\""}}`, `{"value":{"value":"\"{\\\"password\\\":\\\"***\\\"}\""}}`},
		{"a text that is a text, with other escapes", `{"value":{"value":"\"{\u005c\"password\u005c\":\u005c\"s3cret\u005c\"}\""}}`, `{"value":{"value":"\"{\u005c\"password\u005c\":\\\"***\\\"}\""}}`},
		{"a secret in a text that is a text with a secret", `{"value":{"value":"{\"password\":\"{\\\"password\\\":\\\"s3cret\\\"}\",\"x\":\"\\n1\"}"}}`, `{"value":{"value":"{\"password\":\"***\",\"x\":\"\\n1\"}"}}`},
		{"a secret that is a text with JSON", `{"value":{"password":"{\"password\":\"s3cret\"}","x":1}}`, `{"value":{"password":"***","x":1}}`},
		{"texts in documents, headers, messages, and unknown members", `{"more":"{\"password\":1}","value":{"document":{"a":["{\"password\":1}"]},"customHeaders":"{\"password\":1}","errorMessage":"[{\"password\":1}]","more":"{\"password\":1}"}}`, `{"more":"{\"password\":\"***\"}","value":{"document":{"a":["{\"password\":\"***\"}"]},"customHeaders":"{\"password\":\"***\"}","errorMessage":"[{\"password\":\"***\"}]","more":"{\"password\":\"***\"}"}}`},
		{"texts that Sluice needs unchanged", `{"id":"{\"password\":1}","value":{"tenantId":"{\"password\":1}"}}`, `{"id":"{\"password\":1}","value":{"tenantId":"{\"password\":1}"}}`},
		{"texts that are not JSON", `{"value":{"a":"{\"password\":1","b":"{\"password\":1} ","c":"{\"password\":1}}","d":"see {\"password\":1}"}}`, `{"value":{"a":"{\"password\":1","b":"{\"password\":\"***\"} ","c":"{\"password\":1}}","d":"see {\"password\":1}"}}`},
		{"nothing, in a text", `{"value":{"value":"{\"password\":null,\"Password\":\"\",\"PASSWORD\":[]}"}}`, `{"value":{"value":"{\"password\":null,\"Password\":\"\",\"PASSWORD\":[]}"}}`},

		{"an array", `[{"id":"a","password":"s3cret"},{"id":"b"},{"id":"c","password":"s3cret"}]`, `[{"id":"a","password":"***"},{"id":"b"},{"id":"c","password":"***"}]`},
		{"wrapped", `{"password":"s3cret","records":[{"id":"a","password":"s3cret"},{"id":"b"}]}`, `{"password":"***","records":[{"id":"a","password":"***"},{"id":"b"}]}`},
		{"lines of variables", "{\"valueType\":\"VARIABLE\",\"value\":{\"name\":\"password\",\"value\":\"1\"}}\n{\"valueType\":\"VARIABLE\",\"value\":{\"name\":\"apikey\",\"value\":\"1\"}}\n", "{\"valueType\":\"VARIABLE\",\"value\":{\"name\":\"password\",\"value\":\"***\"}}\n{\"valueType\":\"VARIABLE\",\"value\":{\"name\":\"apikey\",\"value\":\"***\"}}\n"},
		{"lines", "{\"id\":\"a\",\"password\":\"s3cret\"}\n{\"id\":\"b\",\"password\":\"s3cret\"}\n", "{\"id\":\"a\",\"password\":\"***\"}\n{\"id\":\"b\",\"password\":\"***\"}\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for range 2 { // names are cached
				kept, records := masked(t, more, record.FormAuto, tt.body)
				expect.Not(t, kept != tt.want, "kept is\n%s, want\n%s", kept, tt.want)
				for _, r := range records {
					expect.Not(t, !strings.Contains(tt.want, r), "a record is %s", r)
				}
				if again, _ := masked(t, more, record.FormAuto, kept); again != kept {
					t.Errorf("masked again it is %s", again)
				}
			}
		})
	}
}

// TestMasksDoNotMeet: names cached under one mask are not used under another.
func TestMasksDoNotMeet(t *testing.T) {
	more, err := record.NewMask([]string{"pin"})
	fatal.If(t, err)
	r := record.NewRequest()
	for i, m := range []*record.Mask{nil, more, nil, more} {
		fatal.If(t, r.Parse([]byte(`{"id":"a","pin":"1234","value":{"pin":"1234"},"and":"much more after it, so that it is remembered"}`), record.FormAuto, record.Limits{Mask: m}))
		if hidden := !strings.Contains(string(r.Body()), "1234"); hidden != (m != nil) {
			t.Errorf("%d: %s", i, r.Body())
		}
	}
}

// TestMaskedPartsAndHash: two bodies that differ only in secrets are kept, hashed, and published alike.
func TestMaskedPartsAndHash(t *testing.T) {
	var all [2][]byte
	for i, secret := range []string{"one-secret", "another"} {
		body := `[{"id":"a","value":{"password":"` + secret + `"},"key":3},{"id":"b","key":4}]`
		r := record.NewRequest()
		fatal.If(t, r.Parse([]byte(body), record.FormAuto, record.Limits{}))
		chunks, err := r.Cut(flow.DefaultChunkBytes, 1, nil)
		fatal.When(t, err != nil || len(chunks) != 1 || chunks[0].Records != 2, "chunks %v, %v", chunks, err)
		all[i] = append([]byte(record.Hash(r.Body())), chunks[0].Body...)
		if bytes.Contains(all[i], []byte(secret)) {
			t.Errorf("published is %s", all[i])
		}
	}
	if !bytes.Equal(all[0], all[1]) {
		t.Errorf("published is\n%s and\n%s", all[0], all[1])
	}
}

func TestUnmaskableNamesAreRefused(t *testing.T) {
	for _, name := range []string{"", "id", "ID", "position", "value", "Records", "tenantId", "processInstanceKey", "\xff", strings.Repeat("x", 257)} {
		if _, err := record.NewMask([]string{"fine", name}); err == nil || !strings.Contains(err.Error(), "\""+strings.ReplaceAll(name, "\xff", `\xff`)) {
			t.Errorf("%q: %v", name, err)
		}
	}
	if _, err := record.NewMask(make([]string, 65)); err == nil {
		t.Error("65 names are accepted")
	}
}

// TestVariablesAreMaskedInEveryForm: as an object, as a text, and as a text within texts. Texts nested too deep are
// hidden as a whole.
func TestVariablesAreMaskedInEveryForm(t *testing.T) {
	object := `{"a":[{"password":"s3cret","b":"kept"}]}`
	plain := strings.Replace(object, "s3cret", "***", 1)
	for level := range 8 {
		body := `{"valueType":"JOB","value":{"variables":` + object + `,"type":"pay"}}`
		want := `{"valueType":"JOB","value":{"variables":` + plain + `,"type":"pay"}}`
		kept, _ := masked(t, nil, record.FormAuto, body)
		expect.Not(t, level <= 5 && kept != want, "in %d texts: kept is\n%s, want\n%s", level, kept, want)
		expect.Not(t, level > 5 && (strings.Contains(kept, "s3cret") || !strings.Contains(kept, `***`)), "in %d texts: kept is\n%s", level, kept)
		object, plain = quoted(t, `{"text":`+object+`}`), quoted(t, `{"text":`+plain+`}`)
	}
}

func quoted(t *testing.T, text string) string {
	t.Helper()
	b, err := json.Marshal(text)
	fatal.If(t, err)
	return string(b)
}

// TestATextMayNestAsDeepAsItIsLong: Depth limits the record only. A text of millions of brackets needs no stack, and a
// secret in its middle is found.
func TestATextMayNestAsDeepAsItIsLong(t *testing.T) {
	const deep = 1 << 20
	brackets := func(secret string) string {
		return `{"value":{"value":"` + strings.Repeat(`[`, deep) + `{\"password\":` + secret + `}` + strings.Repeat(`]`, deep) + `"}}`
	}
	if kept, _ := masked(t, nil, record.FormAuto, brackets(`\"s3cret\"`)); kept != brackets(`\"***\"`) {
		t.Errorf("of %d bytes %d are kept, among them %q", len(brackets("")), len(kept), kept[deep:deep+100])
	}
	nested := strings.Repeat(`{\"password\":`, deep/4) + `1` + strings.Repeat(`}`, deep/4)
	if kept, _ := masked(t, nil, record.FormAuto, `{"value":{"value":"`+nested+`"}}`); kept != `{"value":{"value":"{\"password\":\"***\"}"}}` {
		t.Errorf("%d bytes are kept", len(kept))
	}
}

// TestMaskedRecordsKeepToTheLimit: the replacement of a digit is longer than the digit.
func TestMaskedRecordsKeepToTheLimit(t *testing.T) {
	body := `{"id":"a","password":1,"value":{"x":"{\"password\":1}"}}`
	const grows = 4 + 6
	r := record.NewRequest()
	for _, lim := range []record.Limits{{RecordBytes: len(body) + grows}, {RecordBytes: len(body) + grows - 1}} {
		var limit *record.LimitError
		err := r.Parse([]byte(`[{"id":"b"},`+body+`]`), record.FormAuto, lim)
		if fits := lim.RecordBytes >= len(body)+grows; fits != (err == nil) || !fits && (!errors.As(err, &limit) || limit.Index != 1) {
			t.Errorf("%d bytes at most: %v", lim.RecordBytes, err)
		}
		refused, err := r.ParseEach([]byte(body+body), []record.Span{{End: len(body)}, {Start: len(body), End: 2 * len(body)}}, lim)
		if fits := lim.RecordBytes >= len(body)+grows; err != nil || fits != (len(refused) == 0) || !fits && (len(refused) != 2 || refused[1].Code != record.CodeRecordTooLarge) {
			t.Errorf("%d bytes at most: refused %v, %v", lim.RecordBytes, refused, err)
		}
	}
}

// TestSecretsOfWhatIsRefusedAreMasked: documents that are not records become dead letters.
func TestSecretsOfWhatIsRefusedAreMasked(t *testing.T) {
	deep := strings.Repeat(`{"a":`, 2000) + `{"password":"s3cret"}` + strings.Repeat(`}`, 2000)
	for _, tt := range []struct{ name, body, want string }{
		{"a variable with an invalid key", `{"key":"x","value":{"value":"s3cret","name":"password","more":"{\"password\":1}"},"valueType":"VARIABLE"}`, `{"key":"x","value":{"value":"***","name":"password","more":"{\"password\":\"***\"}"},"valueType":"VARIABLE"}`},
		{"a variable that ends in its secret", `{"value":{"name":"password","value":"s3cr`, `{"value":{"name":"password","value":"***"`},
		{"a variable that ends behind its secret", `{"value":{"value":"s3cret","name":"password"`, `{"value":{"value":"***","name":"password"`},
		{"a member that ends", `{"id":"a","password":"s3cr`, `{"id":"a","password":"***"`},
		{"a member that does not begin", `{"id":"a","password":`, `{"id":"a","password":"***"`},
		{"a value that is a text", `{"id":"a","value":"{\"password\":\"s3cret\"}"}`, `{"id":"a","value":"{\"password\":\"***\"}"}`},
		{"a secret deeper than records may nest", deep, strings.Replace(deep, "s3cret", "***", 1)},
		{"a list", `["s3cret",{"password":"s3cret"}]`, `["s3cret",{"password":"***"}]`},
	} {
		r := record.NewRequest()
		refused, err := r.ParseEach([]byte(tt.body), []record.Span{{End: len(tt.body)}}, record.Limits{})
		fatal.When(t, err != nil || len(refused) != 1, "%s: refused %v, %v", tt.name, refused, err)
		if got := string(refused[0].Raw); got != tt.want {
			t.Errorf("%s: the dead letter is\n%.200s, want\n%.200s", tt.name, got, tt.want)
		}
	}
}
