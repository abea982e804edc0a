#!/bin/sh
# Makes the secrets that docker-compose.yml needs, once: what is there stays.
#
#   .env                             passwords, read by docker compose
#   deploy/secrets/token             access token for clients of the api
#   deploy/secrets/api/tokens.yaml   its hash, read by the api
set -eu
cd "$(dirname "$0")/.."
umask 077

random() { od -An -N 32 -t x1 /dev/urandom | tr -d ' \n'; }
sha256() { if command -v sha256sum >/dev/null; then sha256sum; else shasum -a 256; fi | cut -d ' ' -f 1; }

if [ ! -e .env ]; then
	# They begin with a letter: nats.conf would take some digits for a number.
	cat >.env.new <<END
NATS_PASSWORD=n$(random)
FLOW_WRITER_PASSWORD=w$(random)
FLOW_ANALYST_PASSWORD=a$(random)
GRAFANA_PASSWORD=g$(random)
END
	mv .env.new .env
	echo "made .env"
fi

if [ ! -e deploy/secrets/api/tokens.yaml ]; then
	mkdir -p deploy/secrets/api
	token=sluice_$(random)
	printf '%s\n' "$token" >deploy/secrets/token
	cat >deploy/secrets/api/tokens.yaml.new <<END
- subject: engine
  sha256: $(printf '%s' "$token" | sha256)
  scopes: [records:write, user:write, fields:write, read]
END
	# Hashes of long random tokens: nothing to guess, and the api reads them as
	# another user.
	chmod 644 deploy/secrets/api/tokens.yaml.new
	mv deploy/secrets/api/tokens.yaml.new deploy/secrets/api/tokens.yaml
	echo "made deploy/secrets/token and deploy/secrets/api/tokens.yaml"
fi
