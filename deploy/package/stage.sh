#!/bin/sh
# stage.sh FOLDER OS ARCH ENGINE VERSION OUT
# Adds the other files of a release archive to a folder of programs, and builds its .deb and
# .rpm, on Linux with a locked engine. NFPM is the nfpm command, KINDS the package formats.
set -eu
out=$(cd "$6" && pwd)
folder=$(cd "$1" && pwd)
cd "$(dirname "$0")/../.."
cp README.md CHANGELOG.md SECURITY.md "$folder/"
go run ./cmd/internal/notices "$2" "$3" >"$folder/THIRD_PARTY_NOTICES.txt"
[ -d "deploy/engine/$4" ] || exit 0
mkdir -p "$folder/engine"
cp deploy/engine/"$4"/package*.json "$folder/engine/"
[ "$2" = linux ] || exit 0
mkdir -p "$folder/systemd"
cp deploy/package/sluice.* deploy/package/sysusers.conf deploy/package/*ed.sh deploy/package/removing.sh "$folder/systemd/"
here=$PWD/deploy/package
case $5 in v[0-9]*) version=$5 ;; *) version=0.0.0-$5 ;; esac # a draft of an untagged commit
cd "$folder"
for kind in ${KINDS:-deb rpm}; do
	PACKAGE_VERSION=$version PACKAGE_ARCH=$3 PACKAGE_ENGINE=$4 SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-0} \
		${NFPM:-go run github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.2} package -f "$here/nfpm.yaml" -p $kind -t "$out" >/dev/null
done
