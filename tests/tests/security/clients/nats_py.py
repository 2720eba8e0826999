"""Reads in every way, with nats-py, shipped credentials and TLS. Prints the results as one line of JSON.

    nats_py.py EXAMPLES_FOLDER NAME --url URL --creds FILE --tls-ca FILE
"""

import asyncio
import json
import sys

import nats.errors
from nats.js.api import ConsumerConfig

sys.path.insert(0, sys.argv.pop(1))
from connect import arguments, connect, newest  # noqa: E402

SUBJECTS = ["muster.owner.>", "muster.quarantine.>"]


async def read_ledger(js, name, found):
    ordered = await js.subscribe("muster.quarantine.>", stream="LEDGER", ordered_consumer=True)
    found["ordered"] = (await ordered.next_msg(timeout=10)).subject
    await ordered.unsubscribe()
    # With several filters the client names none in the subject of its request.
    pull = await js.pull_subscribe("", durable=name, stream="LEDGER", config=ConsumerConfig(filter_subjects=SUBJECTS))
    [first] = await pull.fetch(1, timeout=10)
    await first.ack_sync(timeout=10)
    [second] = await pull.fetch(1, timeout=10)
    found["durable"] = first.metadata.sequence.stream < second.metadata.sequence.stream
    await js.delete_consumer("LEDGER", name)


async def read_views(js, found):
    views = await js.key_value("views")
    found["get"] = json.loads((await views.get("fleet")).value)["kind"]
    watcher = await views.watch("fleet")
    found["watch"] = (await watcher.updates(timeout=10)).key
    await watcher.stop()
    found["keys"] = "fleet" in await views.keys()
    found["history"] = [entry.key for entry in await views.history("fleet")]


async def ask(hub, name, found):
    reply = json.loads((await hub.request("muster.query.fleet", b"", timeout=10)).data)
    found["request"] = reply["kind"]
    live = await hub.subscribe(f"muster.live.notice.{name}")
    await hub.request("muster.notify.subscribe", json.dumps({"name": name}).encode(), timeout=10)
    found["notice"] = json.loads((await live.next_msg(timeout=10)).data)["event"]
    found["newestNotice"] = (await newest(hub, "NOTICES", f"muster.notice.{name}"))["event"]


async def main(args):
    refusals = asyncio.Queue()
    hub = await connect(args, refused=refusals.put)
    found = {}
    await read_ledger(hub.jetstream(), args.name, found)
    await read_views(hub.jetstream(), found)
    await ask(hub, args.name, found)
    try:
        await hub.request("$JS.API.CONSUMER.NAMES.LEDGER", b"", timeout=0.5)
    except nats.errors.TimeoutError:
        pass  # nats-py reports a refusal beside the request
    found["refused"] = str(await asyncio.wait_for(refusals.get(), 10))
    print(json.dumps(found))
    await hub.close()


asyncio.run(main(arguments(__doc__, name="a name of its own").parse_args()))
