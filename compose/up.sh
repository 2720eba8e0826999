#!/bin/bash
# Starts a fleet after it has looked whether it can start: a Compose command, an engine that answers, ports that are free, images
# that are there. What is missing is said in one line with what to do, and nothing is started. At the end it prints the address of
# the page.
#
#   compose/up.sh                                 the fleet of compose.yaml, or of $COMPOSE_FILE
#   compose/up.sh --scale agent=12 --no-build     arguments are those of Compose's `up`
#   COMPOSE_PROFILES=observe compose/up.sh prometheus grafana
set -euo pipefail
cd "$(dirname "$0")"

refuse() {
    printf 'compose/up.sh: %s\n' "$@" >&2
    exit 1
}

# Refuses if the port of VARIABLE:DEFAULT is taken.
check_port() {
    local variable=${1%%:*}
    local port=${!variable:-${1##*:}}
    if [ "$port" != 0 ] && (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
        refuse "port $port of 127.0.0.1 is taken by another program" \
            "end that program (ss --listening --tcp --processes names it), or choose another port: $variable=PORT compose/up.sh"
    fi
}

if docker compose version >/dev/null 2>&1; then
    compose="docker compose"
elif docker-compose version >/dev/null 2>&1; then
    compose=docker-compose
else
    refuse "no Compose command is here" "install Docker's compose plugin or docker-compose (on Debian as root: .ci/engine does)"
fi
if ! said=$(docker version 2>&1 >/dev/null); then
    refuse "no Docker engine answers: $(tail -n 1 <<<"$said")" \
        "start one (systemctl start docker; on Debian as root .ci/engine does), or set DOCKER_HOST"
fi

# Ports of this machine, by the variable that changes each. A fleet that runs already has them itself.
if [ -z "$($compose ps --quiet nats 2>/dev/null)" ]; then
    for entry in MUSTER_PORT:4222 MUSTER_WEB_PORT:8080 MUSTER_MARGO_PORT:8444 MUSTER_WS_PORT:8081 MUSTER_GIT_PORT:9418; do
        check_port "$entry"
    done
fi
case " $* ,${COMPOSE_PROFILES:-}," in
*" grafana "* | *,observe,*)
    if [ -z "$($compose ps --quiet grafana 2>/dev/null)" ]; then
        check_port MUSTER_GRAFANA_PORT:3000
    fi
    ;;
esac

case " $* " in
*" --no-build "*)
    for image in nats publisher ingest rollup planner renewer gateway agent simulator ctl; do
        name="muster-$image:${MUSTER_TAG:-latest}"
        docker image inspect "$name" >/dev/null 2>&1 || refuse "there is no image $name" \
            "make all of them with compose/offline.sh, or leave out --no-build, which builds them from public images"
    done
    ;;
esac
$compose up --detach "$@"
# Compose knows the port also if MUSTER_WEB_PORT=0 has it choose one. A fleet or an `up` without a gateway has no page.
page=$($compose port gateway 8080 2>/dev/null || true)
case $page in
*:0) ;;
*:*) echo "the page of the fleet: http://$page/" ;;
esac
