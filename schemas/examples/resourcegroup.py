#!/usr/bin/env python3
"""Pushes the status of a deployment into a ResourceGroup (kpt.dev/v1alpha1) of a Kubernetes cluster.

It reads the document that `muster status` gives, makes the object if it is not there, and writes its status subresource, unless
the cluster holds the same already. Run it as often as the cluster may be written to; kpt itself writes every 30 seconds at most.

    muster status web --format resourcegroup-json --aggregate |
        python3 resourcegroup.py --server https://kubernetes:6443 --token-file FILE --ca FILE [--namespace fleet]
"""
import argparse, json, ssl, sys, urllib.error, urllib.request

ATTEMPTS = 5  # another writer may be faster
SECONDS = 10


class Cluster:
    def __init__(self, args):
        self.server, self.headers = args.server.rstrip("/"), {"Content-Type": "application/json"}
        self.tls = ssl.create_default_context(cafile=args.ca) if args.server.startswith("https://") else None
        if args.token_file:
            with open(args.token_file, encoding="utf-8") as file:
                self.headers["Authorization"] = "Bearer " + file.read().strip()

    def ask(self, method, path, document=None):
        """The object in the answer; None where it is not there, or was changed by another writer."""
        body = None if document is None else json.dumps(document).encode()
        request = urllib.request.Request(self.server + path, body, self.headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=SECONDS, context=self.tls) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code in (404, 409):
                return None
            sys.exit(f"{method} {path}: {error.code} {error.read(500).decode(errors='replace')}")
        except urllib.error.URLError as error:
            sys.exit(f"{method} {path}: {error.reason}")


def push(cluster, wanted):
    """Whether the cluster holds the status now."""
    group = f"/apis/kpt.dev/v1alpha1/namespaces/{wanted['metadata']['namespace']}/resourcegroups"
    path = f"{group}/{wanted['metadata']['name']}"
    bare = {key: value for key, value in wanted.items() if key != "status"}
    held = cluster.ask("GET", path) or cluster.ask("POST", group, bare)
    if held is None:
        return False
    if held.get("spec") != wanted["spec"]:
        held = cluster.ask("PUT", path, {**held, "spec": wanted["spec"]})
        if held is None:
            return False
    # The cluster counts generations of its own object.
    status = {**wanted["status"], "observedGeneration": held["metadata"].get("generation", 0)}
    return held.get("status") == status or cluster.ask("PUT", path + "/status", {**held, "status": status}) is not None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True, help="address of the Kubernetes API server")
    parser.add_argument("--token-file", help="file with a bearer token")
    parser.add_argument("--ca", help="certificates (PEM) of the authority that signed the server's certificate")
    parser.add_argument("--namespace", default="default", help="namespace of a document that names none (default: default)")
    args = parser.parse_args()
    wanted = json.load(sys.stdin)
    wanted["metadata"].pop("generation", None)
    wanted["metadata"].setdefault("namespace", args.namespace)
    cluster = Cluster(args)
    if not any(push(cluster, wanted) for _ in range(ATTEMPTS)):
        sys.exit(f"{wanted['metadata']['name']}: another program changes the object all the time")


if __name__ == "__main__":
    main()
