#!/usr/bin/env python3
"""A device that speaks Margo's HTTP API (1.0.0-rc.3) with the standard library alone. It only pretends to run deployments.

It polls its manifest, checks every digest before it changes anything, and posts a status for each change. Version, entity tag and
unsent statuses are in a file, so nothing is lost while the gateway or the device is off; of each deployment the newest status waits.
    python3 margo_device.py https://gateway:8444 STATE.json --cert C --key K --ca CA --manager spiffe://DOMAIN/margo/wfm/ID [--poll 10]
"""
import argparse, hashlib, http.client, io, json, os, random, ssl, sys, tarfile, time, urllib.parse

class Retry(Exception):
    """The gateway did not take a request, and may take it after so many seconds."""

class Device:
    def __init__(self, given):
        self.given, self.address = given, urllib.parse.urlsplit(given.url)
        self.tls = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=given.ca)
        self.tls.check_hostname, self.tls.minimum_version = False, ssl.TLSVersion.TLSv1_3  # the SPIFFE id is checked instead
        self.tls.load_cert_chain(given.cert, given.key)
        self.state = {"version": 0, "etag": "", "deployments": {}, "unsent": {}, "capabilities": None}
        if os.path.exists(given.state):
            with open(given.state, encoding="utf-8") as file:
                self.state = json.load(file)

    def keep(self):
        with open(self.given.state + ".new", "w", encoding="utf-8") as file:
            json.dump(self.state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(self.given.state + ".new", self.given.state)

    def request(self, method, path, body=None, headers=None):
        connection = http.client.HTTPSConnection(self.address.hostname, self.address.port, timeout=20, context=self.tls)
        try:
            connection.connect()
            if ("URI", self.given.manager) not in connection.sock.getpeercert().get("subjectAltName", ()):
                sys.exit(f"the server is not {self.given.manager}")
            connection.request(method, path, body and json.dumps(body), {"Content-Type": "application/json", **(headers or {})})
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise Retry(1) from error
        finally:
            connection.close()
        if answer.status in (429, 500, 503):
            raise Retry(float(answer.headers.get("Retry-After", 5)))
        if answer.status >= 400:
            sys.exit(f"{method} {path}: {answer.status} {content.decode()}")  # trying again would not help
        return answer, content

    def fetch(self, reference):
        content = self.request("GET", reference["url"])[1]
        if reference["digest"] != "sha256:" + hashlib.sha256(content).hexdigest():
            raise ValueError(f"{reference['url']} has another digest: nothing is changed")
        return content

    def poll(self):
        answer, content = self.request("GET", "/api/v1/deployments", None, {"If-None-Match": self.state["etag"]})
        if answer.status == 304:
            return
        manifest, before = json.loads(content), self.state["deployments"]
        if manifest["manifestVersion"] <= self.state["version"]:
            return print(f"security: refused version {manifest['manifestVersion']}", file=sys.stderr, flush=True)
        new = [entry for entry in manifest["deployments"] if before.get(entry["deploymentId"], {}).get("digest") != entry["digest"]]
        if len(new) > 2:  # one request for all, and the files in it are checked one by one
            with tarfile.open(fileobj=io.BytesIO(self.fetch(manifest["bundle"]))) as bundle:
                texts = {member.name.removesuffix(".yaml"): bundle.extractfile(member).read() for member in bundle}
            if any(entry["digest"] != "sha256:" + hashlib.sha256(texts[entry["deploymentId"]]).hexdigest() for entry in new):
                raise ValueError("the bundle has a file with another digest: nothing is changed")
        else:
            texts = {entry["deploymentId"]: self.fetch(entry) for entry in new}
        wanted = {entry["deploymentId"] for entry in manifest["deployments"]}
        for name in set(before) - wanted:
            self.report(name, before.pop(name)["components"], manifest["manifestVersion"], ["removing", "removed"])
        for entry in new:  # JSON is YAML
            components = [one["name"] for one in json.loads(texts[entry["deploymentId"]])["spec"]["deploymentProfile"]["components"]]
            before[entry["deploymentId"]] = {"digest": entry["digest"], "components": components}
            self.report(entry["deploymentId"], components, manifest["manifestVersion"], ["pending", "installing", "installed"])
        self.state |= {"version": manifest["manifestVersion"], "etag": answer.headers["ETag"]}
        self.keep()
        print("applied", manifest["manifestVersion"], flush=True)

    def report(self, name, components, version, states):
        for state in states:
            status = {"deploymentId": name, "adoptedManifestVersion": version, "status": {"state": state}}
            self.state["unsent"][name] = {**status, "components": [{"name": one, "state": state} for one in components]}
            self.keep()
            try:
                self.send()
            except Retry:
                pass  # the newest one is sent later

    def send(self):
        about = {"id": self.given.id, "vendor": "example", "modelNumber": "margo_device.py", "serialNumber": "1", "otelCollector": True,
                 "cpus": [{"cores": os.cpu_count()}], "supportedRuntimes": ["oci"], "supportedDeploymentTypes": ["compose", "helm"]}
        if self.state["capabilities"] != about:
            self.request("PUT", "/api/v1/capabilities/" + self.given.id, {"properties": about})
            self.state["capabilities"] = about
        for name in list(self.state["unsent"]):
            self.request("POST", f"/api/v1/deployments/{name}/status", self.state["unsent"][name])
            del self.state["unsent"][name]
            self.keep()

def main():
    arguments = argparse.ArgumentParser(description="A device that speaks Margo's HTTP API")
    arguments.add_argument("url")
    arguments.add_argument("state")
    for name in ("id", "cert", "key", "ca", "manager"):
        arguments.add_argument("--" + name, required=True)
    arguments.add_argument("--poll", type=float, default=10)
    device, failures = Device(arguments.parse_args()), 0
    while True:
        try:
            device.send()
            device.poll()
            failures, wait = 0, device.given.poll
        except Retry as retry:
            failures, wait = failures + 1, max(retry.args[0], min(60, device.given.poll * 2 ** min(failures, 6)))
        time.sleep(wait * random.uniform(1, 1.1))

if __name__ == "__main__":
    main()
