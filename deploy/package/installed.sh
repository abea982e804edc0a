#!/bin/sh
# After install and upgrade. A running service is restarted: it drains and resumes at its
# checkpoint. DPKG_ROOT is a root other than /.
set -eu
systemd-sysusers --root="${DPKG_ROOT:-/}" sluice.conf
if [ -z "${DPKG_ROOT:-}" ] && [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	systemctl try-restart sluice.service
fi
[ -e "${DPKG_ROOT:-}/usr/lib/sluice/engine/node_modules" ] || echo "sluice: fetch the ClickHouse engine, then start: npm ci --prefix /usr/lib/sluice/engine --ignore-scripts && systemctl enable --now sluice"
