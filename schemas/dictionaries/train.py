#!/usr/bin/env python3
"""Trains a dictionary of reports on invented ones, written as an agent writes them. A dictionary that devices use is never
trained anew: another one gets another number.

    python3 train.py OUT.zdict NUMBER       needs the program zstd
"""
import json, os, random, subprocess, sys, tempfile

rng = random.Random(1)
WORDS = ("web db log broker dashboard main worker proxy gateway cache vision press oven line sensor collector exporter "
         "historian modbus opcua camera inference api ui agent sync edge store queue").split()
CODES = [("Exited", "ended with exit code {n}; last lines of stderr: {w}: cannot open file"),
         ("Exited", "service '{w}' ended with exit code {n}"),
         ("ReadinessTimeout", "not ready after {n} s"), ("StartFailed", "cannot start {w}: no such file"),
         ("PackageFailed", "cannot fetch the package: timed out after {n} s"),
         ("StopFailed", "still running after {n} s"), ("DeviceNotEligible", "needs {n} GiB of memory"),
         ("EngineLost", "the engine does not answer")]


def hexes(count):
    return "".join(rng.choice("0123456789abcdef") for _ in range(count))


def when(digits=None):
    digits = rng.choice([0, 3, 6, 9, 9, 9]) if digits is None else digits
    fraction = "." + "".join(rng.choice("0123456789") for _ in range(digits)) if digits else ""
    return (f"20{rng.randint(26, 29)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}T{rng.randint(0, 23):02}:"
            f"{rng.randint(0, 59):02}:{rng.randint(0, 59):02}{fraction}Z")


def error(name):
    code, text = rng.choice(CODES)
    return {"code": code, "source": name, "message": text.format(n=rng.randint(1, 300), w=rng.choice(WORDS))}


def name():
    return rng.choice(WORDS) + rng.choice(["", "", f"-{rng.randint(1, 99)}"])


def deployment():
    return rng.choice([name(), f"{hexes(8)}-{hexes(4)}-4{hexes(3)}-a{hexes(3)}-{hexes(12)}"])


STATES = ["pending", "installing", "installed", "installed", "removing", "removed", "failed"]


def status_fields():
    state = rng.choice(STATES)
    parts = [{"name": n, "state": state if at == 0 else rng.choice([state, "installed"])}
             for at, n in enumerate(dict.fromkeys(name() for _ in range(rng.choice([1, 1, 1, 2, 2, 3]))))]
    status = {"state": state}
    if state == "failed":
        parts[0]["error"] = error(parts[0]["name"])
        if rng.random() < .5:
            status["error"] = parts[0]["error"]
    if state == "pending" and rng.random() < .3:
        status["reason"] = f"waits for {name()}"
    fields = {"observedAt": when(), "deployment": deployment(), "generation": rng.choice([1, 2, 3, rng.randint(1, 400)]),
              "digest": "sha256:" + hexes(64), "status": status, "components": parts}
    if state in ("failed", "installing") and rng.random() < .3:
        e = error("x")
        retry = {"component": parts[0]["name"], "attempt": rng.randint(2, 40), "since": when(),
                 "lastError": {"code": e["code"], "message": e["message"], "at": when()}}
        if rng.random() < .3:
            retry["crashLoop"] = True
        fields["retries"] = [retry]
    return fields


def numbers():
    seq = rng.choice([rng.randint(1, 99), rng.randint(1, 5000), rng.randint(1, 400000)])
    return rng.randint(1_780_000_000, 1_860_000_000), seq, seq + rng.choice([0, 0, 0, 1, rng.randint(0, 200)])


def status_report():
    epoch, seq, head = numbers()
    it = {"apiVersion": "muster/v1", "kind": "StatusReport", "epoch": epoch, "seq": seq, "head": head, **status_fields(),
          "current": rng.random() < .8}
    if rng.random() < .05 and seq > 9:
        it["coalesced"] = [[seq - rng.randint(3, 5), seq - 2]]
    return it


def capabilities():
    epoch, _, head = numbers()
    return {"apiVersion": "muster/v1", "kind": "CapabilitiesReport", "epoch": epoch, "seq": 1, "head": rng.choice([1, head]),
            "observedAt": when(), "properties": {
            "cpus": [{"architecture": rng.choice(["amd64", "arm64"]), "cores": rng.choice([1, 2, 4, 8])}],
            "memory": f"{rng.choice([1, 2, 4, 8])}Gi", "storage": f"{rng.choice([8, 16, 64, 256])}Gi", "peripherals": [],
            "interfaces": [{"type": "ethernet"}],
            "supportedDeploymentTypes": rng.choice([["process"], ["process", "compose"], ["simulated"]])},
            "labels": {rng.choice(["line", "vendor", "area"]): name()}, "agentVersion": f"0.{rng.randint(2, 9)}.0"}


def batch():
    epoch, seq, head = numbers()
    count = rng.choice([2, 2, 3, 4, 8])
    reports = [{"kind": "StatusReport", **status_fields(), "current": rng.random() < .5} for _ in range(count)]
    if rng.random() < .7:
        first = reports[0]
        for it in reports:
            it.update({key: first[key] for key in ("deployment", "generation", "digest")})
    common = {k: v for k, v in reports[0].items() if all(k in o and o[k] == v for o in reports)}
    return {"apiVersion": "muster/v1", "kind": "ReportBatch", "epoch": epoch, "head": max(head, seq + count),
            "seqs": [[seq, seq + count - 1]], "common": common,
            "reports": [{k: v for k, v in o.items() if k not in common} for o in reports]}


def sample():
    return rng.choices([status_report, capabilities, batch], [80, 6, 14])[0]()


def main(out, number):
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, f"{at:05}.json") for at in range(6000)]
        for path in paths:
            with open(path, "w", encoding="utf-8") as file:
                file.write(json.dumps(sample(), separators=(",", ":")))
        with open(os.path.join(folder, "list"), "w", encoding="utf-8") as file:
            file.write("\n".join(paths))
        train = ["zstd", "-q", "--train", "--filelist", file.name, "--maxdict=4096", f"--dictID={number}", "-19", "-f"]
        subprocess.run([*train, "-o", out], check=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
