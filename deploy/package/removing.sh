#!/bin/sh
# Before removal, not before an upgrade: dpkg says remove, rpm 0. What npm has fetched
# goes too; /var/lib/sluice stays, also when the package is purged: records are removed by hand.
set -eu
case "${1:-}" in remove | 0)
	if [ -z "${DPKG_ROOT:-}" ] && [ -d /run/systemd/system ]; then systemctl disable --now sluice.service; fi
	rm -rf "${DPKG_ROOT:-}/usr/lib/sluice/engine/node_modules" ;;
esac
