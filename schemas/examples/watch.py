#!/usr/bin/env python3
"""A table of deployments by standing and freshness, live from the bucket `views`, printed after every change.

`stale` devices were heard before and `never` devices were not: what they run now is unknown. A view that no rollup has
renewed in time is marked OLD. `leaving` counts devices that still have a deployment which they should not have.

    python3 watch.py [--url nats://127.0.0.1:4222] [--creds FILE --tls-ca FILE | --context NAME]
"""
import asyncio, json
from datetime import datetime, timezone

from connect import arguments, connect

FRESHNESS = ("fresh", "stale", "never")
ROW = "{:<36} {:<15} {:<10} {:>6} {:>6} {:>6} {:>6}"
LOOK_SECONDS = 5  # between two checks whether a view has become old


def rows(view):
    """A row for each standing: targets by freshness, and all of them."""
    valid_until = view["asOf"].get("validUntil")
    is_old = valid_until and datetime.fromisoformat(valid_until[:19] + "+00:00") < datetime.now(timezone.utc)
    name = (view["deployment"], "OLD" if is_old else view["verdict"])
    for standing, counts in view["counts"].items():
        yield ROW.format(*name, standing, *(counts.get(kind, 0) for kind in FRESHNESS), sum(counts.values()))
    if view["leaving"]:
        yield ROW.format(*name, "leaving", "-", "-", "-", view["leaving"])


def table(views):
    heading = ROW.format("DEPLOYMENT", "VERDICT", "STANDING", "FRESH", "STALE", "NEVER", "ALL")
    lines = [heading, *(row for _, view in sorted(views.items()) for row in rows(view))]
    unheard = {stop["partition"] for view in views.values() for stop in view.get("hub", {}).get("unheard", [])}
    if unheard:
        lines.append(f"The hub does not hear partitions {sorted(unheard)}: their devices count as stale.")
    return "\n".join(lines) + "\n"


async def main(args):
    hub = await connect(args)
    bucket = await hub.jetstream().key_value("views")
    watcher, views, shown, is_whole = await bucket.watch("deployment.*"), {}, None, False
    while True:
        try:
            entry = await watcher.updates(timeout=LOOK_SECONDS)
            if entry is None:
                is_whole = True  # the bucket's present was read
            elif entry.operation in ("DEL", "PURGE"):
                views.pop(entry.key, None)
            else:
                views[entry.key] = json.loads(entry.value)
        except asyncio.TimeoutError:
            pass
        if is_whole and (lines := table(views)) != shown:
            print(lines, flush=True)
            shown = lines


if __name__ == "__main__":
    asyncio.run(main(arguments(__doc__).parse_args()))
