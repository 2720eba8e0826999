#!/bin/sh
# Ends a fleet and removes everything of it. `docker compose down --volumes` leaves two things: volumes of devices whose containers
# were made anew (--force-recreate, other settings), which Compose no longer attributes to the fleet; and Prometheus and Grafana,
# unless it gets their profile.
#
#   compose/down.sh                                                  the fleet of compose.yaml, or of $COMPOSE_FILE
#   compose/down.sh --file compose.yaml --file compose.sites.yaml    arguments are Compose's, before `down`
set -eu
cd "$(dirname "$0")"
# How often Compose is asked, and the pause between two times, in seconds.
attempts_max=6 pause=2
export COMPOSE_PROFILES="${COMPOSE_PROFILES:+$COMPOSE_PROFILES,}observe"

if docker compose version >/dev/null 2>&1; then compose="docker compose"; else compose=docker-compose; fi
containers=$($compose "$@" ps --all --quiet)
volumes=
if [ -n "$containers" ]; then
    each='{{range .Mounts}}{{if eq .Type "volume"}}{{println .Name}}{{end}}{{end}}'
    # Anonymous volumes: those that a container made for itself.
    # shellcheck disable=SC2086
    volumes=$(docker inspect --format "$each" $containers | grep -E '^[0-9a-f]{64}$' | sort -u || true)
fi
attempt=1
until $compose "$@" down --volumes --remove-orphans; do
    if [ "$attempt" -ge "$attempts_max" ]; then
        echo "the fleet could not be removed in $attempts_max attempts: Compose's last error is above;" \
            "for a network that is in use, \`docker network inspect NETWORK\` names its containers" >&2
        exit 1
    fi
    echo "trying again in $pause s ($attempt of $attempts_max attempts failed)" >&2
    attempt=$((attempt + 1))
    sleep "$pause"
done
for volume in $volumes; do
    docker volume rm --force "$volume" >/dev/null
done
