"""The digest of a view: SHA-256 of its canonical JSON (RFC 8785), without what follows from when facts arrived.

It holds for whole numbers and names of plain characters, as views have them. Copy this file beside the example that you copy.
"""
import hashlib, json

UNSIGNED = ("asOf", "changedAt", "deploymentName", "digest", "lastHeardAt", "message")  # no digest covers them
PARTS = ("groups", "omitted", "without")  # of a view that a person defined: they have words and times of their own


def signed(part):
    return {name: value for name, value in part.items() if name not in UNSIGNED}


def content_digest(view):
    content = signed(view)
    for name in content.keys() & PARTS:
        content[name] = [signed(group) for group in view[name]] if name == "groups" else signed(view[name])
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()
