#!/usr/bin/env python3
"""Prints a line for each notice of a subscription: the present, then every change.

A notice is confirmed after it was printed, so a program that comes back under the same name continues after the last one
that it confirmed: it first prints every change that it missed, several of which one notice may cover. A live message only
says that there is a new notice: the notice itself is read by direct get.

    python3 notify.py night-shift [--deployment web] [--url …] [--creds FILE --tls-ca FILE | --context NAME]
"""
import asyncio, json, sys, time

from connect import arguments, connect, newest

LOOK_SECONDS = 10  # without a live message, which may be lost
RENEW_SECONDS = 600  # the lease of a subscription is an hour


async def ask(hub, request, question):
    answer = json.loads((await hub.request(f"muster.notify.{request}", json.dumps(question).encode(), timeout=5)).data)
    if "error" not in answer:
        return answer
    if answer["error"]["code"] != "notReady":
        sys.exit(f"muster.notify.{request}: {answer['error']['message']}")
    await asyncio.sleep(1)
    return await ask(hub, request, question)


async def missed(hub, name, notice):
    question, page = {"name": name, "to": notice["asOf"]["ledgerSeq"], "hubs": notice.get("hubs", [])}, {"next": None}
    while "next" in page:
        page = await ask(hub, "missed", {**question, "next": page["next"]})
        for one in [{"gone": one} for one in page.get("gone", [])] + [{"missed": one} for one in page["changes"]]:
            print(json.dumps(one), flush=True)


def line(notice):
    state = notice.get("state", {})
    words = {name: state[name] for name in ("status", "verdict") if name in state}
    words.update({name: notice[name] for name in ("reason", "message", "changes") if name in notice})
    return json.dumps({"number": notice["number"], "event": notice["event"], "ledgerSeq": notice["asOf"]["ledgerSeq"], **words})


async def main(args):
    hub, is_time = await connect(args), asyncio.Event()
    wanted = {"name": args.name}
    if args.deployment:
        wanted.update(id=args.deployment, waitFor=True)

    async def wake(_):
        is_time.set()

    await hub.subscribe(f"muster.live.notice.{args.name}", cb=wake)
    seen, renewed_at = (await ask(hub, "subscribe", wanted))["seen"], time.monotonic()
    reconnects = None  # before the first notice
    while True:
        is_time.clear()
        notice = await newest(hub, "NOTICES", f"muster.notice.{args.name}")
        if notice and notice["number"] > seen:
            is_back = reconnects != hub.stats["reconnects"]
            if seen and (is_back or notice["number"] > seen + 1):
                await missed(hub, args.name, notice)
                notice.pop("changes", None)
            print(line(notice), flush=True)
            seen, reconnects, renewed_at = notice["number"], hub.stats["reconnects"], time.monotonic()
            if notice["event"] == "ended":
                sys.exit("the subscription has ended")
            await ask(hub, "confirm", {"name": args.name, "number": seen})
        if time.monotonic() > renewed_at + RENEW_SECONDS:
            await ask(hub, "subscribe", wanted)
            renewed_at = time.monotonic()
        try:
            await asyncio.wait_for(is_time.wait(), LOOK_SECONDS)
        except asyncio.TimeoutError:
            pass


if __name__ == "__main__":
    parser = arguments(__doc__, name="name of the subscription, your own")
    parser.add_argument("--deployment", help="only this deployment (default: the whole fleet)")
    asyncio.run(main(parser.parse_args()))
