#!/bin/sh
# After install and upgrade. A service that runs is restarted: it finishes what is in
# flight and resumes at its checkpoint. DPKG_ROOT is set for another root than /.
set -eu
systemd-sysusers --root="${DPKG_ROOT:-/}" sluice.conf
if [ -z "${DPKG_ROOT:-}" ] && [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	systemctl try-restart sluice.service
fi
[ -e "${DPKG_ROOT:-}/usr/lib/sluice/engine/node_modules" ] || echo "sluice: fetch the ClickHouse engine, then start: npm ci --prefix /usr/lib/sluice/engine --ignore-scripts && systemctl enable --now sluice"
