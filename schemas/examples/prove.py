#!/usr/bin/env python3
"""Proves the views in the bucket: rebuilds each from the facts of LEDGER and compares the digests.

What it has read is kept in a file (a line a fact), so a second start reads only the tail. For each view it takes the
entry of the bucket, reads LEDGER up to the entry's `asOf.ledgerSeq`, and folds by the rules in reduce.py. Prints a line of
JSON for each view, and ends with 1 where one is not what the facts give. A view that is older than what was read already is
skipped: it is proven before more is read, or not at all. Views that a person has defined are left out: what defines them is
not in LEDGER. Needs nats-py:

    python3 schemas/examples/prove.py facts.jsonl [nats://127.0.0.1:4222]
"""
import asyncio, json, os, sys

import nats
from nats.js.api import ConsumerConfig, DeliverPolicy
from nats.js.errors import NotFoundError

from reduce import Fleet

# Keys of what persons have defined, and of what that gives.
DEFINED = ("definition.", "view.")

class Facts:
    """LEDGER as far as it was read: the fold, and the file that it can be made of again."""

    def __init__(self, path):
        self.fleet, self.read_to, self.path = Fleet(), 0, path
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                for line in file:
                    self.take(*json.loads(line))

    def take(self, seq, stored_at, subject, fact):
        self.fleet.apply(seq, stored_at, subject, fact)
        self.read_to = seq

    async def read_until(self, js, ledger_seq):
        """Reads the tail up to a sequence; how many facts that were."""
        if self.read_to >= ledger_seq:
            return 0
        after = ConsumerConfig(deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=self.read_to + 1)
        ledger, read = await js.subscribe(">", stream="LEDGER", config=after, ordered_consumer=True), 0
        with open(self.path, "a", encoding="utf-8") as file:
            while self.read_to < ledger_seq:
                message = await ledger.next_msg(timeout=10)
                at = message.metadata
                line = [at.sequence.stream, at.timestamp.isoformat(), message.subject, json.loads(message.data)]
                file.write(json.dumps(line) + "\n")
                self.take(*line)
                read += 1
        await ledger.unsubscribe()
        return read


async def shown(js, bucket):
    """The views of the bucket by their keys. The stream is asked for them, because `bucket.keys()` may find none where all
    were delivered before it asks how many there are."""
    subjects = (await js.stream_info("KV_views", subjects_filter=">")).state.subjects or {}
    views = {}
    for key in (subject.removeprefix("$KV.views.") for subject in subjects):
        try:
            if not key.startswith(DEFINED):
                views[key] = json.loads((await bucket.get(key)).value)
        except NotFoundError:
            pass  # it was deleted
    return views


async def main(path, url="nats://127.0.0.1:4222"):
    nc = await nats.connect(url)
    js, facts = nc.jetstream(), Facts(path)
    bucket, wrong = await js.key_value("views"), False
    # The oldest first: a fold does not go back.
    for key, theirs in sorted((await shown(js, bucket)).items(), key=lambda entry: entry[1]["asOf"]["ledgerSeq"]):
        seq = theirs["asOf"]["ledgerSeq"]
        if facts.read_to > seq:
            print(json.dumps({"key": key, "ledgerSeq": seq, "skipped": True}), flush=True)
            continue
        read = await facts.read_until(js, seq)
        ours = facts.fleet.views().get(key, {}).get("digest")
        proven = ours == theirs["digest"]
        print(json.dumps({"key": key, "ledgerSeq": seq, "read": read, "digest": ours, "proven": proven}), flush=True)
        wrong |= not proven
    await nc.close()
    sys.exit(wrong)

if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
