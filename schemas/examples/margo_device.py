#!/usr/bin/env python3
"""A device that speaks Margo's HTTP API (1.0.0-rc.3) with the standard library alone. It only pretends to run its deployments.

A file keeps version, entity tag and the newest unsent status of each deployment, so that kills and outages lose nothing.
    python3 margo_device.py https://gateway:8444 STATE.json --id ID --cert C --key K --ca CA --manager spiffe://… [--poll 10]
With --child NAME, once for each, it is a gateway and speaks for ID/NAME; the names in the file of --unreachable do not answer.
"""
import argparse, hashlib, http.client, io, json, os, pathlib, random, ssl, sys, tarfile, time, urllib.parse

class Later(Exception):
    """The request failed and may be sent again: seconds to wait (0 if unknown), and the reason."""

def checked(content, digest):
    if digest != "sha256:" + hashlib.sha256(content).hexdigest():
        raise Later(0, f"the content does not have the digest {digest}: nothing is changed")
    return content

class Device:
    def __init__(self, given):
        self.given, self.gateway = given, urllib.parse.urlsplit(given.url)
        self.tls = ssl.create_default_context(cafile=given.ca)
        self.tls.check_hostname = False  # the SPIFFE id is checked instead
        self.tls.load_cert_chain(given.cert, given.key)
        self.state = {"version": 0, "etag": "", "deployments": {}, "unsent": {}, "capabilities": []}
        self.ids = [given.id] + [f"{given.id}/{child}" for child in given.child]
        if os.path.exists(given.state):
            with open(given.state, encoding="utf-8") as file:
                self.state = json.load(file)

    def keep(self):
        with open(self.given.state + ".new", "w", encoding="utf-8") as file:
            json.dump(self.state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(self.given.state + ".new", self.given.state)

    def ask(self, method, path, body=None, headers=(), also=None):
        connection = http.client.HTTPSConnection(self.gateway.hostname, self.gateway.port, timeout=20, context=self.tls)
        try:
            connection.connect()
            if ("URI", self.given.manager) not in connection.sock.getpeercert().get("subjectAltName", ()):
                sys.exit(f"the server is not {self.given.manager}")
            connection.request(method, path, body and json.dumps(body), dict(headers))
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise Later(1, str(error)) from error
        finally:
            connection.close()
        if answer.status in (404, 429, 500, 503):  # 404: a newer manifest names other content
            raise Later(float(answer.headers.get("Retry-After", 0)), f"{method} {path}: {answer.status}")
        if answer.status >= 400 and answer.status != also:
            sys.exit(f"{method} {path}: {answer.status} {content.decode()}")
        return answer, content

    def poll(self):
        answer, content = self.ask("GET", "/api/v1/deployments", headers={"If-None-Match": self.state["etag"]})
        if answer.status == 304:
            return
        manifest, here = json.loads(content), self.state["deployments"]
        version, wanted = manifest["manifestVersion"], {one["deploymentId"]: one["digest"] for one in manifest["deployments"]}
        if version <= self.state["version"]:
            raise Later(0, f"security: version {version} is refused, {self.state['version']} is held")
        new = [name for name, digest in wanted.items() if here.get(name, {}).get("digest") != digest]
        if len(new) > 2:  # one request for all
            bundle = checked(self.ask("GET", manifest["bundle"]["url"])[1], manifest["bundle"]["digest"])
            with tarfile.open(fileobj=io.BytesIO(bundle)) as files:
                texts = {name: checked(files.extractfile(name + ".yaml").read(), wanted[name]) for name in new}
        else:
            paths = {name: f"/api/v1/deployments/{name}/{wanted[name]}" for name in new}
            texts = {name: checked(self.ask("GET", path)[1], wanted[name]) for name, path in paths.items()}
        for name in here.keys() - wanted.keys():
            self.report(name, here.pop(name) | {"version": version}, "removing", "removed")
        for name in new:  # JSON is YAML
            text = json.loads(texts[name])
            components = [one["name"] for one in text["spec"]["deploymentProfile"]["components"]]
            device = text.get("metadata", {}).get("deviceId", self.given.id)
            here[name] = {"digest": wanted[name], "components": components, "device": device, "version": version, "error": None}
            self.report(name, here[name], "pending", "installing", "installed")
        self.state |= {"version": version, "etag": answer.headers["ETag"]}
        self.keep()

    def error(self, device):
        """Why nothing can be done on a device, with Margo's codes for gateways."""
        silent = pathlib.Path(self.given.unreachable).read_text("utf-8").split() if self.given.unreachable else []
        if device.endswith("/*"):
            found = ("103", "this gateway chooses no device")
        elif device not in self.ids:
            found = ("101", f"there is no device {device}")
        elif device != self.given.id and device.rsplit("/", 1)[1] in silent:
            found = ("102", f"{device} does not answer")
        else:
            return None
        return {"code": found[0], "source": self.given.id, "message": found[1]}

    def look(self):
        """Reports the deployments of devices that have fallen silent, or are back."""
        for name, one in self.state["deployments"].items():
            if (self.error(one["device"]) is None) != (one["error"] is None):
                self.report(name, one, "installing", "installed")

    def report(self, name, one, *states):
        one["error"] = self.error(one["device"])
        for state in ["failed"] if one["error"] else states:
            status = {"state": state} | ({"error": one["error"]} if one["error"] else {})
            self.state["unsent"][name] = {
                "deploymentId": name, "deviceId": one["device"], "adoptedManifestVersion": one["version"], "status": status,
                "components": [{"name": component, **status} for component in one["components"]]}
            self.keep()
            try:
                self.send()
            except Later:
                pass  # the next poll sends the newest status

    def send(self):
        about = {"vendor": "example", "modelNumber": "margo_device.py", "serialNumber": "1", "cpus": [{"cores": os.cpu_count()}],
                 "supportedRuntimes": ["oci"], "supportedDeploymentTypes": ["compose"]}
        wanted = [{"id": device, **about} for device in self.ids]  # a gateway before its children
        for properties in wanted if self.state["capabilities"] != wanted else []:
            self.ask("PUT", "/api/v1/capabilities/" + properties["id"], {"properties": properties})
        self.state["capabilities"] = wanted
        for name, status in list(self.state["unsent"].items()):
            # 403: this gateway may not speak for the child any more
            self.ask("POST", f"/api/v1/deployments/{name}/status", status, also=403 if "/" in status["deviceId"] else None)
            del self.state["unsent"][name]
            self.keep()

def main():
    arguments = argparse.ArgumentParser(description="A device that speaks Margo's HTTP API")
    for name in ("url", "state"):
        arguments.add_argument(name)
    for name in ("id", "cert", "key", "ca", "manager"):
        arguments.add_argument("--" + name, required=True)
    arguments.add_argument("--poll", type=float, default=10)
    arguments.add_argument("--child", action="append", default=[])
    arguments.add_argument("--unreachable", default="")
    device, failures = Device(arguments.parse_args()), 0
    while True:
        try:
            device.send()
            device.poll()
            device.look()
            failures, wait = 0, device.given.poll
        except Later as later:
            print(later.args[1], file=sys.stderr, flush=True)
            failures, wait = failures + 1, max(later.args[0], min(60, device.given.poll * 2 ** min(failures, 6)))
        time.sleep(wait * random.uniform(1, 1.1))

if __name__ == "__main__":
    main()
