#!/usr/bin/env python3
"""A device: it sends heartbeats, and reports the deployments of its desired state as installed. CONTRACT.md has the rules.

It keeps nothing over a restart: each start begins a new epoch, of which the hub accepts 6 an hour, and loses unsent
reports. durable_device.py keeps its numbers and reports in a file, over kills and restarts.
    python3 device.py plant7/press-4 [--heartbeat 30] [--url …] [--creds FILE --tls-ca FILE | --context NAME]
"""
import asyncio, datetime, json, random, sys, time, uuid
import nats.errors
from connect import arguments, connect, newest

class Device:
    def __init__(self, hub, name, known):
        self.hub, self.name, self.life, self.head, self.generation = hub, name, uuid.uuid4(), 0, 0
        self.epoch = max(int(time.time()), known + 1)  # above any that the hub knows
        self.running, self.outbox, self.sent = {}, {}, set()  # by deployment; reports that no receipt covers, by number

    def report(self, kind, **fields):
        self.head, now = self.head + 1, datetime.datetime.now(datetime.timezone.utc).isoformat().replace("+00:00", "Z")
        self.outbox[self.head] = {"apiVersion": "muster/v1", "kind": kind, "epoch": self.epoch, "seq": self.head,
                                  "observedAt": now, **fields}

    def status(self, state, entry):
        components = [{"name": component["name"], "state": state} for component in entry["profile"]["components"]]
        self.report("StatusReport", deployment=entry["id"], generation=self.generation, digest=entry["digest"],
                    status={"state": state}, components=components)

    def apply(self, desired):
        """Applies a newer document. Deployments that it no longer names are reported as removed."""
        if desired["generation"] > self.generation:
            before, self.running = self.running, {entry["id"]: entry for entry in desired["deployments"]}
            for gone in before.keys() - self.running.keys():
                self.status("removed", before[gone])
            self.generation = desired["generation"]
            for name, entry in self.running.items():
                if before.get(name, {}).get("digest") != entry["digest"]:
                    self.status("installed", entry)

    def receive(self, receipt):
        """Deletes the reports that a receipt covers, and sends those again that it misses."""
        if (receipt["epoch"], receipt["through"]) > (self.epoch, self.head):
            sys.exit("the hub knows more than this device has sent: another one has its name")
        for seq in [seq for seq in self.outbox if seq <= receipt["through"] and receipt["epoch"] == self.epoch]:
            if any(first <= seq <= last for first, last in receipt["missing"]):
                self.sent.discard(seq)
            else:
                del self.outbox[seq]

    async def send(self):
        """Sends a heartbeat, then the newest report of each deployment, then the rest by number."""
        unsent, newest_of = self.outbox.keys() - self.sent, {it.get("deployment"): it["seq"] for it in self.outbox.values()}
        beat = {"apiVersion": "muster/v1", "kind": "Heartbeat", "epoch": self.epoch, "head": self.head, "unsent": len(unsent)}
        await self.hub.publish(f"muster.presence.{self.name}", json.dumps({**beat, "generation": self.generation}).encode())
        for seq in sorted(unsent, key=lambda seq: (seq not in newest_of.values(), seq)):
            current = {"current": seq in newest_of.values()} if "deployment" in self.outbox[seq] else {}
            headers = {"Nats-Msg-Id": f"{self.life}.{seq}", "Nats-Expected-Stream": "UPLINK"}
            document = json.dumps({**self.outbox[seq], "head": self.head, **current}).encode()
            await self.hub.jetstream().publish(f"muster.report.{self.name}", document, headers=headers)
            self.sent.add(seq)

async def main(args):
    name = args.device.replace("/", ".")
    hub = await connect(args, inbox=f"_INBOX_{name.replace('.', '_')}")
    live, receipt = await hub.subscribe(f"muster.live.*.{name}"), await newest(hub, "DOWNLINK", f"muster.receipt.{name}")
    device = Device(hub, name, receipt["epoch"] if receipt else 0)
    device.report("CapabilitiesReport", properties={"supportedDeploymentTypes": ["simulated"]}, agentVersion="device.py 2")
    while True:
        try:
            device.apply(await newest(hub, "DOWNLINK", f"muster.desired.{name}") or {"generation": 0})
            await device.send()
            document = json.loads((await live.next_msg(timeout=args.heartbeat * random.uniform(0.8, 1))).data)
            if document["kind"] == "Receipt":
                device.receive(document)
        except nats.errors.Error:  # nothing came for so long, or the hub cannot be reached
            await asyncio.sleep(0.1)

if __name__ == "__main__":
    parser = arguments(__doc__, device="site and name, such as plant7/press-4")
    parser.add_argument("--heartbeat", type=float, default=30, help="seconds between two heartbeats")
    asyncio.run(main(parser.parse_args()))
