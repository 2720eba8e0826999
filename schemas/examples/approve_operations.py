#!/usr/bin/env python3
"""Approves operations of plans by a rule: those of some types, of all plans or some.

The hub records the program's user and the rule with each approval. An operation that somebody else approved or rejected
meanwhile is left as it is, so the program keeps no state. It needs the rights of an approver.

    python3 approve_operations.py [--types CREATE,UPDATE] [--plans web,line] [--url …]
                                  [--creds FILE --tls-ca FILE | --context NAME]
"""
import asyncio, json, sys

from connect import arguments, connect

LOOK_SECONDS = 2


async def ask(hub, verb, question):
    answer = json.loads((await hub.request(f"muster.planner.{verb}", json.dumps(question).encode(), timeout=5)).data)
    if "error" in answer:
        raise RuntimeError(f"{verb}: {answer['error']['message']}")
    return answer


async def approve(hub, types, plans):
    waiting = {"state": ["PENDING_APPROVAL"], "type": types, "plan": plans}
    for found in (await ask(hub, "operation-list", waiting))["operations"]:
        operation = {"plan": found["plan"], "instance": found["instance"], "operation": found["operation"]["id"]}
        try:
            await ask(hub, "operation-approve", {**operation, "rule": f"type {found['operation']['type']}"})
            print(f"approved {found['operation']['type']} of {found['instance']}", flush=True)
        except RuntimeError as refusal:  # somebody else decided meanwhile
            print(refusal, file=sys.stderr, flush=True)


async def main(args):
    hub = await connect(args)
    types, plans = ([word for word in text.split(",") if word] for text in (args.types, args.plans))
    while True:
        try:
            await approve(hub, types, plans)
        except Exception as error:  # a planner that does not answer now does so later
            print(f"{error!r}", file=sys.stderr, flush=True)
        await asyncio.sleep(LOOK_SECONDS)


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--types", default="CREATE,UPDATE", help="types of operations (default: CREATE,UPDATE)")
    parser.add_argument("--plans", default="", help="plans (default: all)")
    arguments = parser.parse_args()
    if not arguments.types.strip(", "):
        parser.error("--types: name a type; an empty list would approve every operation")
    asyncio.run(main(arguments))
