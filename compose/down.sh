#!/bin/sh
# Ends a fleet and removes everything of it. `docker compose down --volumes` leaves two things: volumes of devices whose containers
# were made anew (--force-recreate, other settings), which Compose no longer attributes to the fleet; and Prometheus and Grafana,
# unless it gets their profile.
#
#   compose/down.sh                                                  the fleet of compose.yaml, or of $COMPOSE_FILE
#   compose/down.sh --file compose.yaml --file compose.sites.yaml    arguments are Compose's, before `down`
set -eu
cd "$(dirname "$0")"
# How often the engine is asked, and the pause between two times, in seconds: a busy engine keeps an endpoint of a network, or a volume,
# for some seconds after their container.
attempts_max=20 pause=2
export COMPOSE_PROFILES="${COMPOSE_PROFILES:+$COMPOSE_PROFILES,}observe"

# Runs a command until it succeeds.
retry() {
    attempt=1
    until "$@"; do
        if [ "$attempt" -ge "$attempts_max" ]; then
            echo "the fleet could not be removed in $attempts_max attempts: the last error is above;" \
                "for a network that is in use, \`docker network inspect NETWORK\` names its containers" >&2
            exit 1
        fi
        echo "trying again in $pause s ($attempt of $attempts_max attempts failed)" >&2
        attempt=$((attempt + 1))
        sleep "$pause"
    done
}

# Removes a volume; true if there is none.
remove_volume() {
    docker volume rm --force "$1" >/dev/null
}

if docker compose version >/dev/null 2>&1; then compose="docker compose"; else compose=docker-compose; fi
containers=$($compose "$@" ps --all --quiet)
volumes=
if [ -n "$containers" ]; then
    each='{{range .Mounts}}{{if eq .Type "volume"}}{{println .Name}}{{end}}{{end}}'
    # Anonymous volumes: those that a container made for itself.
    # shellcheck disable=SC2086
    volumes=$(docker inspect --format "$each" $containers | grep -E '^[0-9a-f]{64}$' | sort -u || true)
fi
retry $compose "$@" down --volumes --remove-orphans
for volume in $volumes; do
    retry remove_volume "$volume"
done
