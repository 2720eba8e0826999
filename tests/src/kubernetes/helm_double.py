#!/usr/bin/env python3
"""A scripted `helm` for the scripted API server: releases as secrets with labels, and charts whose templates are YAML of JSON.

It renders only `{{ .Values.NAME }}`. A file `hold` in the chart makes an upgrade wait until that file is gone, as a hook does;
a file `fail` makes it fail.
"""

import argparse
import json
import os
import re
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

PLURALS = {"ConfigMap": "configmaps", "Deployment": "deployments", "Job": "jobs", "Service": "services", "Secret": "secrets"}


def arguments():
    """Parse what the agent passes."""
    parser = argparse.ArgumentParser(prog="helm")
    parser.add_argument("words", nargs="+")
    for name in ("namespace", "values", "labels", "history-max", "timeout", "output"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--install", action="store_true")
    return parser.parse_args()


def server():
    """Find the API server in the kubeconfig, which is JSON."""
    config = json.loads(Path(os.environ["KUBECONFIG"]).read_text(encoding="utf-8"))
    return config["clusters"][0]["cluster"]["server"]


def call(method, path, body=None):
    """Send a request; return the answer, or nothing for 404."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(server() + path, method=method, data=data)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise


def path_of(item, namespace):
    """Name the path of an object."""
    group = "/api/v1" if item["apiVersion"] == "v1" else f"/apis/{item['apiVersion']}"
    return f"{group}/namespaces/{namespace}/{PLURALS[item['kind']]}/{item['metadata']['name']}"


def history(name, namespace):
    """Read the revisions of a release, the newest last."""
    found = call("GET", f"/api/v1/namespaces/{namespace}/secrets?labelSelector=owner%3Dhelm,name%3D{name}")
    return sorted(found["items"], key=lambda it: int(it["metadata"]["labels"]["version"]))


def store(name, namespace, labels, manifest):
    """Write a revision."""
    version = labels["version"]
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": f"sh.helm.release.v1.{name}.v{version}", "namespace": namespace, "labels": labels},
        "data": {"manifest": manifest},
    }
    call("PUT", path_of(secret, namespace), secret)


def set_status(revision, name, namespace, status):
    """Change the status of a revision."""
    store(name, namespace, {**revision["metadata"]["labels"], "status": status}, revision["data"]["manifest"])


def render(chart, values):
    """Render the templates as JSON objects."""
    found = []
    for template in sorted((Path(chart) / "templates").iterdir()):
        text = re.sub(r"{{ \.Values\.(\w+) }}", lambda match: str(values.get(match[1], "")), template.read_text(encoding="utf-8"))
        found.append(json.loads(text))
    return found


def change(name, namespace, before, after):
    """Write the objects of a revision and delete those of the one before."""
    for item in after:
        call("PUT", path_of(item, namespace), item)
    paths = {path_of(item, namespace) for item in after}
    for item in before:
        if path_of(item, namespace) not in paths:
            call("DELETE", path_of(item, namespace))


def revise(name, namespace, labels, objects, pending, chart=None):
    """Make another revision."""
    revisions = history(name, namespace)
    if revisions and revisions[-1]["metadata"]["labels"]["status"].startswith("pending-") and pending != "pending-rollback":
        sys.exit("Error: UPGRADE FAILED: another operation (install/upgrade/rollback) is in progress")
    before = json.loads(revisions[-1]["data"]["manifest"]) if revisions else []
    version = str(int(revisions[-1]["metadata"]["labels"]["version"]) + 1 if revisions else 1)
    labels = {**labels, "owner": "helm", "name": name, "version": version, "status": pending}
    manifest = json.dumps(objects)
    store(name, namespace, labels, manifest)
    while chart and (Path(chart) / "hold").exists():
        time.sleep(0.05)
    if chart and (Path(chart) / "fail").exists():
        store(name, namespace, {**labels, "status": "failed"}, manifest)
        sys.exit("Error: UPGRADE FAILED: the hook has failed")
    change(name, namespace, before, objects)
    for revision in revisions:
        if revision["metadata"]["labels"]["status"] == "deployed":
            set_status(revision, name, namespace, "superseded")
    store(name, namespace, {**labels, "status": "deployed"}, manifest)


def main():
    """Carry out a verb."""
    args = arguments()
    verb, name, namespace = args.words[0], args.words[1], args.namespace
    if verb == "upgrade":
        values = json.loads(Path(args.values).read_text(encoding="utf-8"))
        labels = dict(pair.split("=", 1) for pair in args.labels.split(","))
        chart = args.words[2]
        pending = "pending-upgrade" if history(name, namespace) else "pending-install"
        revise(name, namespace, labels, render(chart, values), pending, chart)
        print("{}")
    elif verb == "rollback":
        wanted = next(it for it in history(name, namespace) if it["metadata"]["labels"]["version"] == args.words[2])
        revise(name, namespace, wanted["metadata"]["labels"], json.loads(wanted["data"]["manifest"]), "pending-rollback")
    elif verb == "uninstall":
        revisions = history(name, namespace)
        if not revisions:
            sys.exit(f"Error: uninstall: Release not loaded: {name}: release: not found")
        for item in (item for revision in revisions for item in json.loads(revision["data"]["manifest"])):
            call("DELETE", path_of(item, namespace))
        for revision in revisions:
            call("DELETE", f"/api/v1/namespaces/{namespace}/secrets/{revision['metadata']['name']}")
    else:
        newest = history(args.words[2], namespace)[-1]
        print("\n---\n".join(json.dumps(item) for item in json.loads(newest["data"]["manifest"])))


main()
