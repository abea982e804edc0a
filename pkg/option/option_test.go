package option_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/pkg/expect"
	"sluice/pkg/option"
)

type TLS struct {
	Cert string `default:"cert.pem"`
}

type config struct {
	TLS
	Inner struct {
		Depth int `default:"64"`
	} `embed:"" prefix:"inner-"`
	Listen string        `default:"127.0.0.1:8080"`
	Bytes  int64         `kong:"-" default:"4096"`
	Age    time.Duration `default:"500ms"`
	Rate   float64       `default:"0.5"`
	Hosts  []string      `default:"a,b"`
	Ops    string        `default:"127.0.0.1:8081" zero:"off"`
	None   int
	Nested struct{ Left int }
}

func TestWhatIsNotSetHasItsDefault(t *testing.T) {
	var got config
	option.Defaults(&got)
	want := config{TLS: TLS{"cert.pem"}, Listen: "127.0.0.1:8080", Bytes: 4096, Age: 500 * time.Millisecond, Rate: 0.5, Hosts: []string{"a", "b"}}
	want.Inner.Depth = 64
	expect.Equal(t, "nothing is set", want, got, cmp.AllowUnexported(config{}))
	set := config{TLS: TLS{"own.pem"}, Listen: ":1", Bytes: -1, Age: -1, Rate: -1, Hosts: []string{"c"}, None: -1}
	set.Inner.Depth = 1
	got = set
	option.Defaults(&got)
	set.Bytes, set.Age = 4096, 500*time.Millisecond
	expect.Equal(t, "everything is set, two numbers below zero", set, got, cmp.AllowUnexported(config{}))
}

func TestADefaultThatCannotBeReadIsAMistake(t *testing.T) {
	defer func() {
		expect.Not(t, recover() == nil, "no panic")
	}()
	option.Defaults(&struct {
		N int `default:"many"`
	}{})
}
