#!/usr/bin/env python3
"""Measures what an idle device sends and receives: the real agent, ingest and nats-server over TLS, in a network namespace of
their own, where the kernel counts each packet with its IP and TCP headers. The device runs three deployments and all is reported.

    unshare -n python3 tests/benches/idle_device.py PROGRAMS [--faster 10] [--minutes 10] [--heartbeat 30] [--poll 60]
                                                    [--server-ping 120]

Needs root, iptables, openssl and .tools/nats-server. --faster divides every interval: each cost is one of an event, so a run of
ten minutes then stands for a hundred. Prints packets and bytes each way, the frames of NATS in them, and megabytes in 30 days.
With --cut INPUT it then loses every packet on the way, with --cut OUTPUT none gets away, and it prints after how many heartbeats
the agent knows that its link is lost.
"""

import argparse, collections, hashlib, json, os, re, shutil, socket, ssl, subprocess, sys, tempfile, time, urllib.request

PORT, DEVICE = 4222, ("plant7", "press-4")
SERVER = os.path.join(os.path.dirname(__file__), "../../.tools/nats-server")


def entry(name):
    value = {
        "id": name,
        "name": name,
        "applicationId": "com.example." + name,
        "profile": {
            "type": "simulated",
            "components": [{"name": "main", "properties": {}}, {"name": "side", "properties": {}}],
        },
    }
    digest = hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    return value | {"digest": "sha256:" + digest, "targetGeneration": 1}


def document():
    return {
        "apiVersion": "muster/v1",
        "kind": "DesiredState",
        "generation": 1,
        "issuedAt": "2026-11-26T08:00:00Z",
        "source": {"kind": "git", "revision": "c1"},
        "deployments": [entry(name) for name in ("db", "log", "web")],
    }


class Client:
    """Enough of a NATS client to ask one question."""

    def __init__(self, folder):
        raw = socket.create_connection(("127.0.0.1", PORT))
        raw.recv(65536)
        self.socket = ssl.create_default_context(cafile=f"{folder}/ca.pem").wrap_socket(raw, server_hostname="localhost")
        self.socket.sendall(b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\n')

    def ask(self, subject, body):
        body = json.dumps(body) if body else ""
        self.socket.sendall(f"SUB r 9\r\nPUB {subject} r {len(body)}\r\n{body}\r\nUNSUB 9 1\r\n".encode())
        self.socket.settimeout(5)
        answer = b""
        while not re.search(rb"(MSG|HMSG) r 9 .*\r\n(?s:.*)\r\n$", answer):
            answer += self.socket.recv(65536)
        return answer.decode(errors="replace")


def counters():
    """Packets and bytes to the hub and to the device since the start, by the kernel."""
    lines = subprocess.run(["iptables", "-xvnL"], capture_output=True, text=True, check=True).stdout
    found = {
        name: [int(part) for part in line.split()[:2]]
        for line in lines.splitlines()
        for name in ("up", "down")
        if f"/* {name} */" in line
    }
    return [*found["up"], *found["down"]]


def frames(server_log, since):
    """The frames of the device's connection, by kind, from the server's trace."""
    seen = collections.Counter()
    with open(server_log, encoding="utf-8", errors="replace") as file:
        file.seek(since)
        for line in file:
            if found := re.search(r"\[TRC\] .*muster-agent.* - (<<-|->>) \[(\w+) ?([^\s\]]*)", line):
                subject = re.sub(r"_INBOX_\S+", "_INBOX", found[3])
                seen[("up " if found[1] == "<<-" else "down ") + found[2] + " " + subject] += 1
    return seen


def cut(chain, heartbeat):
    """Drops every packet of the server's port; returns the time until the agent's metrics say that the link is down."""
    for way in ("--dport", "--sport"):
        subprocess.run(["iptables", "-I", chain, "-p", "tcp", way, str(PORT), "-j", "DROP"], check=True)
    begun = time.monotonic()
    while time.monotonic() - begun < 20 * heartbeat:
        metrics = urllib.request.urlopen("http://127.0.0.1:9103/metrics").read().decode()
        if re.search(r"^muster_link_up 0", metrics, re.MULTILINE):
            return round((time.monotonic() - begun) / heartbeat, 2)
        time.sleep(heartbeat / 100)
    return "more than 20"


def main():
    args = argparse.ArgumentParser()
    args.add_argument("programs")
    for name, default in (("faster", 10), ("minutes", 10), ("heartbeat", 30), ("poll", 0), ("server-ping", 120)):
        args.add_argument(f"--{name}", type=float, default=default)
    args.add_argument("--keep", action="store_true")
    args.add_argument("--cut", choices=("INPUT", "OUTPUT"))
    args = args.parse_args()
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    if links.count("\n") != 1:
        sys.exit("run it in a network namespace of its own: unshare -n python3 tests/benches/idle_device.py PROGRAMS")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    folder, running = tempfile.mkdtemp(), []
    key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
    for command in [
        f"openssl req -x509 {key} -keyout ca.key -out ca.pem -subj /CN=hub -addext basicConstraints=critical,CA:TRUE -days 2",
        f"openssl req {key} -keyout key.pem -out csr.pem -subj /CN=localhost",
        "printf 'subjectAltName=DNS:localhost,IP:127.0.0.1' > san",
        "openssl x509 -req -in csr.pem -CA ca.pem -CAkey ca.key -out cert.pem -days 2 -extfile san",
    ]:
        subprocess.run(command, shell=True, check=True, cwd=folder, stderr=subprocess.DEVNULL)
    with open(f"{folder}/nats.conf", "w", encoding="utf-8") as file:
        file.write(
            f"port: {PORT}\nhost: 127.0.0.1\nmax_payload: 1MB\ntrace: true\n"
            f'ping_interval: "{args.server_ping / args.faster:.3f}s"\nlog_file: "{folder}/server.log"\n'
            f'jetstream {{ store_dir: "{folder}/js", max_file_store: 20TB, max_memory_store: 1GB }}\n'
            f'tls {{ cert_file: "{folder}/cert.pem", key_file: "{folder}/key.pem" }}\n'
        )
    try:
        running.append(subprocess.Popen([SERVER, "-c", f"{folder}/nats.conf"]))
        time.sleep(1)
        hub = ["--nats-url", f"tls://localhost:{PORT}", "--tls-ca", f"{folder}/ca.pem", "--http-addr"]
        log = open(f"{folder}/programs.log", "w", encoding="utf-8")

        def run(name, *more):
            command = [f"{args.programs}/{name}", *more]
            running.append(subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | {"NO_COLOR": "1"}))

        heartbeat = args.heartbeat / args.faster
        run(
            "muster-ingest",
            *hub,
            "127.0.0.1:9101",
            "--lease",
            f"{3 * heartbeat:.3f}s",
            "--data-dir",
            f"{folder}/ingest",
        )
        client = Client(folder)
        for _ in range(100):
            if '"LEDGER"' in client.ask("$JS.API.STREAM.NAMES", None):
                break
            time.sleep(0.2)
        print(client.ask(f"muster.desired.{DEVICE[0]}.{DEVICE[1]}", document()).split("\r\n")[1])
        # Rules come before the agent's first packet and count its connection alone: ingest has its own port.
        marks = ["-m", "owner", "--gid-owner", "5555"]
        subprocess.run(
            ["iptables", "-A", "OUTPUT", "-p", "tcp", "--dport", str(PORT), *marks, "-m", "comment", "--comment", "up"],
            check=True,
        )
        poll = ["--poll-interval", f"{args.poll / args.faster:.3f}s"] if args.poll else []
        command = [
            f"{args.programs}/muster-agent",
            "--site",
            DEVICE[0],
            "--device",
            DEVICE[1],
            "--runtime",
            "simulated",
            "--data-dir",
            f"{folder}/agent",
            *hub,
            "127.0.0.1:9103",
            "--heartbeat",
            f"{heartbeat:.3f}s",
            *poll,
        ]
        running.append(subprocess.Popen(command, stdout=log, stderr=log, group=5555))
        time.sleep(3)
        ports = subprocess.run(["ss", "-tnpH", "dport", "=", f":{PORT}"], capture_output=True, text=True).stdout
        port = re.search(rf":(\d+)\s+\S+:{PORT}\s.*muster-agent", ports)[1]
        subprocess.run(
            [
                "iptables",
                "-A",
                "OUTPUT",
                "-p",
                "tcp",
                "--sport",
                str(PORT),
                "--dport",
                port,
                "-m",
                "comment",
                "--comment",
                "down",
            ],
            check=True,
        )
        # Reports and receipts of the start are not those of an idle device.
        time.sleep(max(12, 3 * heartbeat))
        before, since = counters(), os.path.getsize(f"{folder}/server.log")
        begun = time.monotonic()
        time.sleep(args.minutes * 60)
        after, spent = counters(), time.monotonic() - begun
        seen = frames(f"{folder}/server.log", since)
        up_packets, up, down_packets, down = (b - a for a, b in zip(before, after))
        month = 30 * 86400 / (spent * args.faster)
        minutes = spent * args.faster / 60
        print(f"{spent:.0f} s stand for {minutes:.0f} min: up {up_packets} packets of {up} bytes, down {down_packets} of {down}")
        for frame, count in seen.most_common(20):
            print(f"  {count:6} {frame}")
        print(
            f"MB in 30 days: {up * month / 1e6:.1f} up, {down * month / 1e6:.1f} down, {(up + down) * month / 1e6:.1f} together",
            flush=True,
        )
        if args.cut:
            print(f"a link without any packet is known to be lost after {cut(args.cut, heartbeat)} heartbeats", flush=True)
    finally:
        for process in reversed(running):
            process.kill()
            process.wait()
        if args.keep:
            print(folder)
        else:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
