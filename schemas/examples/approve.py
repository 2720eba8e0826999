#!/usr/bin/env python3
"""Approves waves of rollouts by a rule: in office hours, unless the deployment is failing or overdue. It keeps no state, because
an approval that is repeated changes nothing; the hub records its user and the reason. An approver's rights are enough.

    python3 approve.py [--hours 8-16] [--url …] [--creds FILE --tls-ca FILE | --context NAME]
"""
import asyncio, datetime

from connect import arguments, ask, connect, repeat

def waiting(waves, decisions):
    """The next wave if it needs approval before it begins, and the newest one if its evidence is ready and needs approval."""
    runs = [at for at, one in enumerate(decisions, 1) if one["verb"] in ("retry", "supersede")]  # then the waves begin again
    done = {(one["verb"], one.get("wave")) for one in decisions[max(runs, default=0):]}
    next_at = next((at for at, wave in enumerate(waves) if ("begin", wave["name"]) not in done), len(waves))
    before = [wave["name"] for wave in waves[next_at:][:1] if wave.get("approval") == "before"]
    after = [wave["name"] for wave in waves[:next_at][-1:] if wave.get("approval") == "after"]
    return before + [name for name in after if ("ready", name) in done]

async def approve(hub, hours):
    git, hour = (await ask(hub, "publisher.status", {})).get("git", {}), datetime.datetime.now().hour
    for change in (one for one in git.get("held", []) + git.get("openRollouts", []) if "digest" in one):
        targets = await ask(hub, "publisher.targets", {"deployment": change["deployment"]})
        records = [r for r in targets.get("decisions", []) if all(r[key] == change[key] for key in ("digest", "rollout"))]
        waves = targets["rollouts"].get(change["rollout"], {}).get("waves", [])
        verdict = (await ask(hub, "query.deployment", {"id": change["deployment"]}))["view"]["verdict"]
        for wave in waiting(waves, [one for record in records for one in record["decisions"]]):
            if hour in hours and verdict not in ("failing", "overdue"):
                decision = {key: change[key] for key in ("deployment", "digest", "rollout")} | {"verb": "approve", "wave": wave}
                decision["reason"] = f"{hour} o'clock, and the deployment is {verdict}"
                if (await ask(hub, "publisher.decide", decision))["changed"]:
                    print(f"approved wave {wave} of {change['deployment']}", flush=True)

if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--hours", default="8-16", help="first hour and the hour after the last (default: 8-16)")
    args = parser.parse_args()
    asyncio.run(repeat(approve, connect(args), range(*map(int, args.hours.split("-")))))
