"""What it costs to read the desired states of a long LEDGER through a filter: the newest of each device, as the publisher does at
its start, and all of them. Run: .tools/venv/bin/python tests/benches/filtered_read.py 1000000 10000"""

import asyncio
import pathlib
import subprocess
import sys
import tempfile
import time

import nats
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, StreamConfig

SERVER = pathlib.Path(__file__).parents[2] / ".tools/nats-server"
PORT, FACT, DOCUMENT, VERSIONS = 18778, b"x" * 450, b"d" * 1200, 2
# Facts that may be sent before the server has stored them.
AHEAD_MAX = 20_000


async def fill(client, stream, facts, devices):
    every = max(1, facts // (VERSIONS * devices))
    documents = 0
    for nth in range(facts):
        if nth % every == 0 and documents < VERSIONS * devices:
            await client.publish(f"muster.desired.s.d{documents % devices}", DOCUMENT)
            documents += 1
        await client.publish(f"muster.status.s.d{nth % devices}.app", FACT)
        if nth % 2_000 == 0:
            await client.flush()
            while (await stream.stream_info("LEDGER")).state.last_seq < nth - AHEAD_MAX:
                await asyncio.sleep(0.05)
    await client.flush()
    while (await stream.stream_info("LEDGER")).state.messages < facts + documents:
        await asyncio.sleep(0.05)


async def read(stream, policy, wanted):
    begin, got, first = time.monotonic(), 0, None
    config = ConsumerConfig(deliver_policy=policy, ack_policy=AckPolicy.NONE, filter_subject="muster.desired.*.*",
                            mem_storage=True, max_deliver=1)
    consumer = await stream.pull_subscribe("muster.desired.*.*", stream="LEDGER", config=config)
    while got < wanted:
        got += len(await consumer.fetch(5_000, timeout=120))
        first = first or time.monotonic() - begin
    print(f"{policy}: {got} messages, first batch after {first:.2f} s, all after {time.monotonic() - begin:.2f} s", flush=True)
    await consumer.unsubscribe()


async def main(facts, devices):
    client = await nats.connect(f"nats://127.0.0.1:{PORT}", pending_size=64 << 20)
    stream = client.jetstream(timeout=60)
    await stream.add_stream(StreamConfig(name="LEDGER", subjects=["muster.>"]))
    await fill(client, stream, facts, devices)
    for _ in range(2):
        await read(stream, DeliverPolicy.LAST_PER_SUBJECT, devices)
    await read(stream, DeliverPolicy.ALL, VERSIONS * devices)
    await client.close()


with tempfile.TemporaryDirectory() as store:
    server = subprocess.Popen([SERVER, "-js", "-sd", store, "-p", str(PORT)], stderr=subprocess.DEVNULL)
    time.sleep(1)
    try:
        asyncio.run(main(*map(int, sys.argv[1:3])))
    finally:
        server.terminate()
        server.wait()
