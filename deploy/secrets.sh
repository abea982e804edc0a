#!/bin/sh
# Generates the secrets of docker-compose.yml. Existing ones stay.
#
#   .env                             passwords, read by docker compose
#   deploy/secrets/token             access token for clients of the api
#   deploy/secrets/api/tokens.yaml   its hash, read by the api
#   deploy/secrets/api/fingerprint.key   key that fingerprints users' secret keys: back it
#                                    up, or stored fingerprints cannot be compared
#   deploy/secrets/alertmanager/     webhook URLs of alerts and of the watchdog
#
# Other users of this machine cannot enter the folder deploy/secrets. Inside it,
# deploy/secrets/api is readable: it is mounted into the container of the api, which
# runs as another user.
set -eu
cd "$(dirname "$0")/.."
umask 077

random() { od -An -N 32 -t x1 /dev/urandom | tr -d ' \n'; }
sha256() { if command -v sha256sum >/dev/null; then sha256sum; else shasum -a 256; fi | cut -d ' ' -f 1; }

# Lines missing in an older .env are added. Passwords begin with a letter: nats.conf
# would parse some digits as a number.
touch .env
for name in NATS_API_PASSWORD NATS_INGESTER_PASSWORD NATS_OPERATOR_PASSWORD NATS_CONSOLE_PASSWORD \
	FLOW_WRITER_PASSWORD FLOW_ANALYST_PASSWORD FLOW_MODELLER_PASSWORD FLOW_CONSOLE_PASSWORD GRAFANA_PASSWORD; do
	if ! grep -q "^$name=" .env; then
		{ awk 1 .env; echo "$name=p$(random)"; } >.env.new
		mv .env.new .env
		echo "generated $name in .env"
	fi
done

mkdir -p deploy/secrets/api
if [ ! -e deploy/secrets/api/tokens.yaml ]; then
	token=sluice_$(random)
	printf '%s\n' "$token" >deploy/secrets/token
	cat >deploy/secrets/api/tokens.yaml.new <<END
- {subject: engine, sha256: $(printf '%s' "$token" | sha256), scopes: [records:write, user:write, fields:write, read]}
END
	mv deploy/secrets/api/tokens.yaml.new deploy/secrets/api/tokens.yaml
	echo "generated deploy/secrets/token and deploy/secrets/api/tokens.yaml"
fi

if [ ! -e deploy/secrets/api/fingerprint.key ]; then
	random >deploy/secrets/api/fingerprint.key.new
	mv deploy/secrets/api/fingerprint.key.new deploy/secrets/api/fingerprint.key
	echo "generated deploy/secrets/api/fingerprint.key"
fi

mkdir -p deploy/secrets/alertmanager
for receiver in people watchdog; do
	if [ ! -e deploy/secrets/alertmanager/$receiver ]; then
		echo "http://127.0.0.1:9/put-your-address-here" >deploy/secrets/alertmanager/$receiver
		echo "generated deploy/secrets/alertmanager/$receiver: replace its content by your webhook URL"
	fi
done

chmod 700 deploy/secrets
chmod 755 deploy/secrets/api deploy/secrets/alertmanager
chmod 644 deploy/secrets/alertmanager/* deploy/secrets/api/tokens.yaml deploy/secrets/api/fingerprint.key

# Other mounted files must be readable by the users of the containers, whatever the
# umask of this checkout.
for mounted in deploy/nats.conf deploy/clickhouse deploy/prometheus deploy/alertmanager deploy/grafana; do
	[ ! -e "$mounted" ] || chmod -R a+rX "$mounted"
done
