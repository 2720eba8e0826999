#!/usr/bin/env python3
"""A view of your own: targets by standing for each value of a label, durable, and checked against the hub.

Position and rows are in one file that is replaced whole, so a program that was killed reads only the tail of LEDGER. Each line
has the table, and `agrees`: for the same sequence the hub's view of each group has the digest that `muster.query.digests` names,
and the same sums; null while the hub cannot say. Freshness and missing reports are left out: reduce.py has all rules.

    python3 view.py ring ring.json [--url nats://127.0.0.1:4222] [--creds FILE --tls-ca FILE | --context NAME]
"""
import asyncio, json, os
from collections import Counter
import nats.errors
from nats.js.api import ConsumerConfig, DeliverPolicy
from connect import arguments, connect
from digest import content_digest

def apply(state, kind, name, fact):
    """The highest generation and the highest (epoch, seq) hold, whichever came last."""
    if kind == "desired" and fact["generation"] >= state["desired"].get(name, {"generation": 0})["generation"]:
        targets = {entry["id"]: entry["targetGeneration"] for entry in fact["deployments"]}
        state["desired"][name] = {**{key: fact.get(key, {}) for key in ("generation", "retired", "labels")}, "targets": targets}
    elif kind == "status" and [fact["epoch"], fact["seq"]] > state["reports"].get(name, {"order": [0, 0]})["order"]:
        is_loop = any(retry.get("crashLoop") for retry in fact.get("retries", []))
        state["reports"][name] = {"order": [fact["epoch"], fact["seq"]], "generation": fact["generation"],
                                  "standing": "failed" if is_loop else fact["status"]["state"]}

def table(state, label):
    groups = {}
    for device, desired in state["desired"].items():
        if label in desired["labels"] and not desired["retired"]:
            counts = groups.setdefault(desired["labels"][label], Counter())
            for deployment, generation in desired["targets"].items():
                report = state["reports"].get(f"{device}.{deployment}", {"generation": generation, "standing": "waiting"})
                counts[report["standing"] if report["generation"] >= generation else "outdated"] += 1
    return {value: dict(sorted(counts.items())) for value, counts in sorted(groups.items())}

async def ask(hub, question, **fields):
    return json.loads((await hub.request(f"muster.query.{question}", json.dumps(fields).encode(), timeout=30)).data)

async def agrees(hub, label, seq, groups):
    digests = await ask(hub, "digests", atSeq=seq)
    while after := digests.get("next"):
        page = await ask(hub, "digests", atSeq=seq, after=after)
        digests = {**page, "views": {**digests["views"], **page.get("views", {})}}
    views = {value: await ask(hub, "group", label=label, value=value, atSeq=seq) for value in groups}
    if any("error" in answer for answer in [digests, *views.values()]):
        return None
    sums = {value: {name: sum(by.values()) for name, by in view["counts"].items()} for value, view in views.items()}
    named = [digests["views"].get(f"group.{label}.{value}") for value in groups]
    return sums == groups and named == [content_digest(view) for view in views.values()]

async def main(args):
    hub = await connect(args)
    ledger, state = await hub.jetstream().stream_info("LEDGER"), None
    if os.path.exists(args.file):
        state = json.load(open(args.file, encoding="utf-8"))
    if not state or state["ledger"] != str(ledger.created) or state["seq"] + 1 < ledger.state.first_seq:
        state = {"ledger": str(ledger.created), "seq": 0, "desired": {}, "reports": {}}  # another LEDGER, or a gap
    after = ConsumerConfig(deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=state["seq"] + 1)
    facts = await hub.jetstream().subscribe(">", stream="LEDGER", config=after, ordered_consumer=True)
    is_new, read = True, 0
    async for message in facts.messages:
        _, kind, name = message.subject.split(".", 2)
        if kind != "hub":  # a pulse: LEDGER keeps it for a short time, so it is no place to resume from
            apply(state, kind, name, json.loads(message.data))
            state["seq"], is_new, read = message.metadata.sequence.stream, True, read + 1
        if is_new and message.metadata.num_pending == 0:
            with open(args.file + ".new", "w", encoding="utf-8") as file:
                json.dump(state, file)
            os.replace(args.file + ".new", args.file)
            groups = table(state, args.label)
            try:
                does_agree = await agrees(hub, args.label, state["seq"], groups)
            except nats.errors.Error:
                does_agree = None
            print(json.dumps({"ledgerSeq": state["seq"], "read": read, args.label: groups, "agrees": does_agree}), flush=True)
            is_new = does_agree is None

if __name__ == "__main__":
    asyncio.run(main(arguments(__doc__, label="a label, such as ring", file="where position and rows are kept").parse_args()))
