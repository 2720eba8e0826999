#!/bin/sh
# Makes the images of compose.yaml without pulling anything: from programs built on this machine, nats-server of its pinned wheel, and
# this machine's git and certificates. After that `docker compose up --no-build` works as usual.
#
#   compose/offline.sh                      builds the programs first (release), a few minutes
#   PROGRAMS=target/debug compose/offline.sh   uses these programs
set -eu
cd "$(dirname "$0")/.."

images="muster-nats muster-publisher muster-ingest muster-rollup muster-planner muster-gateway muster-federation muster-renewer muster-agent muster-simulator muster-ctl"
tag=${MUSTER_TAG:-latest}

if ! docker version >/dev/null 2>&1; then
    echo "no Docker engine answers; what the client says:" >&2
    docker version >/dev/null || true
    echo "start one (on Debian as root: .ci/engine does), then run this again" >&2
    exit 1
fi
[ "$(uname -s)" = Linux ] || {
    echo "images are made of this machine's programs, so it has to be Linux; with internet, 'docker compose build' works anywhere" >&2
    exit 1
}

.ci/git
.ci/fetch-nats-server >&2
if [ -z "${PROGRAMS:-}" ]; then
    PROGRAMS=${CARGO_TARGET_DIR:-target}/release
    ${CARGO:-cargo} build --locked --release --workspace --bins >&2
fi

work=$(mktemp -d)
trap 'rm -rf "$work" "$work.log"' EXIT
mkdir "$work/programs"
for program in muster muster-probe muster-publisher muster-ingest muster-rollup muster-planner muster-gateway muster-federation muster-renewer muster-agent muster-simulator; do
    [ -x "$PROGRAMS/$program" ] || {
        echo "there is no $program in $PROGRAMS: build it with 'cargo build --release --workspace --bins'" >&2
        exit 1
    }
    cp "$PROGRAMS/$program" "$work/programs/"
done
cp -L .tools/nats-server "$work/programs/"
compose/rootfs "$work/programs" "$work/rootfs"
rm -rf "$work/programs"
version=$(sed -n '/^\[workspace.package\]/,/^\[/ s/^version = "\(.*\)"/\1/p' Cargo.toml)

# The last part of the Dockerfile, on top of the files gathered here.
{
    echo 'FROM scratch AS rootfs'
    echo 'COPY rootfs /rootfs'
    sed -n '/^# The images\./,$p' compose/Dockerfile
} >"$work/Dockerfile"

for image in $images; do
    # The classic builder warns each time that it is old, so its output is shown only if it fails.
    docker build --build-arg "VERSION=$version" --target "$image" --tag "$image:$tag" "$work" >"$work.log" 2>&1 || {
        tail -n 20 "$work.log" >&2
        exit 1
    }
done
# Programs built for debugging are larger.
.ci/image-sizes "$tag" || [ -n "${MUSTER_LARGE_IMAGES:-}" ]
