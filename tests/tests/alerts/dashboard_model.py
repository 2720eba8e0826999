"""Reads a dashboard from stdin with the types that Grafana publishes, and prints each field that they do not know or change.

It checks no bounds and no words: the schema beside the other golden files does.
"""

import json
import sys

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard


def lost(wanted, found, path=""):
    """The paths of what `wanted` has and `found` has not."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        for key, value in wanted.items():
            yield from lost(value, found.get(key), f"{path}/{key}")
    elif isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        for number, (one, other) in enumerate(zip(wanted, found, strict=True)):
            yield from lost(one, other, f"{path}/{number}")
    elif wanted != found:
        yield path


register_default_plugins()
dashboard = json.load(sys.stdin)
read = json.loads(JSONEncoder().encode(Dashboard.from_json(dashboard)))
print("\n".join(lost(dashboard, read)))
