#!/usr/bin/env python3
"""Proves the views in the bucket: rebuilds each from the facts of LEDGER and compares the digests.

The folded state is left to the next run in a snapshot, so a second start reads only the tail. For each view it takes the
entry of the bucket, reads LEDGER up to the entry's `asOf.ledgerSeq`, and folds by the rules in reduce.py. Prints a line of
JSON for each view, and ends with 1 where one is not what the facts give, and with 2 where nothing can be said; then no
snapshot is left, because the state may be what is wrong. A view that was written before what was read already has to show what
is so still: one that has changed since is written again, which is waited for. Views that a person has defined are left out: what
defines them is not in LEDGER.

Where LEDGER has forgotten its first fact and there is no snapshot, its window alone gives the present, but not every moment at
which a quiet view was written. So the window is read to its end, and every digest compared with what the hub tells of that
fact (`muster.query.digests`), before the bucket is looked at.
Needs nats-py (2.16.0):

    python3 schemas/examples/prove.py proof-py.json [nats://127.0.0.1:4222]
"""
import asyncio, json, os, sys, time

import nats
import nats.errors
from nats.js.api import ConsumerConfig, DeliverPolicy
from nats.js.errors import NotFoundError

from reduce import Fleet, content_digest, digest

# Keys of what persons have defined, and of what that gives.
DEFINED = ("definition.", "view.")
# For an answer of the hub that takes its time, in seconds.
PATIENCE = 30
# For a view that has changed to be written again, and between two looks at it, in seconds.
WRITTEN_WITHIN, LOOK_AGAIN = 10, 0.2


class Unsaid(Exception):
    """Why nothing can be said."""


def load(path, ledger):
    """The state that an earlier run left, or the beginning. What is damaged or of another LEDGER is set aside."""
    if not os.path.exists(path):
        return Fleet()
    try:
        with open(path, encoding="utf-8") as file:
            snapshot = json.load(file)
        content = {name: snapshot[name] for name in ("ledgerCreated", "asOf", "unheard", "devices")}
        seq = snapshot["asOf"]["ledgerSeq"]
        if snapshot["digest"] != digest(content):
            wrong = "is not what was written"
        elif snapshot["ledgerCreated"] != str(ledger.created) or seq > ledger.state.last_seq:
            wrong = "is of another LEDGER"
        elif seq + 1 < ledger.state.first_seq:
            wrong = "ends before LEDGER begins"
        else:
            return Fleet.of(snapshot)
    except (ValueError, KeyError, TypeError) as error:
        wrong = f"is damaged: {error!r}"
    os.replace(path, path + ".aside")
    print(f"{path} {wrong}; it is now {path}.aside, and LEDGER is read from its beginning", file=sys.stderr)
    return Fleet()


def save(path, fleet, ledger):
    """As a whole or not at all."""
    content = {"ledgerCreated": str(ledger.created), **fleet.record()}
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump({**content, "digest": digest(content)}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".new", path)


def read_to(fleet):
    return fleet.as_of["ledgerSeq"] if fleet.as_of else 0


async def read_until(js, fleet, ledger_seq):
    """Reads the tail up to a sequence into the fold, and returns how many facts that were, without pulses. LEDGER discards
    pulses, so the message of that sequence may be gone. Then reading ends at the next one, which is not folded, or at the end."""
    if read_to(fleet) >= ledger_seq:
        return 0
    after = ConsumerConfig(deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=read_to(fleet) + 1)
    ledger, read = await js.subscribe(">", stream="LEDGER", config=after, ordered_consumer=True), 0
    # A message that the server has delivered is not pending for it, and may still be on its way to this client.
    info, at_seq = await ledger.consumer_info(), 0
    pending = info.num_pending + info.delivered.consumer_seq
    while pending > 0 and at_seq < ledger_seq:
        message = await ledger.next_msg(timeout=10)
        at = message.metadata
        at_seq, pending = at.sequence.stream, at.num_pending
        if at_seq > ledger_seq:
            break
        fleet.apply(at_seq, at.timestamp.isoformat(), message.subject, json.loads(message.data))
        read += read_to(fleet) == at_seq
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


async def up_to_date(bucket, key, theirs, fleet, patience):
    """The view, as old as it is where it shows what is so still; none where it went."""
    until = time.monotonic() + patience
    while theirs["asOf"]["ledgerSeq"] < read_to(fleet) and time.monotonic() < until:
        if fleet.views().get(key, {}).get("digest") == theirs["digest"]:
            break
        await asyncio.sleep(LOOK_AGAIN)
        try:
            theirs = json.loads((await bucket.get(key)).value)
        except NotFoundError:
            return None
    return theirs


async def ask(nc, question):
    """What the hub tells of its digests; it says so while it is not ready yet."""
    until = time.monotonic() + PATIENCE
    while True:
        reply = await nc.request("muster.query.digests", json.dumps(question).encode(), timeout=PATIENCE)
        try:
            answer = json.loads(reply.data)
            error = answer.get("error", {"code": None} if "views" not in answer else None)
        except (ValueError, AttributeError) as unread:
            raise Unsaid(f"what the hub answers cannot be read: {unread}") from unread
        if not error:
            return answer
        if error.get("code") != "notReady" or time.monotonic() > until:
            raise Unsaid(f"the hub does not tell its digests: {error.get('message', answer)}")
        await asyncio.sleep(1)


async def told(nc, ledger_seq):
    """The digests of all views as of a fact, as the hub tells them."""
    answer = await ask(nc, {"atSeq": ledger_seq})
    views = answer["views"]
    while after := answer.get("next"):
        answer = await ask(nc, {"atSeq": ledger_seq, "after": after})
        views.update(answer["views"])
    return views


async def window_is_wrong(nc, js, fleet, ledger):
    """Reads all that LEDGER still has, and compares the present with what the hub tells of it."""
    first, seq = ledger.state.first_seq, ledger.state.last_seq
    print(f"LEDGER begins with {first}: its window is compared with what the hub tells as of {seq}", file=sys.stderr)
    read = await read_until(js, fleet, seq)
    ours, theirs = {key: view["digest"] for key, view in fleet.views().items()}, await told(nc, seq)
    wrong = [key for key in sorted({*ours, *theirs}) if ours.get(key) != theirs.get(key)]
    for key in sorted({*ours, *theirs}):
        print(json.dumps({"key": key, "ledgerSeq": seq, "read": read, "digest": ours.get(key), "told": theirs.get(key),
                          "proven": key not in wrong}), flush=True)
        read = 0
    if wrong:
        print(f"{len(wrong)} differ, {wrong[0]} first: the window gives {ours.get(wrong[0])}, the hub tells "
              f"{theirs.get(wrong[0])}. It is wrong, or LEDGER has lost what still holds", file=sys.stderr)
    return bool(wrong)


async def main(path, url="nats://127.0.0.1:4222"):
    nc = await nats.connect(url)
    js = nc.jetstream()
    ledger, bucket, wrong = await js.stream_info("LEDGER"), await js.key_value("views"), False
    fleet = load(path, ledger)
    if not fleet.as_of and ledger.state.first_seq > 1:
        wrong = await window_is_wrong(nc, js, fleet, ledger)
    # The oldest first: a fold does not go back.
    for key, theirs in sorted((await shown(js, bucket)).items(), key=lambda entry: entry[1]["asOf"]["ledgerSeq"]):
        # Who waited for one in vain waits for no other.
        theirs = await up_to_date(bucket, key, theirs, fleet, 0 if wrong else WRITTEN_WITHIN)
        if theirs is None:
            continue
        seq = theirs["asOf"]["ledgerSeq"]
        read = await read_until(js, fleet, seq)
        ours = fleet.views().get(key, {}).get("digest")
        # Its digest is what the facts give, and its own.
        proven = ours == theirs["digest"] == content_digest(theirs)
        print(json.dumps({"key": key, "ledgerSeq": seq, "read": read, "digest": ours, "proven": proven}), flush=True)
        wrong |= not proven
    if fleet.as_of and not wrong:
        save(path, fleet, ledger)
    await nc.close()
    sys.exit(wrong)


if __name__ == "__main__":
    try:
        asyncio.run(main(*sys.argv[1:]))
    except (OSError, TimeoutError, nats.errors.Error, Unsaid) as error:
        print(f"nothing can be said: {error!r}", file=sys.stderr)
        sys.exit(2)
