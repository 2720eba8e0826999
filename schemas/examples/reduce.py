#!/usr/bin/env python3
"""The rules of the views in Python: facts of LEDGER in, the views of the bucket out, digest for digest.

Written to be read, not to be fast: every view is counted afresh from all devices. It passes the reducer vectors, and so
does anything else that wants to call its views the same:

    python3 schemas/examples/reduce.py schemas/vectors/*.json
"""
import hashlib
import json
import sys
from collections import Counter

STANDINGS = ["waiting", "outdated", "pending", "installing", "installed", "removing", "removed", "failed"]
COMPONENTS_MAX, ERRORS_MAX, CODE_BYTES_MAX, MESSAGE_BYTES_MAX = 256, 40, 128, 512
PIECES_MAX = 2048  # into which the held numbers of an epoch fall, before quarantine adds no more
EPOCHS_AHEAD_MAX = 4  # of which quarantined numbers are kept
MISSING_COUNTED_MAX = 2**32 - 1  # of one device, in a sum
WORDS = ("deploymentName", "message")  # for people
PARTITIONS = 16  # of devices, each with an owner at the hub
UNSIGNED = ("asOf", "changedAt", "deploymentName", "digest", "lastHeardAt", "message")  # no digest covers them


class Device:
    def __init__(self):
        self.desired, self.targets = (0, False), {}  # (generation, retired), deployment: targetGeneration
        self.labels = {}
        self.epoch, self.head, self.held, self.ahead = 0, 0, set(), {}
        self.doubted, self.open, self.beat_at = set(), {}, ""  # in quarantine: numbers, and messages by when they came
        self.untold = set()  # held by the word of an account alone
        self.liveness, self.storing, self.reported = None, True, False
        self.unheard = False  # the hub does not listen to its partition
        self.reports, self.deadlines = {}, {}
        self.heard_at, self.since = "", {}  # the newest proof; since when each deployment is a target, or none any more

    def enter(self, epoch):
        """The highest epoch holds; a newer one begins with nothing but what quarantine has of it."""
        if epoch > self.epoch:
            quarantined, dropped = self.ahead.pop(epoch, (set(), set()))
            self.epoch, self.head, self.held, self.untold = epoch, 0, set(), set()
            add_bounded(self.held, dropped)
            self.doubted = add_bounded(self.held, quarantined)
            self.ahead = {other: held for other, held in self.ahead.items() if other > epoch}
        return epoch == self.epoch

    def hear(self, at):
        self.heard_at = max(self.heard_at, at, key=moment)

    def report(self, fact):
        self.reported = True
        self.hear(fact["receivedAt"])
        if self.enter(fact["epoch"]):
            good = {fact["seq"]}.union(*(range(first, last + 1) for first, last in fact.get("coalesced", [])))
            self.held |= good
            self.doubted -= good
            self.untold -= good
            self.head = max([self.head, fact["head"], fact["seq"], *(last for _, last in fact.get("coalesced", []))])

    def status(self, fact, deployment):
        self.report(fact)
        held, order = self.reports.get(deployment), (fact["epoch"], fact["seq"])
        through = fact["head"] if fact["current"] else 0
        if held is None or order > (held["epoch"], held["seq"]):
            self.reports[deployment] = {**fact, "currentThrough": through}
        elif order == (held["epoch"], held["seq"]):
            held["currentThrough"] = max(held["currentThrough"], through)

    def take_desired(self, fact, stored_at):
        if fact["generation"] > self.desired[0]:
            self.desired = (fact["generation"], fact["retired"])
            targets = {entry["id"]: entry["targetGeneration"] for entry in fact["deployments"]}
            # To the second. The publisher's clock may be ahead, and a target that was withdrawn before any report left no trace.
            said_at = min(fact["issuedAt"], stored_at, key=moment)[:19] + "Z"
            for deployment in {*self.targets, *targets}:
                if self.targets.get(deployment) != targets.get(deployment):
                    self.since[deployment] = said_at if deployment in {*targets, *self.reports} else ""
            self.targets = targets
            self.labels = fact.get("labels", {})

    def changed_at(self, deployment):
        return max(self.since.get(deployment, ""), self.reports.get(deployment, {}).get("receivedAt", ""), key=moment)

    def take_liveness(self, fact):
        self.hear(fact["lastHeardAt"])
        if self.enter(fact["epoch"]):
            self.head = max(self.head, fact["head"])
            if account := fact.get("account"):
                missing = {n for first, last in account.get("missing", []) for n in range(first, last + 1)}
                told = set(range(1, fact["head"] + 1)) - missing
                self.untold |= told - self.held
                self.held |= told
        self.beat_at = max(self.beat_at, moment(fact.get("beatAt", "")))
        if self.liveness is None or fact["epoch"] >= self.liveness[0]:
            self.liveness, self.storing = (fact["epoch"], fact["state"]), fact.get("storing", True)

    def take_deadline(self, fact, deployment):
        new = (fact["generation"], moment(fact["since"]))
        self.deadlines[deployment] = max(new, self.deadlines.get(deployment, new))

    def quarantine(self, fact):
        self.reported = True
        self.hear(fact["receivedAt"])
        number, (epoch, numbers) = number_of(fact), numbers_of(fact)
        self.open[moment(fact["receivedAt"]), number] = number
        if epoch == self.epoch:
            new = add_bounded(self.held, numbers) | (numbers & self.untold)
            self.untold -= new
            self.doubted |= new
        elif numbers and epoch > self.epoch:
            self.wait_for(epoch, numbers, 0)

    def verdict(self, fact):
        """A person has looked. What was let in is a fact of its own; what was dropped stays held, and is no news. Of a message
        that expired nobody has decided anything."""
        if fact["verdict"] == "expired":
            return
        epoch, numbers = numbers_of(fact)
        self.open.pop((moment(fact.get("receivedAt", "")), number_of(fact)), None)
        if fact["verdict"] == "dropped" and epoch == self.epoch:
            add_bounded(self.held, numbers)
            self.untold -= numbers
            self.doubted -= numbers
        elif fact["verdict"] == "dropped" and numbers and epoch > self.epoch:
            self.wait_for(epoch, numbers, 1)

    def wait_for(self, epoch, numbers, dropped):
        self.ahead.setdefault(epoch, (set(), set()))
        add_bounded(self.ahead[epoch][dropped], numbers)
        if len(self.ahead) > EPOCHS_AHEAD_MAX:
            del self.ahead[max(self.ahead)]

    def unread(self):
        """Is there a message that may be anything: after the last heartbeat, and no number the device has spoken of?"""
        def beyond(number):
            if number is None or number[0] > self.epoch:
                return number is None or number[1] not in self.ahead.get(number[0], ((), ()))[1]
            is_dropped = number[1] in self.held and number[1] not in self.doubted
            return number[0] == self.epoch and number[1] > self.head and not is_dropped
        return any(came >= self.beat_at and beyond(number) for (came, _), number in self.open.items())

    def doubts(self, report):
        """May a message in quarantine be a later report than this one?"""
        of_epoch = report and report["epoch"] == self.epoch
        settled = max(report["seq"], report["currentThrough"]) if of_epoch else 0
        return self.unread() or any(settled < number <= self.head for number in self.doubted)

    def freshness(self):
        if self.liveness:
            return "stale" if self.unheard else self.liveness[1]
        return "stale" if self.reported else "never"

    def missing(self):
        return self.head - sum(1 for number in self.held if number <= self.head)

    def rows(self):
        """What each deployment adds to the counts: none for a leaving one, else the target's standing."""
        for deployment in {*self.targets, *self.reports}:
            report, target = self.reports.get(deployment), self.targets.get(deployment)
            if self.desired[1] or (target is None and (report["status"]["state"] == "removed" or self.forgot(report))):
                continue
            if target is None:
                yield deployment, None, report
                continue
            standing = "waiting" if report is None else report["status"]["state"]
            retries = report.get("retries", []) if report else []
            if report and report["generation"] < target:
                standing, retries = "outdated", []
            elif any(retry.get("crashLoop") for retry in retries):
                standing = "failed"
            tried = max(((retry.get("crashLoop", False), retry["attempt"]) for retry in retries), default=(False, 0))
            row = {"standing": standing, "known": self.knows(report), "attempts": tried[1],
                   "overdue": self.overdue(deployment, target, report, standing, retries)}
            evidence = (report or {}).get("origin", "push"), (report or {}).get("fidelity", "event")
            yield deployment, {**row, "freshness": self.freshness(), "missing": self.missing(), "evidence": evidence}, report

    def overdue(self, deployment, target, report, standing, retries):
        """Past its deadline, unless it is at an end; what is tried again is at none. Earlier attempts do not count."""
        generation, since = self.deadlines.get(deployment, (0, ""))
        first = report.get("firstAttemptAt", "") if report and standing != "outdated" else ""
        at_end = standing in ("installed", "failed") and not retries
        return generation == target and not at_end and since >= moment(first)

    def forgot(self, report):
        return report["epoch"] < self.epoch and self.missing() == 0 and not self.doubts(report)

    def complete(self):
        known = all(row["known"] for _, row, _ in self.rows() if row)
        return known and self.storing and self.missing() == 0 and not self.unread()

    def knows(self, report):
        if not self.storing or self.doubts(report):
            return False
        if self.epoch == 0:
            return True
        if report and report["epoch"] < self.epoch:
            return False
        if report and report["currentThrough"] >= self.head:
            return True
        return self.missing() == 0

    def record(self):
        """All of it as JSON has it, from which `of` makes the same device; sets of numbers as their ranges."""
        return {**vars(self), "held": ranges(self.held), "doubted": ranges(self.doubted), "untold": ranges(self.untold),
                "ahead": [(epoch, ranges(held), ranges(dropped)) for epoch, (held, dropped) in self.ahead.items()],
                "open": list(self.open)}

    @classmethod
    def of(cls, record):
        device = cls()
        vars(device).update(record)
        device.held, device.doubted, device.untold = (spread(record[name]) for name in ("held", "doubted", "untold"))
        device.ahead = {epoch: (spread(held), spread(dropped)) for epoch, held, dropped in record["ahead"]}
        device.deadlines = {deployment: tuple(passed) for deployment, passed in record["deadlines"].items()}
        messages = [(came, tuple(number) if number else None) for came, number in record["open"]]
        device.open = {message: message[1] for message in messages}
        return device


class Fleet:
    def __init__(self):
        self.devices, self.as_of = {}, None
        self.unheard = {}  # partition: since when the hub does not listen to it

    def apply(self, ledger_seq, stored_at, subject, fact):
        _, room, *name = subject.split(".")
        if room == "hub":  # a pulse: LEDGER keeps it for a short time only, so it is no place to have read to
            return
        self.as_of = {"ledgerSeq": ledger_seq, "at": stored_at}
        if room == "hearing":
            return self.hear(int(name[0]), fact)
        if room == "owner" or name == ["_", "_"]:
            return
        site, device, *deployment = name
        if (site, device) not in self.devices:
            self.devices[site, device] = Device()
            self.devices[site, device].unheard = partition_of(site, device) in self.unheard
        known = self.devices[site, device]
        take = {"desired": lambda fact: known.take_desired(fact, stored_at), "status": known.status, "device": known.report,
                "liveness": known.take_liveness, "deadline": known.take_deadline, "quarantine": known.quarantine,
                "verdict": known.verdict, "incident": lambda _: None}
        take[room](fact, *deployment)

    def hear(self, partition, fact):
        """The newest word on a partition holds. While the hub does not listen, none of its devices is fresh."""
        if fact["state"] == "stopped":
            self.unheard[partition] = fact["since"]
        elif fact["state"] == "resumed":
            self.unheard.pop(partition, None)
        for key, device in self.devices.items():
            device.unheard = partition_of(*key) in self.unheard

    def hub(self, devices):
        """What the hub does not listen to, of these devices: part of a view where there is any."""
        stopped = sorted({partition_of(*key) for key in devices} & set(self.unheard))
        unheard = [{"partition": partition, "since": self.unheard[partition]} for partition in stopped]
        return {"hub": {"unheard": unheard}} if unheard else {}

    def record(self):
        """What a later run needs to go on: all devices, up to where they were read, and what the hub does not listen to."""
        return {"asOf": self.as_of, "unheard": list(self.unheard.items()), "devices": [(*key, device.record()) for key, device in self.devices.items()]}

    @classmethod
    def of(cls, record):
        fleet = cls()
        fleet.as_of, fleet.unheard = record["asOf"], dict(record["unheard"])
        fleet.devices = {(site, name): Device.of(device) for site, name, device in record["devices"]}
        return fleet

    def views(self):
        """Every view by its key. Sites and groups without devices, and deployments that are nowhere, have none."""
        views = {"fleet": self.tally({"kind": "FleetView"}, self.devices)}
        for site in {site for site, _ in self.devices}:
            devices = {key: device for key, device in self.devices.items() if key[0] == site}
            if any(not device.desired[1] for device in devices.values()):
                views[f"site.{site}"] = self.tally({"kind": "SiteView", "site": site}, devices)
        for label, value in {group for device in self.devices.values() for group in device.labels.items()}:
            devices = {key: device for key, device in self.devices.items() if device.labels.get(label) == value}
            if any(not device.desired[1] for device in devices.values()):
                head = {"kind": "GroupView", "label": label, "value": value}
                views[f"group.{label}.{value}"] = self.tally(head, devices)
        for deployment, rows in by_deployment(self.devices).items():
            views[f"deployment.{deployment}"] = self.deployment(deployment, rows)
        return views

    def tally(self, head, devices):
        present = [device for device in devices.values() if not device.desired[1]]
        rows = by_deployment(devices)
        everything = count([row for rows in rows.values() for _, row, _ in rows])
        del everything["converged"], everything["verdict"], everything["complete"]
        missing = [device.missing() for device in present]
        changed = [device.changed_at(of) for device in devices.values() for of in {*device.since, *device.reports}]
        return signed({
            **head, "asOf": self.as_of, **everything, **times(changed, (device.heard_at for device in present)),
            "devices": Counter(device.freshness() for device in present),
            "deployments": Counter(count([row for _, row, _ in rows])["verdict"] for rows in rows.values()),
            "complete": {"devices": sum(device.complete() for device in present), "of": len(present),
                         "missingReports": total(missing)},
            **self.hub(key for key, device in devices.items() if not device.desired[1]),
        })

    def deployment(self, deployment, rows):
        components, culprits = {}, {}
        for key, row, report in sorted(rows, key=lambda entry: entry[0]):
            if row and row["standing"] not in ("waiting", "outdated"):
                for component in report["components"]:
                    components.setdefault(component["name"], Counter())[component["state"]] += 1
            if row and (row["standing"] == "failed" or row["attempts"]):
                for code, component, message, retry in reversed(errors(report)):
                    culprits.setdefault(code, {})[key] = (component, message, retry)
        shown = sorted(culprits.items(), key=lambda entry: (-len(entry[1]), entry[0].encode()))[:ERRORS_MAX]
        view = {"kind": "DeploymentView", "deployment": deployment, "asOf": self.as_of,
                **count([row for _, row, _ in rows]),
                **times((device.changed_at(deployment) for device in self.devices.values()),
                        (self.devices[key].heard_at for key, _, _ in rows)),
                "components": dict(sorted(components.items())[:COMPONENTS_MAX]),
                "errors": [example(code, devices) for code, devices in shown],
                **self.hub(key for key, _, _ in rows)}
        left_out = {"components": len(components) - COMPONENTS_MAX, "errors": len(culprits) - ERRORS_MAX}
        if omitted := {name: number for name, number in left_out.items() if number > 0}:
            view["omitted"] = omitted
        return signed(view)


def partition_of(site, device):
    """As the bus computes it: FNV-1a (32 bits) over both names."""
    code = 2166136261
    for byte in (site + device).encode():
        code = (code ^ byte) * 16777619 % 2**32
    return code % PARTITIONS


def number_of(fact):
    return (fact["epoch"], fact["seq"]) if "epoch" in fact and "seq" in fact else None


def numbers_of(fact):
    """The numbers that a message in quarantine, or a person's word on it, is about: its own and those it stands for."""
    numbers = {fact["seq"]} if fact.get("seq") else set()
    for first, last in fact.get("otherSeqs", []):
        numbers.update(range(first, last + 1))
    return (fact["epoch"], numbers) if "epoch" in fact else (0, set())


def ranges(numbers):
    """[(first, last), …] of a set of numbers."""
    firsts = sorted(number for number in numbers if number - 1 not in numbers)
    lasts = sorted(number for number in numbers if number + 1 not in numbers)
    return list(zip(firsts, lasts))


def add_bounded(held, numbers):
    """Adds range by range while there are few enough pieces, and says what is new; the rest stays missing."""
    added = set()
    for first, last in ranges(numbers):
        if sum(number - 1 not in held for number in held) < PIECES_MAX:
            added.update(set(range(first, last + 1)) - held)
            held |= added
    return added


def spread(ranges):
    return {number for first, last in ranges for number in range(first, last + 1)}


def moment(text):
    """A time as our writers write it, so that texts compare as times do."""
    return text and text[:19] + text[19:-1].lstrip(".").ljust(9, "0")


def times(changed, heard):
    """When the newest of some standings changed, also of those that have left, and the newest proof that a device was heard."""
    newest = {"changedAt": max(changed, key=moment, default=""), "lastHeardAt": max(heard, key=moment, default="")}
    return {name: at for name, at in newest.items() if at}


def by_deployment(devices):
    rows = {}
    for key, device in devices.items():
        for deployment, row, report in device.rows():
            rows.setdefault(deployment, []).append((key, row, report))
    return rows


def count(rows):
    """What the counts of any rows have in common, and the verdict on them."""
    targets = [row for row in rows if row]
    standings = Counter(row["standing"] for row in targets)
    splits = {standing: Counter(row["freshness"] for row in targets if row["standing"] == standing)
              for standing in STANDINGS if standings[standing]}
    known = sum(row["known"] for row in targets)
    sure = sum(row["known"] and (row["standing"], row["freshness"]) == ("installed", "fresh") for row in targets)
    lost = sum(row["known"] and row["freshness"] == "fresh" and row["standing"] == "failed" for row in targets)
    overdue = sum(row["overdue"] for row in targets)
    stale = standings["installed"] > splits.get("installed", Counter())["fresh"]
    # Only who is heard gets on; who is silent while at work is waited for.
    at_work = sum(row["freshness"] == "fresh" for row in targets
                  if row["standing"] in ("pending", "installing", "removing", "removed"))
    verdicts = [
        ("removing", not targets), ("failing", standings["failed"]), ("overdue", overdue),
        ("incomplete", known < len(targets)),
        ("progressing", at_work),
        ("waiting", standings["installed"] < len(targets)), ("convergedStale", stale), ("converged", True),
    ]
    counted = {"targets": len(targets), "leaving": len(rows) - len(targets), "counts": splits,
               "converged": {"lo": sure, "hi": len(targets) - lost},
               "complete": {"devices": known, "of": len(targets),
                            "missingReports": total(row["missing"] for row in targets)},
               "verdict": next(verdict for verdict, holds in verdicts if holds)}
    attempts = [row["attempts"] for row in targets if row["attempts"]]
    evidence = {}  # by origin and fidelity, but of devices that send every change themselves
    for origin, fidelity in (row["evidence"] for row in targets):
        if (origin, fidelity) != ("push", "event"):
            evidence.setdefault(origin, Counter())[fidelity] += 1
    marks = {"overdue": overdue, "retried": attempts and {"targets": len(attempts), "attempts": sum(attempts)},
             "evidence": evidence}
    return {**counted, **{name: mark for name, mark in marks.items() if mark}}


def total(missing):
    return sum(min(number, MISSING_COUNTED_MAX) for number in missing)


def errors(report):
    """(code, component, message, retry) of each error: the deployment's own first, then by component; of what is tried
    again the last one, where the report has no other."""
    names = {component["name"] for component in report["components"]}
    own = report["status"].get("error")
    found = [(own, own["source"] if own["source"] in names else "")] if own else []
    found += [(component["error"], component["name"]) for component in report["components"] if "error" in component]
    tried = {retry.get("component", ""): retry for retry in report.get("retries", [])}
    told = {component["name"] for component in report["components"] if "error" in component} | ({""} if own else set())
    found += [(retry["lastError"], component) for component, retry in tried.items() if component not in told]
    found = found or [({"code": "", "message": report["status"].get("reason", "")}, "")]
    found.sort(key=lambda entry: entry[1])
    def code(error):
        return whole_chars(error["code"], CODE_BYTES_MAX) or "unspecified"
    return [(code(error), component, error["message"], tried.get(component)) for error, component in found]


def example(code, devices):
    site, device = first = min(devices)
    component, message, retry = devices[first]
    if len(message.encode()) > MESSAGE_BYTES_MAX:
        declared = f" … (cut: {len(message.encode())} bytes in all)"
        message = whole_chars(message, MESSAGE_BYTES_MAX - len(declared.encode())) + declared
    place = {"site": site, "device": device, **({"component": component} if component else {})}
    if retry:
        place["retry"] = {name: retry[name] for name in ("attempt", "since", "crashLoop") if retry.get(name)}
    return {"code": code, "count": len(devices), "example": {**place, "message": message}}


def whole_chars(text, bytes_max):
    return text.encode()[:bytes_max].decode(errors="ignore")


def signed(view):
    view = {"apiVersion": "muster/v1", **view}
    return {**view, "digest": content_digest(view)}


def content_digest(view):
    """The digest that a view must carry: of everything but the words and times that follow from when facts arrived."""
    return digest({name: value for name, value in view.items() if name not in UNSIGNED})


def digest(value):
    """SHA-256 of the canonical JSON (RFC 8785)."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()


def check(path):
    """What is wrong with our views of a vector's ledger, if anything."""
    with open(path, encoding="utf-8") as file:
        vector = json.load(file)
    fleet = Fleet()
    for entry in vector["ledger"]:
        fleet.apply(entry["seq"], entry["storedAt"], entry["subject"], entry["fact"])
    # Nobody has to find the same words.
    ours = fleet.views()
    theirs = {key: {name: of for name, of in view.items() if name not in WORDS} for key, view in vector["views"].items()}
    return [f"{path}: {key}\n  ours:   {json.dumps(ours.get(key))}\n  theirs: {json.dumps(theirs.get(key))}"
            for key in sorted({*ours, *theirs}) if ours.get(key) != theirs.get(key)]


if __name__ == "__main__":
    wrong = [line for path in sys.argv[1:] for line in check(path)]
    print("\n".join(wrong) or f"{len(sys.argv) - 1} vectors hold")
    sys.exit(bool(wrong))
