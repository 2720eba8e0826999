#!/usr/bin/env python3
"""A view of your own: how many devices of each site are in which state, deployment by deployment, live.

It begins with the rows of the query service, which say how far they have read in LEDGER, and goes on with LEDGER from
there: no gap, nothing twice. Prints a line of JSON for each change, with the partitions that the hub does not hear (nothing is
known of their devices now) and until when the hub's own views may be believed. Needs nats-py; its argument is the server's URL.
"""
import asyncio, json, sys
from collections import Counter, defaultdict

import nats
from nats.js.api import ConsumerConfig, DeliverPolicy

rows = {}  # (site, device, deployment): ((epoch, seq), state); the highest (epoch, seq) holds
retired = set()  # (site, device)
unheard = set()  # partitions

async def pages(nc, what, **query):
    """The pages of an answer. The first has read least far, so LEDGER is read on from there."""
    while query.get("after") != "":
        reply = await nc.request(f"muster.query.{what}", json.dumps(query).encode(), timeout=5)
        page = json.loads(reply.data)
        if "error" in page:
            sys.exit(page["error"]["message"])
        yield page
        query["after"] = page.get("next", "")

def take(key, report, state):
    order = (report["epoch"], report["seq"])
    if order > rows.get(key, ((0, 0), None))[0]:
        rows[key] = (order, state)

async def show(ledger_seq, views):
    table = defaultdict(Counter)
    for (site, device, deployment), (_, state) in sorted(rows.items()):
        if state != "removed" and (site, device) not in retired:
            table[f"{site}/{deployment}"][state] += 1
    # The two lines that tell whether a view of the bucket may be believed: compare this with your clock.
    valid_until = json.loads((await views.get("fleet")).value)["asOf"].get("validUntil")
    print(json.dumps({"ledgerSeq": ledger_seq, "states": table, "unheard": sorted(unheard), "validUntil": valid_until}),
          flush=True)

async def main(url="nats://127.0.0.1:4222"):
    nc = await nats.connect(url)
    lists = [page async for page in pages(nc, "deployments")]
    for deployment in [view["deployment"] for page in lists for view in page["deployments"]]:
        async for page in pages(nc, "deployment", id=deployment, output="all"):
            for line in [line for line in page.get("devices", []) if "report" in line]:
                take((line["site"], line["device"], deployment), line["report"], line["report"]["state"])
    unheard.update(stop["partition"] for stop in lists[0].get("hub", {}).get("unheard", []))
    as_of, views = lists[0]["asOf"]["ledgerSeq"], await nc.jetstream().key_value("views")
    await show(as_of, views)
    after = ConsumerConfig(deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=as_of + 1)
    ledger = await nc.jetstream().subscribe(">", stream="LEDGER", config=after, ordered_consumer=True)
    is_news = False
    async for message in ledger.messages:
        (_, room, *name), fact = message.subject.split("."), json.loads(message.data)
        if room == "status" and not fact.get("late"):  # a late fact is history: a newer one was in before it
            take(tuple(name), fact, fact["status"]["state"])
        elif room == "desired":
            (retired.add if fact["retired"] else retired.discard)(tuple(name))
        elif room == "hearing":
            (unheard.add if fact["state"] == "stopped" else unheard.discard)(int(name[0]))
        is_news |= room != "hub"  # a pulse, which LEDGER keeps for a short time only
        if is_news and message.metadata.num_pending == 0:
            is_news = False
            await show(message.metadata.sequence.stream, views)

asyncio.run(main(*sys.argv[1:]))
