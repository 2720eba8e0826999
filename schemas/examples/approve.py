#!/usr/bin/env python3
"""Approves waves of rollouts by a rule: within office hours, and while the deployment is neither failing nor overdue.

The hub records the program's user and its reason with each approval. An approval that is repeated changes nothing, so the
program keeps no state. It needs the rights of an operator.

    python3 approve.py [--hours 8-16] [--url …] [--creds FILE --tls-ca FILE | --context NAME]
"""
import asyncio, datetime, json, sys

from connect import arguments, connect

LOOK_SECONDS = 2
BAD = ("failing", "overdue")


async def ask(hub, subject, question):
    answer = json.loads((await hub.request(subject, json.dumps(question).encode(), timeout=5)).data)
    if "error" in answer:
        raise RuntimeError(f"{subject}: {answer['error']['message']}")
    return answer


def next_wave(change, targets):
    """The first wave that needs approval and has not begun, once all before it have."""
    ours = [r for r in targets.get("decisions", []) if (r["digest"], r["rollout"]) == (change["digest"], change["rollout"])]
    begun = set()
    for decision in (decision for record in ours for decision in record["decisions"]):
        if decision["verb"] in ("retry", "supersede"):  # the waves begin again
            begun.clear()
        elif decision["verb"] == "begin":
            begun.add(decision["wave"])
    waves = targets["rollouts"].get(change["rollout"], {}).get("waves", [])
    waiting = [wave for wave in waves if wave["name"] not in begun]
    return waiting[0]["name"] if waiting and waiting[0].get("approval") == "before" else None


async def approve(hub, first, last):
    hour = datetime.datetime.now().hour
    for change in (await ask(hub, "muster.publisher.status", {})).get("git", {}).get("held", []):
        targets = await ask(hub, "muster.publisher.targets", {"deployment": change["deployment"]})
        if "digest" not in change or not (wave := next_wave(change, targets)) or not first <= hour < last:
            continue
        verdict = (await ask(hub, "muster.query.deployment", {"id": change["deployment"]}))["view"]["verdict"]
        if verdict in BAD:
            continue
        decision = {key: change[key] for key in ("deployment", "digest", "rollout")}
        decision.update(verb="approve", wave=wave, reason=f"{hour} o'clock, and the deployment is {verdict}")
        if (await ask(hub, "muster.publisher.decide", decision))["changed"]:
            print(f"approved wave {wave} of {change['deployment']}", flush=True)


async def main(args):
    hub, (first, last) = await connect(args), map(int, args.hours.split("-"))
    while True:
        try:
            await approve(hub, first, last)
        except Exception as error:  # a service that does not answer now does so later
            print(f"{error!r}", file=sys.stderr, flush=True)
        await asyncio.sleep(LOOK_SECONDS)


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--hours", default="8-16", help="first hour and the hour after the last (default: 8-16)")
    asyncio.run(main(parser.parse_args()))
