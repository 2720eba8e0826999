"""Breaks the rules of reduce.py one by one, and demands that a reducer vector finds each: what no vector finds, a fold in
another language may leave out and still call its views the same. Prints what was not found, and ends with 1.

    python3 tests/tests/python_reduce/sabotage.py schemas/examples/reduce.py schemas/vectors/*.json
"""
import sys
import types

# What is true of the broken rules, the text of reduce.py that is replaced (there once), and by what.
SABOTAGES = [
    # Standings and freshness.
    ("silence is an old generation's standing",
     'standing = "waiting" if report is None else', 'standing = "outdated" if report is None else'),
    ("an old success counts for a new generation", 'if report and report["generation"] < target:', 'if False:'),
    ("a report above the wanted generation is outdated",
     'report["generation"] < target', 'report["generation"] != target'),
    ("the last report holds, whatever its number",
     'if held is None or order > (held["epoch"], held["seq"]):', 'if True:'),
    ("numbers order reports and epochs do not", 'order > (held["epoch"], held["seq"])', 'order[1] > held["seq"]'),
    ("whoever was heard once is fresh", 'if self.unheard else self.liveness[1]', 'if self.unheard else "fresh"'),
    ("who has only reported was never heard", 'return "stale" if self.reported else "never"', 'return "never"'),
    ("the last word on liveness holds, whatever its epoch",
     'if self.liveness is None or fact["epoch"] >= self.liveness[0]:', 'if True:'),
    ("quarantine is not heard",
     'def quarantine(self, fact):\n        self.reported = True', 'def quarantine(self, fact):'),
    # What the hub listens to.
    ("a hub that does not listen leaves devices fresh", 'return "stale" if self.unheard else self.liveness[1]', 'return self.liveness[1]'),
    ("a hub that does not listen makes those stale that were never heard",
     'if self.liveness:\n            return "stale" if self.unheard', 'if self.liveness or self.unheard:\n            return "stale" if self.unheard'),
    ("a stop is not taken in", 'if fact["state"] == "stopped":', 'if False:'),
    ("the first stop holds, whatever comes after",
     'self.unheard[partition] = fact["since"]', 'self.unheard.setdefault(partition, fact["since"])'),
    ("a resumption is not taken in", 'elif fact["state"] == "resumed":', 'elif False:'),
    ("a resumption of one partition is one of all", 'self.unheard.pop(partition, None)', 'self.unheard.clear()'),
    ("a stop touches every device", 'device.unheard = partition_of(*key) in self.unheard\n\n', 'device.unheard = bool(self.unheard)\n\n'),
    ("a stop touches those alone that are there",
     'self.devices[site, device].unheard = partition_of(site, device) in self.unheard', 'pass'),
    ("partitions are of the device's name alone", '(site + device).encode()', 'device.encode()'),
    ("partitions are of the site's name alone", '(site + device).encode()', 'site.encode()'),
    ("views name every partition that is not listened to",
     'sorted({partition_of(*key) for key in devices} & set(self.unheard))', 'sorted(self.unheard)'),
    ("partitions are named in the order in which they stopped",
     'sorted({partition_of(*key) for key in devices} & set(self.unheard))',
     '[one for one in self.unheard if one in {partition_of(*key) for key in devices}]'),
    ("an empty list of partitions is told", 'if unheard else {}', ''),
    ("a deployment does not say what the hub does not listen to", '**self.hub(key for key, _, _ in rows)}', '}'),
    ("leaving does not concern a deployment", 'self.hub(key for key, _, _ in rows)', 'self.hub(key for key, row, _ in rows if row)'),
    ("sites, groups and the fleet do not say what the hub does not listen to",
     '**self.hub(key for key, device in devices.items() if not device.desired[1]),', ''),
    ("retired devices concern the hub's hearing",
     'self.hub(key for key, device in devices.items() if not device.desired[1])', 'self.hub(devices)'),
    ("a pulse is a place to have read to", 'if room == "hub":', 'if room == "hub" and not setattr(self, "as_of", {"ledgerSeq": ledger_seq, "at": stored_at}):'),
    # What is wanted, and what is leaving.
    ("the last desired state holds, whatever its generation", 'if fact["generation"] > self.desired[0]:', 'if True:'),
    ("labels are not followed", 'self.labels = fact.get("labels", {})', 'pass'),
    ("a retired device keeps its rows", 'if self.desired[1] or (target is None', 'if (target is None'),
    ("what was removed and is not wanted stays",
     '(report["status"]["state"] == "removed" or self.forgot(report))', 'self.forgot(report)'),
    ("what a device forgot is leaving for ever", ' or self.forgot(report))', ')'),
    ("what a device forgot is gone although something is missing",
     'report["epoch"] < self.epoch and self.missing() == 0 and', 'report["epoch"] < self.epoch and'),
    ("what a device forgot is gone although something is in doubt",
     'self.missing() == 0 and not self.doubts(report)', 'self.missing() == 0'),
    ("what is leaving has no row", 'yield deployment, None, report', 'pass'),
    ("what is leaving is not counted", '"leaving": len(rows) - len(targets)', '"leaving": 0'),
    # Overdue.
    ("a deadline holds for any generation",
     'return generation == target and', 'return deployment in self.deadlines and'),
    ("the last deadline holds, whatever its generation",
     'max(new, self.deadlines.get(deployment, new))', 'new'),
    ("what is installed is overdue", 'standing in ("installed", "failed")', 'standing == "failed"'),
    ("what has failed is overdue", 'standing in ("installed", "failed")', 'standing == "installed"'),
    ("a deadline counts for attempts that began after it", 'and since >= moment(first)', ''),
    # What is tried again.
    ("what is tried again is at an end", 'standing in ("installed", "failed") and not retries', 'standing in ("installed", "failed")'),
    ("a crash loop stands where its components are", 'elif any(retry.get("crashLoop") for retry in retries):', 'elif False:'),
    ("every retry is a crash loop", 'elif any(retry.get("crashLoop") for retry in retries):', 'elif retries:'),
    ("an older generation's retries count", 'standing, retries = "outdated", []', 'standing = "outdated"'),
    ("what is tried again has no error until it fails", ' or row["attempts"])', ')'),
    ("the last error is told beside that of the report", ' if component not in told]', ']'),
    ("an error does not say how often it was tried", 'if retry:', 'if False:'),
    ("overdue is not told", '{"overdue": overdue, "retried"', '{"retried"'),
    ("overdue is told where nothing is", 'in marks.items() if mark}', 'in marks.items() if mark or name == "overdue"}'),
    ("every evidence is counted", 'if (origin, fidelity) != ("push", "event")', 'if True'),
    ("no evidence is counted", 'evidence.setdefault(origin, Counter())[fidelity] += 1', 'pass'),
    ("attempts are not counted", '"attempts": sum(attempts)', '"attempts": 0'),
    # Since when.
    ("a target is no change", 'said_at if deployment in', '"" if deployment in'),
    ("a report is no change", 'self.reports.get(deployment, {}).get("receivedAt", "")', '""'),
    ("a report is no proof that its device was heard", 'self.hear(fact["receivedAt"])\n        if self.enter', 'if self.enter'),
    ("liveness is no proof that its device was heard", 'self.hear(fact["lastHeardAt"])', 'pass'),
    ("retired devices were heard", '(device.heard_at for device in present)', '(device.heard_at for device in devices.values())'),
    # Counts and bounds.
    ("buckets of zero are listed", 'for standing in STANDINGS if standings[standing]}', 'for standing in STANDINGS}'),
    ("the lower bound counts the silent",
     'row["known"] and (row["standing"], row["freshness"]) == ("installed", "fresh")',
     'row["known"] and row["standing"] == "installed"'),
    ("the lower bound counts what is not known",
     'row["known"] and (row["standing"], row["freshness"])', '(row["standing"], row["freshness"])'),
    ("the upper bound is lowered by failures that are not known",
     'row["known"] and row["freshness"] == "fresh" and', 'row["freshness"] == "fresh" and'),
    ("the upper bound is lowered by failures of the silent",
     'row["known"] and row["freshness"] == "fresh" and', 'row["known"] and'),
    ("the upper bound is all targets", '"hi": len(targets) - lost', '"hi": len(targets)'),
    ("what is missing of a device is counted beyond the limit", 'min(number, MISSING_COUNTED_MAX)', 'number'),
    # Known.
    ("a device that cannot store is known", 'if not self.storing or self.doubts(report):', 'if self.doubts(report):'),
    ("quarantine hides nothing", 'if not self.storing or self.doubts(report):', 'if not self.storing:'),
    ("what an older epoch said is known", 'if report and report["epoch"] < self.epoch:', 'if False:'),
    ("a report that is current is not enough", 'if report and report["currentThrough"] >= self.head:', 'if False:'),
    ("a report that was current once is enough",
     'report["currentThrough"] >= self.head', 'report["currentThrough"] > 0'),
    ("every report is current", 'fact["head"] if fact["current"] else 0', 'fact["head"]'),
    ("a report that is said again is current up to its last head alone",
     'max(held["currentThrough"], through)', 'through'),
    ("what is missing is known",
     '            return True\n        return self.missing() == 0', '            return True\n        return True'),
    ("heartbeats say nothing of the head", 'self.head = max(self.head, fact["head"])', 'pass'),
    ("reports say nothing of the head",
     'self.head = max([self.head, fact["head"], fact["seq"], *(', 'self.head = max([self.head, fact["seq"], *('),
    ("the last head holds, not the highest", 'max(self.head, fact["head"])', 'fact["head"]'),
    ("what was folded into others is missing",
     'for first, last in fact.get("coalesced", [])))', 'for first, last in []))'),
    ("numbers above the head are held of it",
     'for number in self.held if number <= self.head)', 'for number in self.held)'),
    ("a newer epoch goes on with the numbers of the one before",
     'self.epoch, self.head, self.held, self.untold = epoch, 0, set(), set()',
     'self.epoch, self.untold = epoch, set()'),
    ("a fact of an older epoch counts in the present one", 'return epoch == self.epoch\n', 'return True\n'),
    ("the account of a liveness fact says nothing", 'if account := fact.get("account"):', 'if account := None:'),
    ("an account's gaps are held", 'set(range(1, fact["head"] + 1)) - missing', 'set(range(1, fact["head"] + 1))'),
    ("an account's word is a report's", 'self.untold |= told - self.held', 'pass'),
    # Quarantine.
    ("what is in quarantine is missing",
     'new = add_bounded(self.held, numbers) |', 'new = add_bounded(set(self.held), numbers) |'),
    ("quarantined numbers that scatter are held without a bound", '< PIECES_MAX', '< 10**9'),
    ("a number beyond the head that was dropped may be anything", 'and not is_dropped', ''),
    ("what is in quarantine leaves no doubt", 'self.doubted |= new', 'pass'),
    ("what stands for others stands for itself alone",
     'for first, last in fact.get("otherSeqs", []):', 'for first, last in []:'),
    ("a report does not settle the doubt of its number", 'self.doubted -= good', 'pass'),
    ("a person's word does not settle the doubt", 'self.doubted -= numbers', 'pass'),
    ("a person's word ends no doubt of a message", 'self.open.pop((', 'self.open.get(('),
    ("what was let in counts as dropped",
     'if fact["verdict"] == "dropped" and epoch == self.epoch:', 'if epoch == self.epoch:'),
    ("a message that may be anything is nothing", 'return any(came >= self.beat_at and', 'return any(False and'),
    ("heartbeats end no doubt", 'return any(came >= self.beat_at and', 'return any('),
    ("times are compared as texts", 'return text and text[:19] + text[19:-1].lstrip(".").ljust(9, "0")', 'return text'),
    ("what came to quarantine before its epoch is forgotten", 'elif numbers and epoch > self.epoch:', 'elif False:'),
    ("what came to quarantine before its epoch is kept without a limit",
     'if len(self.ahead) > EPOCHS_AHEAD_MAX:', 'if False:'),
    ("a doubt hides what was reported after it",
     'settled = max(report["seq"], report["currentThrough"]) if of_epoch else 0', 'settled = 0'),
    # Verdicts.
    ("nothing is removing", '("removing", not targets), ', ''),
    ("nothing is failing", '("failing", standings["failed"]), ', ''),
    ("nothing is overdue", '("overdue", overdue),\n', '\n'),
    ("nothing is incomplete", '("incomplete", known < len(targets)),', ''),
    ("nothing is progressing", '("progressing", at_work),', ''),
    ("who is silent while at work gets on",
     'at_work = sum(row["freshness"] == "fresh" for row', 'at_work = sum(True for row'),
    ("who is silent while at work is nobody's business",
     '("waiting", standings["installed"] < len(targets))',
     '("waiting", standings["waiting"] + standings["outdated"])'),
    ("nothing is waiting", '("waiting", standings["installed"] < len(targets)), ', ''),
    ("nothing is convergedStale", '("convergedStale", stale), ', ''),
    ("overdue comes before failing",
     '("failing", standings["failed"]), ("overdue", overdue)',
     '("overdue", overdue), ("failing", standings["failed"])'),
    ("incomplete comes before overdue",
     '("overdue", overdue),\n        ("incomplete", known < len(targets)),',
     '("incomplete", known < len(targets)),\n        ("overdue", overdue),'),
    ("progressing comes before incomplete",
     '("incomplete", known < len(targets)),', '("incomplete", known < len(targets) and not standings["installing"]),'),
    ("convergedStale comes before waiting",
     '("waiting", standings["installed"] < len(targets)), ("convergedStale", stale)',
     '("convergedStale", stale), ("waiting", standings["installed"] < len(targets))'),
    ("pending is no progress",
     '("pending", "installing", "removing", "removed"))', '("installing", "removing", "removed"))'),
    ("installing is no progress",
     '("pending", "installing", "removing", "removed"))', '("pending", "removing", "removed"))'),
    ("removing is no progress",
     '("pending", "installing", "removing", "removed"))', '("pending", "installing", "removed"))'),
    ("removed is no progress",
     '("pending", "installing", "removing", "removed"))', '("pending", "installing", "removing"))'),
    # Components and errors.
    ("components of an older generation are evidence",
     'row["standing"] not in ("waiting", "outdated")', 'row["standing"] != "waiting"'),
    ("components beyond the limit are listed",
     'sorted(components.items())[:COMPONENTS_MAX]', 'sorted(components.items())'),
    ("errors beyond the limit are listed", '[:ERRORS_MAX]', ''),
    ("what is left out is not told", 'view["omitted"] = omitted', 'pass'),
    ("what is left out is told where nothing is", 'if number > 0}', 'if number >= 0}'),
    ("errors are listed by code", '(-len(entry[1]), entry[0].encode())', 'entry[0].encode()'),
    ("the example is the last device", 'first = min(devices)', 'first = max(devices)'),
    ("the deployment's own error is left out", 'if own else []', 'if False else []'),
    ("an error blames a component that there is not",
     'own["source"] if own["source"] in names else ""', 'own["source"]'),
    ("errors of one code are shown of the deployment first", 'found.sort(key=lambda entry: entry[1])', 'pass'),
    ("a failure without an error has no reason", '"message": report["status"].get("reason", "")', '"message": ""'),
    ("a failure without a code has none", ' or "unspecified"', ''),
    ("long codes are not cut", 'whole_chars(error["code"], CODE_BYTES_MAX)', 'error["code"]'),
    ("long messages are not cut", 'if len(message.encode()) > MESSAGE_BYTES_MAX:', 'if False:'),
    ("what is cut off a message is not told",
     'declared = f" … (cut: {len(message.encode())} bytes in all)"', 'declared = ""'),
    # Sites, groups and the fleet.
    ("what is about no device is a device's",
     'if room == "owner" or name == ["_", "_"]:', 'if room == "owner":'),
    ("a site of retired devices has a view",
     'devices = {key: device for key, device in self.devices.items() if key[0] == site}\n            if any(not device.desired[1] for device in devices.values()):',
     'devices = {key: device for key, device in self.devices.items() if key[0] == site}\n            if True:'),
    ("a group of retired devices has a view",
     'if device.labels.get(label) == value}\n            if any(not device.desired[1] for device in devices.values()):',
     'if device.labels.get(label) == value}\n            if True:'),
    ("a group with a retired device has no view",
     'if device.labels.get(label) == value}\n            if any(not device.desired[1] for device',
     'if device.labels.get(label) == value}\n            if all(not device.desired[1] for device'),
    ("retired devices are counted",
     'present = [device for device in devices.values() if not device.desired[1]]', 'present = list(devices.values())'),
    ("a device that cannot store is complete", 'return known and self.storing and', 'return known and'),
    ("a device of which something is missing is complete",
     'self.storing and self.missing() == 0 and', 'self.storing and'),
    ("a device with an unread message is complete",
     'and self.missing() == 0 and not self.unread()', 'and self.missing() == 0'),
    ("a device with a standing that is not known is complete",
     'known = all(row["known"] for _, row, _ in self.rows() if row)', 'known = True'),
    ("a digest covers the moment", 'if name not in UNSIGNED}', 'if name != "digest"}'),
]


def reducer(source):
    module = types.ModuleType("reduce")
    exec(compile(source, "reduce.py", "exec"), module.__dict__)
    return module


def is_found(source, vectors):
    """Does any vector's ledger give other views? A fold that falls over ends this script: it proves nothing of views."""
    check = reducer(source).check
    return any(check(vector) for vector in vectors)


def wrong(source, vectors):
    """Why the vectors prove too little, a line for each sabotage."""
    if is_found(source, vectors):
        yield "the vectors do not hold before anything is broken"
    for name, old, new in SABOTAGES:
        if source.count(old) != 1:
            yield f"{name}: {old!r} is in reduce.py {source.count(old)} times"
        elif not is_found(source.replace(old, new), vectors):
            yield f"{name}: every vector holds"


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        lines = list(wrong(file.read(), sys.argv[2:]))
    print("\n".join(lines) or f"{len(SABOTAGES)} sabotages are found")
    sys.exit(bool(lines))
