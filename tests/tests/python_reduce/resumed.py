"""Writes the fold of reduce.py down and reads it again after every fact of every reducer vector: what is written down is all
that there is to know. Prints where the views are others then, and ends with 1.

    python3 tests/tests/python_reduce/resumed.py schemas/examples schemas/vectors/*.json
"""
import json
import sys

sys.path.insert(0, sys.argv[1])
from reduce import WORDS, Fleet


def resumed(ledger):
    fleet = Fleet()
    for entry in ledger:
        fleet.apply(entry["seq"], entry["storedAt"], entry["subject"], entry["fact"])
        fleet = Fleet.of(json.loads(json.dumps(fleet.record())))
    return fleet


if __name__ == "__main__":
    wrong = []
    for path in sys.argv[2:]:
        with open(path, encoding="utf-8") as file:
            vector = json.load(file)
        views = {key: {name: of for name, of in view.items() if name not in WORDS} for key, view in vector["views"].items()}
        if resumed(vector["ledger"]).views() != views:
            wrong.append(path)
    print("\n".join(wrong) or f"{len(sys.argv) - 2} ledgers go on from what is written down")
    sys.exit(bool(wrong))
