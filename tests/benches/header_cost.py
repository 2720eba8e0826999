#!/usr/bin/env python3
"""Measures nats-server's CPU time for a message that it stores and delivers: with the document alone, with the headers of now,
and with the headers up to 0.1. CPU time is comparable on a busy machine as well.

    python3 tests/benches/header_cost.py [.tools/nats-server] [MESSAGES]
"""
import json, os, shutil, socket, statistics, subprocess, sys, tempfile, threading, time

PORT, ROUNDS, KINDS = 24988, 3, ("documents alone", "now", "0.1")
STATUS = ('"deployment":"app-1","generation":1,"digest":"sha256:' + "0d64ffb3" * 8 + '","status":{"state":"installed"},'
          '"components":[{"name":"web","state":"installed"},{"name":"worker","state":"installed"}],"current":true')
DOCUMENT = ('{"apiVersion":"muster/v1","kind":"StatusFact","epoch":1795677000,"seq":123,"head":123,"observedAt":'
            '"2026-11-26T07:00:00.123456Z",' + STATUS + ',"receivedAt":"2026-11-26T07:00:01.123456Z"}')
GUARD = {"UPLINK": "Nats-Expected-Stream: UPLINK\r\n",
         "LEDGER": "Nats-Expected-Last-Subject-Sequence: 1\r\nNats-Expected-Last-Subject-Sequence-Subject: muster.owner.3.0\r\n"}


def message(stream, kind, at):
    device = f"site-{at % 20}.device-{at % 1000}"
    subject = {"UPLINK": f"muster.report.{device}", "LEDGER": f"muster.status.{device}.app"}[stream]
    if kind == "documents alone":
        return f"PUB {subject} {len(DOCUMENT)}\r\n{DOCUMENT}\r\n"
    headers = "NATS/1.0\r\n"
    if kind == "0.1":
        trace = f"traceparent: 00-{at * 7919 + 1:032x}-{at + 1:016x}-00\r\n"
        of = {"UPLINK": (f"{at:036x}", "muster/" + device.replace(".", "/"), "StatusReport", f"Nats-Msg-Id: {at:036x}\r\n"),
              "LEDGER": (f"{device}.1795677000.{at}", "muster-ingest", "StatusFact", "")}[stream]
        headers += f"ce-specversion: 1.0\r\nce-id: {of[0]}\r\nce-source: {of[1]}\r\nce-type: muster.v1.{of[2]}\r\n{trace}{of[3]}"
    headers += GUARD[stream] + "\r\n"
    return f"HPUB {subject} {len(headers)} {len(headers) + len(DOCUMENT)}\r\n{headers}{DOCUMENT}\r\n"


def connect():
    for _ in range(100):
        try:
            connection = socket.create_connection(("127.0.0.1", PORT))
            break
        except OSError:
            time.sleep(0.1)
    connection.recv(65536)
    connection.sendall(b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\n')
    return connection


def ask(connection, subject, body):
    body = json.dumps(body)
    connection.sendall(f"SUB r 9\r\nPUB {subject} r {len(body)}\r\n{body}\r\nUNSUB 9 1\r\n".encode())
    answer = b""
    while not answer.endswith(b"}\r\n"):
        answer += connection.recv(65536)


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(server, stream, kind, count):
    """The server's CPU time per message, in microseconds."""
    folder = tempfile.mkdtemp()
    process = subprocess.Popen([server, "-js", "-p", str(PORT), "-sd", folder], stderr=subprocess.DEVNULL)
    try:
        sender, reader, got = connect(), connect(), [0]
        subjects = ["muster.report.>", "muster.status.>", "muster.owner.>"]
        ask(sender, f"$JS.API.STREAM.CREATE.{stream}", {"name": stream, "subjects": subjects, "duplicate_window": 10**8})
        ask(sender, "muster.owner.3.0", {})
        reader.sendall(b"SUB d 1\r\n")
        consumer = {"deliver_subject": "d", "ack_policy": "none", "deliver_policy": "all"}
        ask(sender, f"$JS.API.CONSUMER.CREATE.{stream}", {"stream_name": stream, "config": consumer})

        def drain():
            while part := reader.recv(1 << 20):
                got[0] += len(part)

        threading.Thread(target=drain, daemon=True).start()
        parts = ["".join(message(stream, kind, at) for at in range(first, first + 1000)) for first in range(0, count, 1000)]
        before, seen = cpu_seconds(process.pid), -1
        for part in parts:
            sender.sendall(part.encode())
        while got[0] != seen or got[0] < count * len(DOCUMENT):
            seen = got[0]
            time.sleep(1)
        return (cpu_seconds(process.pid) - before) / count * 1e6
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    server, count = (sys.argv[1:] + [".tools/nats-server", "40000"][len(sys.argv) - 1:])[:2]
    for stream in GUARD:
        rounds = [[measure(server, stream, kind, int(count)) for kind in KINDS] for _ in range(ROUNDS)]
        for kind, figures in zip(KINDS, zip(*rounds)):
            spread = f"{min(figures):.1f} to {max(figures):.1f}"
            print(f"{stream}, {kind}: {statistics.median(figures):.1f} µs of the server ({spread})", flush=True)
