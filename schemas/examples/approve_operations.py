#!/usr/bin/env python3
"""Approves operations of plans by a rule: those of some types, of all plans or some.

The hub records the program's user and the rule with each approval. An operation that somebody else approved or rejected
meanwhile is left as it is, so the program keeps no state. It needs the rights of an approver.

    python3 approve_operations.py [--types CREATE,UPDATE] [--plans web,line] [--url …]
                                  [--creds FILE --tls-ca FILE | --context NAME]
"""
import asyncio, sys

from connect import arguments, ask, connect, repeat


async def approve(hub, types, plans):
    waiting = {"state": ["PENDING_APPROVAL"], "type": types, "plan": plans}
    for found in (await ask(hub, "planner.operation-list", waiting))["operations"]:
        operation = {"plan": found["plan"], "instance": found["instance"], "operation": found["operation"]["id"]}
        try:
            await ask(hub, "planner.operation-approve", {**operation, "rule": f"type {found['operation']['type']}"})
            print(f"approved {found['operation']['type']} of {found['instance']}", flush=True)
        except RuntimeError as refusal:  # somebody else decided meanwhile
            print(refusal, file=sys.stderr, flush=True)


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--types", default="CREATE,UPDATE", help="types of operations (default: CREATE,UPDATE)")
    parser.add_argument("--plans", default="", help="plans (default: all)")
    args = parser.parse_args()
    types, plans = ([word for word in text.split(",") if word] for text in (args.types, args.plans))
    if not args.types.strip(", "):
        parser.error("--types: name a type; an empty list would approve every operation")
    asyncio.run(repeat(approve, connect(args), types, plans))
