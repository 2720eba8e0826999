#!/usr/bin/env python3
"""Converts messages of LEDGER to CloudEvents 1.0 for other systems: each attribute follows from subject, document and
position (CONTRACT.md, "CloudEvents and traces"). Facts carry no attributes themselves.

    python3 cloudevents.py EXCERPT.json …      excerpts of LEDGER in the form of schemas/vectors; one event a line
"""
import json, sys

SOURCES = {"DesiredState": "muster-publisher", "HearingFact": "muster-rollup"}  # ingest writes all others


def event_id(subject, fact, seq):
    """A report or desired state keeps its id when it is written again; the id of any other fact is its position."""
    device = ".".join(subject.split(".")[2:4])
    if fact["kind"] in ("StatusFact", "DeviceFact"):
        return f"{device}.{fact['epoch']}.{fact['seq']}"
    if fact["kind"] == "DesiredState":
        return f"{device}.{fact['generation']}"
    return f"ledger.{seq}"


def event(subject, fact, seq, stored_at):
    """The event in the structured mode: the attributes, and the document as `data`."""
    return {
        "specversion": "1.0",
        "id": event_id(subject, fact, seq),
        "source": SOURCES.get(fact["kind"], "muster-ingest"),
        "type": "muster.v1." + fact["kind"],
        "subject": subject,
        "time": stored_at,
        "datacontenttype": "application/json",
        "data": fact,
    }


if __name__ == "__main__":
    for name in sys.argv[1:]:
        with open(name, encoding="utf-8") as file:
            for entry in json.load(file)["ledger"]:
                print(json.dumps(event(entry["subject"], entry["fact"], entry["seq"], entry["storedAt"])))
