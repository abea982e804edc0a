#!/bin/sh
# Installs the clients of make foreign into a folder, each by its registry's client and
# with the versions in clients/, if their language is available. Up-to-date ones stay.
set -eu
tools=$1
here=$(cd "$(dirname "$0")/clients" && pwd)
mkdir -p "$tools"
tools=$(cd "$tools" && pwd)

# fresh NAME FILE: the installed versions are those of FILE.
fresh() { cmp -s "$here/$2" "$tools/$1.installed"; }
installed() { cp "$here/$2" "$tools/$1.installed"; }

if command -v python3 >/dev/null && ! fresh python requirements.txt; then
	rm -rf "$tools/python"
	python3 -m venv "$tools/python"
	"$tools/python/bin/pip" install --quiet --disable-pip-version-check --requirement "$here/requirements.txt"
	installed python requirements.txt
fi
if command -v dpkg >/dev/null && command -v systemd-analyze >/dev/null && [ ! -x "$tools/nfpm" ]; then
	GOBIN=$tools CGO_ENABLED=0 go install "$(sed -n 's/.*{NFPM:-go run \([^}]*\)}.*/\1/p' "$here/../../../../deploy/package/stage.sh")"
fi
if command -v npm >/dev/null && ! fresh node package-lock.json; then
	cp "$here/package.json" "$here/package-lock.json" "$tools/"
	npm ci --prefix "$tools" --no-audit --no-fund --ignore-scripts --loglevel=error
	installed node package-lock.json
fi
if command -v java >/dev/null && command -v mvn >/dev/null && ! fresh java pom.xml; then
	rm -rf "$tools/java"
	mvn --quiet --batch-mode --file "$here/pom.xml" dependency:copy-dependencies -DoutputDirectory="$tools/java" -Dmdep.useBaseVersion=true
	installed java pom.xml
fi

# Debian's Prometheus with promtool, and its Alertmanager: unpacked, not installed, so
# that no service is added. Without package lists, root fetches them.
if command -v apt-get >/dev/null && command -v dpkg >/dev/null && [ ! -x "$tools/prometheus/usr/bin/prometheus-alertmanager" ]; then
	work=$(mktemp -d)
	chmod 755 "$work" # apt downloads as a user of its own
	if (cd "$work" && { apt-get download -qq prometheus prometheus-alertmanager || { apt-get update -qq && apt-get download -qq prometheus prometheus-alertmanager; }; }) 2>"$work/said"; then
		for package in "$work"/*.deb; do dpkg -x "$package" "$tools/prometheus"; done
	else
		cat "$work/said" >&2
	fi
	rm -rf "$work"
fi
# Camunda's distributions, 300 MB each, side by side. Maven keeps the archives in
# the home folder.
camunda() {
	[ ! -e "$tools/camunda-zeebe-$1.installed" ] || return 0
	rm -rf "$tools/camunda-zeebe-$1"
	work=$(mktemp -d) # Maven writes marker files to its working directory
	(cd "$work" && mvn --quiet --batch-mode dependency:unpack -Dartifact="io.camunda:camunda-zeebe:$1:tar.gz" -DoutputDirectory="$tools")
	rm -rf "$work"
	touch "$tools/camunda-zeebe-$1.installed"
}
if command -v java >/dev/null && command -v mvn >/dev/null; then
	camunda 8.5.8 & first=$!
	camunda 8.6.0 & second=$!
	wait $first
	wait $second
fi
