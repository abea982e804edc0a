// A module of its own, so that the project does not depend on what it compares
// itself with.
module sluice/pkg/record/peers

go 1.26.0

require (
	github.com/buger/jsonparser v1.6.1
	github.com/bytedance/sonic v1.15.0
	github.com/goccy/go-json v0.10.5
	github.com/klauspost/compress v1.20.3
	github.com/minio/minlz v1.2.3
	github.com/minio/simdjson-go v0.4.5
	github.com/pierrec/lz4/v4 v4.1.27
	github.com/valyala/fastjson v1.6.10
	sluice v0.0.0
)

require (
	github.com/bytedance/gopkg v0.1.3 // indirect
	github.com/bytedance/sonic/loader v0.5.0 // indirect
	github.com/cloudwego/base64x v0.1.6 // indirect
	github.com/klauspost/cpuid/v2 v2.3.0 // indirect
	github.com/mitchellh/colorstring v0.0.0-20190213212951-d06e56a500db // indirect
	github.com/rivo/uniseg v0.4.7 // indirect
	github.com/schollz/progressbar/v3 v3.19.1 // indirect
	github.com/twitchyliquid64/golang-asm v0.15.1 // indirect
	github.com/zeebo/xxh3 v1.1.0 // indirect
	golang.org/x/arch v0.22.0 // indirect
	golang.org/x/sync v0.24.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/term v0.47.0 // indirect
)

replace sluice => ../../..
