"""Connects to a hub: `--url`, `--creds` and `--tls-ca`, or `--context NAME`, a context of the nats CLI.

A hub with accounts sends answers to the inbox of the user's own key alone; the key is in the credentials file. Each refusal
of the server is printed with its subject. Copy this file beside the example that you copy.
"""
import argparse, asyncio, base64, json, os, re, ssl, sys

import nats


def arguments(description, **positional):
    """Options that every example takes; `positional` are further words, each with its help."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, what in positional.items():
        parser.add_argument(name, help=what)
    parser.add_argument("--url", help="address of the hub (default: nats://127.0.0.1:4222)")
    parser.add_argument("--creds", help="credentials file; without one the hub must be open")
    parser.add_argument("--tls-ca", help="certificates (PEM) of the authority that signed the hub's certificate")
    parser.add_argument("--context", help="context of the nats CLI; the other options override it")
    return parser


def context(name):
    """Reads a context of the nats CLI: $XDG_CONFIG_HOME/nats/context/NAME.json."""
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    with open(os.path.join(home, "nats", "context", f"{name}.json"), encoding="utf-8") as file:
        return json.load(file)


def own_inbox(creds):
    """The inbox of the user's public key, which is the subject of the token in the credentials file."""
    with open(creds, encoding="utf-8") as file:
        claims = re.search(r"JWT-----\s+(\S+)", file.read()).group(1).split(".")[1]
    return "_INBOX." + json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))["sub"]


async def connect(args, inbox=None, refused=None, **more):
    """A connection that is made again after every break. A device has an inbox of its name; `more` is for nats.connect."""
    chosen = context(args.context) if args.context else {}
    url = args.url or chosen.get("url") or "nats://127.0.0.1:4222"
    creds, authority = args.creds or chosen.get("creds"), args.tls_ca or chosen.get("ca")
    if creds:
        more["user_credentials"] = creds
    if inbox := inbox or chosen.get("inbox_prefix") or (own_inbox(creds) if creds else None):
        more["inbox_prefix"] = inbox.encode()
    if authority or url.startswith("tls://"):
        more["tls"] = ssl.create_default_context(cafile=authority)

    async def report(error):
        print(f"{url}: {error}", file=sys.stderr, flush=True)

    return await nats.connect(url, error_cb=refused or report, max_reconnect_attempts=-1, **more)


async def ask(hub, subject, question):
    """The answer of a service of the hub; the subject without `muster.`."""
    answer = json.loads((await hub.request(f"muster.{subject}", json.dumps(question).encode(), timeout=5)).data)
    if "error" in answer:
        raise RuntimeError(f"{subject}: {answer['error']['message']}")
    return answer


async def repeat(step, connecting, *args, seconds=2):
    """Takes a step again and again on one connection. A service that does not answer now does so later."""
    hub = await connecting
    while True:
        try:
            await step(hub, *args)
        except Exception as error:
            print(f"{error!r}", file=sys.stderr, flush=True)
        await asyncio.sleep(seconds)


async def newest(hub, stream, subject):
    """The newest document of a subject, by direct get; none before the first."""
    reply = await hub.request(f"$JS.API.DIRECT.GET.{stream}.{subject}", b"", timeout=5)
    return None if (reply.headers or {}).get("Status") else json.loads(reply.data)
