"""What it costs nats-server to remove acknowledged reports: paced publishing into an UPLINK of 16 partitions, with purges of the
whole stream or of each partition, every so many milliseconds. Run: .tools/venv/bin/python tests/benches/purge_cost.py"""

import asyncio
import json
import pathlib
import subprocess
import tempfile
import time

import nats

SERVER = pathlib.Path(__file__).parents[2] / ".tools/nats-server"
PORT, PARTITIONS, DEVICES, RATE, REPORTS, BEHIND = 18777, 16, 1_000, 15_000, 60_000, 1_000
BODY = b"x" * 600
# What is purged, how often in seconds, and partitions that stand still.
ROUNDS = [("nothing", 1, 0), ("stream", 0.05, 0), ("stream", 0.1, 0), ("partitions", 0.1, 0), ("partitions", 0.2, 0),
          ("partitions", 0.2, 1), ("nothing", 1, 0)]


def processor_seconds(server):
    fields = pathlib.Path(f"/proc/{server.pid}/stat").read_text().split()
    return (int(fields[13]) + int(fields[14])) / 100


async def api(client, verb, body):
    answer = json.loads((await client.request(f"$JS.API.{verb}", json.dumps(body).encode(), timeout=60)).data)
    assert "error" not in answer, answer
    return answer


async def purge_until(client, stopped, purged, every, stalled, times):
    while not stopped.is_set():
        await asyncio.sleep(every)
        floor = (await api(client, "STREAM.INFO.UPLINK", {}))["state"]["last_seq"] - BEHIND
        if floor <= 0 or purged == "nothing":
            continue
        filters = [{}] if purged == "stream" else [{"filter": f"muster.report.{p}.>"} for p in range(PARTITIONS - stalled)]

        async def purge(subject, floor=floor):
            begin = time.monotonic()
            await api(client, "STREAM.PURGE.UPLINK", {**subject, "seq": floor + 1})
            times.append(time.monotonic() - begin)

        await asyncio.gather(*map(purge, filters))


async def measure(server, purged, every, stalled):
    url = f"nats://127.0.0.1:{PORT}"
    publisher, trimmer = await nats.connect(url), await nats.connect(url)
    await api(trimmer, "STREAM.CREATE.UPLINK", {
        "name": "UPLINK", "subjects": ["muster.report.*.*"], "storage": "file", "discard": "new",
        "max_msgs_per_subject": REPORTS, "discard_new_per_subject": True, "max_bytes": 4 << 30,
        "duplicate_window": 100_000_000, "retention": "limits", "num_replicas": 1, "subject_transform": {
            "src": "muster.report.*.*",
            "dest": f"muster.report.{{{{partition({PARTITIONS},1,2)}}}}.{{{{wildcard(1)}}}}.{{{{wildcard(2)}}}}"}})
    stopped, times = asyncio.Event(), []
    task = asyncio.create_task(purge_until(trimmer, stopped, purged, every, stalled, times))
    before, begin = processor_seconds(server), time.monotonic()
    for nth in range(REPORTS):
        await publisher.publish(f"muster.report.s.d{nth % DEVICES}", BODY, headers={"Nats-Msg-Id": f"{nth:032x}"})
        if nth % 150 == 0:
            await asyncio.sleep(max(0, begin + nth / RATE - time.monotonic()))
    await publisher.flush()
    stopped.set()
    await task
    cost = (processor_seconds(server) - before) * 1e6 / REPORTS
    mean = 1_000 * sum(times) / max(len(times), 1)
    print(f"{purged:10} every {1_000 * every:4.0f} ms, {stalled} stalled: {cost:5.1f} µs of the server a report, "
          f"{len(times)} purges of {mean:.1f} ms", flush=True)
    await api(trimmer, "STREAM.DELETE.UPLINK", {})
    await publisher.close()
    await trimmer.close()


async def main():
    with tempfile.TemporaryDirectory() as folder:
        config = pathlib.Path(folder) / "server.conf"
        config.write_text(f'port: {PORT}\njetstream {{ store_dir: "{folder}/store" }}\n')
        server = subprocess.Popen([SERVER, "-c", config, "-l", f"{folder}/log"])
        try:
            await asyncio.sleep(1)
            for purged, every, stalled in ROUNDS:
                await measure(server, purged, every, stalled)
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    asyncio.run(main())
