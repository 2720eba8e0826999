#!/usr/bin/env python3
"""A device that keeps its memory: the contract's device rules in Python, with nothing of Muster but its documents.

It follows its desired state, pretends to install what that names, and reports. Its standings and its outbox are in one file
that is replaced whole before anything is sent, so a kill at any instant loses no number and invents none.

    python3 durable_device.py plant7/press-4 press-4.json [--heartbeat 30] [--url …] [--creds FILE --tls-ca FILE]
"""
import asyncio
import datetime
import json
import os
import sys
import time
import uuid

import nats.errors

from connect import arguments, connect

API = {"apiVersion": "muster/v1"}
AGENT = "durable_device.py 1"
RENEWAL_SECONDS = 45  # least time between two epochs that a receipt began


def now():
    return datetime.datetime.now(datetime.timezone.utc).isoformat().replace("+00:00", "Z")


class Device:
    def __init__(self, name, path):
        self.name, self.path = name.replace("/", "."), path
        self.state = {"epoch": None, "seq": 0, "generation": 0, "standings": {}, "outbox": []}
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                self.state = json.load(file)

    def save(self):
        """Rule 2: what is new and its numbers are on disk together, before anyone hears of them."""
        with open(self.path + ".new", "w", encoding="utf-8") as file:
            json.dump(self.state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(self.path + ".new", self.path)

    def report(self, kind, **fields):
        self.state["seq"] += 1
        document = {**API, "kind": kind, "epoch": self.state["epoch"], "seq": self.state["seq"], "observedAt": now()}
        self.state["outbox"].append({"id": str(uuid.uuid4()), "sent": False, "document": {**document, **fields}})

    def status(self, deployment, standing, state):
        components = [{"name": name, "state": state} for name in standing["components"]]
        self.report("StatusReport", deployment=deployment, generation=standing["generation"],
                    digest=standing["digest"], status={"state": state}, components=components)

    def apply(self, desired):
        """Rule 1: only a newer document is taken. What it does not name is removed."""
        if desired.get("kind") != "DesiredState" or desired["generation"] <= self.state["generation"]:
            return
        self.state["generation"] = desired["generation"]
        standings = self.state["standings"]
        wanted = {entry["id"]: entry for entry in desired["deployments"]}
        for gone in [deployment for deployment in standings if deployment not in wanted]:
            for state in ("removing", "removed"):
                self.status(gone, standings[gone], state)
            del standings[gone]
        for deployment, entry in wanted.items():
            if standings.get(deployment, {}).get("digest") != entry["digest"]:
                names = [component["name"] for component in entry["profile"]["components"]]
                standings[deployment] = {"digest": entry["digest"], "generation": desired["generation"],
                                         "components": names}
                for state in ("pending", "installing", "installed"):
                    self.status(deployment, standings[deployment], state)
        self.save()

    async def last(self, room):
        """The newest document of one of our two subjects, by direct get: the only way to read them."""
        subject = f"$JS.API.DIRECT.GET.DOWNLINK.muster.{room}.{self.name}"
        reply = await self.nc.request(subject, b"", timeout=5)
        return None if (reply.headers or {}).get("Status") else json.loads(reply.data)

    def begin_epoch(self, receipt):
        """Rule 3: an epoch is fixed once, above any that the hub knows, and is on disk before it is used. What waits
        has new numbers in it; what is true now is told once more, because the hub cannot tell which of it was heard."""
        if receipt and self.state["epoch"] is not None:
            self.state["renewedAt"] = time.time()
        waiting, self.state["outbox"] = self.state["outbox"], []
        self.state.update(epoch=max(int(time.time()), receipt["epoch"] + 1 if receipt else 1), seq=0)
        self.report("CapabilitiesReport", properties={"supportedDeploymentTypes": ["simulated"]}, agentVersion=AGENT)
        for document in [row["document"] for row in waiting]:
            if document["kind"] == "StatusReport":
                told = {name: document[name] for name in ("deployment", "generation", "digest", "status", "components")}
                self.report("StatusReport", **told)
                self.state["outbox"][-1]["document"]["observedAt"] = document["observedAt"]
        for deployment, standing in self.state["standings"].items():
            self.status(deployment, standing, "installed")
        self.save()

    def receive(self, receipt):
        """A hub that knows more than this file, knows what the file was before it was set back, or another of this name:
        with that one it would go on for ever, so no sooner than after a while is it answered again."""
        epoch, seq = self.state["epoch"], self.state["seq"]
        if receipt["epoch"] > epoch or (receipt["epoch"] == epoch and receipt["through"] > seq):
            if not 0 <= time.time() - self.state.get("renewedAt", 0) < RENEWAL_SECONDS:
                self.begin_epoch(receipt)
        else:
            self.forget(receipt)

    def forget(self, receipt):
        """A row may go once a receipt covers it. A device of more than one file would keep it for a while longer."""
        def is_covered(seq):
            missing = any(first <= seq <= last for first, last in receipt["missing"])
            return seq <= receipt["through"] and not missing
        if receipt["epoch"] == self.state["epoch"]:
            rows = self.state["outbox"]
            self.state["outbox"] = [row for row in rows if not is_covered(row["document"]["seq"])]
            for row in self.state["outbox"]:
                row["sent"] &= row["document"]["seq"] > receipt["through"]  # what is asked for is sent again
            self.save()

    async def begin(self):
        """The hub's last receipt comes before anything else: it says which epoch may be used."""
        receipt = await self.last("receipt")
        if self.state["epoch"] is None:
            self.begin_epoch(receipt)
        elif receipt:
            self.receive(receipt)

    async def beat(self):
        if not self.begun:
            return  # the hub was not asked yet which epoch it knows
        unsent = [row["document"] for row in self.state["outbox"] if not row["sent"]]
        beat = {**API, "kind": "Heartbeat", "epoch": self.state["epoch"], "head": self.state["seq"],
                "unsent": len(unsent), "generation": self.state["generation"], "agentVersion": AGENT}
        if unsent:
            beat["oldestUnsentAt"] = unsent[0]["observedAt"]
        await self.nc.publish(f"muster.presence.{self.name}", json.dumps(beat).encode())

    async def send(self):
        """Rule 4: the newest report of each deployment first, then the rest by number. `head` says what is to come."""
        newest = {row["document"].get("deployment"): row["document"]["seq"] for row in self.state["outbox"]}
        def is_newest(row):
            return newest[row["document"].get("deployment")] == row["document"]["seq"]
        unsent = [row for row in self.state["outbox"] if not row["sent"]]
        for row in sorted(unsent, key=lambda row: not is_newest(row)):
            document = {**row["document"], "head": self.state["seq"]}
            if document["kind"] == "StatusReport":
                document["current"] = is_newest(row)
            headers = {"Nats-Msg-Id": row["id"], "Nats-Expected-Stream": "UPLINK"}
            await self.js.publish(f"muster.report.{self.name}", json.dumps(document).encode(), headers=headers)
            row["sent"] = True

    async def run(self, args):
        self.begun = False
        # Rule 4: every connection begins with a heartbeat.
        inbox = "_INBOX_" + self.name.replace(".", "_")
        self.nc = await connect(args, inbox=inbox, name=AGENT, reconnected_cb=self.beat)
        self.js = self.nc.jetstream()
        live = await self.nc.subscribe(f"muster.live.*.{self.name}")
        for row in self.state["outbox"]:
            row["sent"] = False  # whether the last life's reports arrived is not known; the hub knows its numbers
        while True:
            try:
                if not self.begun:
                    await self.begin()
                    self.begun = True
                    await self.beat()
                if desired := await self.last("desired"):
                    self.apply(desired)
                await self.send()
                message = await live.next_msg(timeout=args.heartbeat)
                document = json.loads(message.data)
                self.receive(document) if document["kind"] == "Receipt" else self.apply(document)
            except nats.errors.Error as error:
                if not isinstance(error, nats.errors.TimeoutError):
                    print(f"trying again: {error!r}", file=sys.stderr, flush=True)
                    await asyncio.sleep(1)
                elif self.begun:
                    await self.beat()


if __name__ == "__main__":
    parser = arguments(__doc__, device="site and name, such as plant7/press-4", file="where its memory is kept")
    parser.add_argument("--heartbeat", type=float, default=30, help="seconds between two heartbeats")
    args = parser.parse_args()
    asyncio.run(Device(args.device, args.file).run(args))
