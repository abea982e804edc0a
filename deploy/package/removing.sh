#!/bin/sh
# Before removal (dpkg passes remove, rpm 0), not before an upgrade. Removes the engine that
# npm fetched. /var/lib/sluice stays, also after a purge: delete records manually.
set -eu
case "${1:-}" in remove | 0)
	if [ -z "${DPKG_ROOT:-}" ] && [ -d /run/systemd/system ]; then systemctl disable --now sluice.service; fi
	rm -rf "${DPKG_ROOT:-}/usr/lib/sluice/engine/node_modules" ;;
esac
