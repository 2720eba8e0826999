"""The six ways in which people read, with nats-py, a JWT and TLS. Prints what each way read, as one line of JSON.

nats-py signs with a package of its own that this repository does not need: the line before asks for the signature of a nonce,
and the next line of standard input is that signature.

Usage: reading.py URL CA_FILE JWT PUBLIC_KEY DURABLE_NAME
"""

import asyncio
import json
import ssl
import sys

import nats
from nats.js.api import ConsumerConfig


async def read(nc, durable):
    js, found = nc.jetstream(), {}
    ordered = await js.subscribe(">", stream="LEDGER", ordered_consumer=True)
    found["ordered"] = (await ordered.next_msg(timeout=10)).metadata.sequence.stream
    await ordered.unsubscribe()

    config = ConsumerConfig(filter_subject="muster.>")
    pull = await js.pull_subscribe("muster.>", durable=durable, stream="LEDGER", config=config)
    [first] = await pull.fetch(1, timeout=10)
    await first.ack_sync(timeout=10)
    [second] = await pull.fetch(1, timeout=10)
    found["durable"] = [first.metadata.sequence.stream, second.metadata.sequence.stream]
    await pull.unsubscribe()
    await js.delete_consumer("LEDGER", durable)

    views = await js.key_value("views")
    found["get"] = json.loads((await views.get("fleet")).value)["kind"]
    watcher = await views.watch("fleet")
    found["watch"] = (await watcher.updates(timeout=10)).key
    await watcher.stop()
    found["keys"] = "fleet" in await views.keys()

    reply = await nc.request("muster.query.fleet", b"", timeout=10)
    found["request"] = "error" not in json.loads(reply.data)
    return found


def sign(nonce):
    print(nonce, flush=True)
    return sys.stdin.readline().strip().encode()


async def main(url, authority, token, key, durable):
    nc = await nats.connect(
        url,
        tls=ssl.create_default_context(cafile=authority),
        user_jwt_cb=lambda: token.encode(),
        signature_cb=sign,
        inbox_prefix=f"_INBOX.{key}".encode(),
        allow_reconnect=False,
    )
    print(json.dumps(await read(nc, durable)))
    await nc.close()


asyncio.run(main(*sys.argv[1:]))
