#!/bin/sh
# Runs the test suites of the modules clickhouse-go and ch-go, of the versions in
# go.mod, unmodified against our embedded ClickHouse, and prints how many tests pass:
# suites.sh [PROGRAM], bin/sluice by default.
#
# Each test of clickhouse-go is a process of its own, because a panic ends all tests of
# a process. ch-go starts servers itself, by a program's name and log lines.
set -eu
program=$(realpath "${1:-bin/sluice}")
go=${GO:-go}
work=$(mktemp -d)
engine=
trap 'test -z "$engine" || kill "$engine" 2>/dev/null || true; chmod -R u+w "$work"; rm -rf "$work"' EXIT
export TZ=UTC CGO_ENABLED=0

module() { "$go" list -m -f '{{.Dir}}' "$1"; }

# count LABEL FILE: tests that have no subtests, and subtests.
count() {
	awk -v label="$1" '
		/^ *--- (PASS|FAIL|SKIP): / { said[$3] = $2; name = $3; while (sub("/[^/]*$", "", name)) above[name] = 1 }
		END {
			for (name in said) if (!(name in above)) {
				kind = tolower(name) ~ /http/ ? "HTTP" : "native"
				sum[kind, substr(said[name], 1, 4)]++
			}
			for (i = 1; i <= 2; i++) {
				kind = i == 1 ? "HTTP" : "native"
				if (sum[kind, "PASS"] + sum[kind, "FAIL"])
					printf "%s, %s: %d of %d\n", label, kind, sum[kind, "PASS"], sum[kind, "PASS"] + sum[kind, "FAIL"]
			}
		}' "$2"
}

cp -r "$(module github.com/ClickHouse/clickhouse-go/v2)" "$work/clickhouse-go"
cp -r "$(module github.com/ClickHouse/ch-go)" "$work/ch-go"
chmod -R u+w "$work"

native=${NATIVE:-39000} http=${HTTP:-38123}
"$program" clickhouse --data "$work/data" --listen "127.0.0.1:$native" --http "127.0.0.1:$http" 2>"$work/engine.log" &
engine=$!
until curl -fs "http://127.0.0.1:$http/ping" >/dev/null; do
	kill -0 "$engine" || { cat "$work/engine.log"; exit 1; }
	sleep 0.2
done
for suite in tests tests/std; do
	cd "$work/clickhouse-go/$suite"
	"$go" test -c -o "$work/suite.test" .
	: >"$work/said"
	# One drops the database default, without which the engine takes no client: the last.
	for name in $(grep -ho '^func Test[A-Za-z0-9_]*(t ' -- *_test.go | sed 's/func //; s/(.*//' | grep -v '^TestEmptyDatabaseConfig$') TestEmptyDatabaseConfig; do
		CLICKHOUSE_USE_DOCKER=false CLICKHOUSE_HOST=127.0.0.1 CLICKHOUSE_PORT=$native CLICKHOUSE_HTTP_PORT=$http \
			"$work/suite.test" -test.v -test.timeout 40s -test.run "^$name\$" >>"$work/said" 2>&1 || true
	done
	count "clickhouse-go, $suite" "$work/said"
done

mkdir "$work/bin"
cat >"$work/bin/clickhouse" <<END
#!/bin/sh
# clickhouse server --config-file FILE: ch-go kills it, which the engine outlives.
log="\$(dirname "\$3")/engine.log"
"$program" clickhouse --data "\$(dirname "\$3")/data" --listen 127.0.0.1:0 --http 127.0.0.1:0 --log json >/dev/null 2>"\$log" &
echo \$! >>"$work/engines"
until grep -q "accepts connections" "\$log"; do sleep 0.05; done
sed -n 's/.*"ClickHouse accepts connections","native":"\([^"]*\)".*"http":"http:..\([^"]*\)".*/x [ 1 ] {} <Information> a: Listening for http:\/\/\2\nx [ 1 ] {} <Information> a: Listening for \1\nx [ 1 ] {} <Information> a: Ready for connections./p' "\$log"
exec tail -f /dev/null
END
chmod +x "$work/bin/clickhouse"
cd "$work/ch-go"
CH_E2E=1 CH_BIN="$work/bin/clickhouse" "$go" test -v . ./chpool >"$work/said" 2>&1 || true
while read -r pid; do kill "$pid" 2>/dev/null || true; done <"$work/engines"
count "ch-go" "$work/said"
