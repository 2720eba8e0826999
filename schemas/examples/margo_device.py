#!/usr/bin/env python3
"""A device that speaks Margo's HTTP API (1.0.0-rc.3), and only pretends to run its deployments: margo_device.py SETTINGS.json.
Settings: host, port, manager (its SPIFFE id), ca, cert, key, state (a file), poll (seconds) and device (properties with id)."""
import hashlib, http.client, itertools, json, pathlib, random, sqlite3, ssl, sys, time

class Device:
    def __init__(self, given):
        self.given, self.tls = given, ssl.create_default_context(cafile=given["ca"])
        self.tls.check_hostname = False  # the SPIFFE id is checked instead
        self.tls.load_cert_chain(given["cert"], given["key"])
        self.wait, self.retry_after, self.file = given["poll"], 0, sqlite3.connect(given["state"], isolation_level=None)
        empty = '{"version": 0, "etag": "", "deployments": {}, "unsent": []}'
        self.file.execute("CREATE TABLE IF NOT EXISTS device AS SELECT ? AS state", [empty])
        self.state = json.loads(self.file.execute("SELECT state FROM device").fetchone()[0])
        self.state["unsent"] += [["PUT", "/api/v1/capabilities/" + given["device"]["id"], {"properties": given["device"]}]]

    def keep(self, **changes):  # a version and its statuses at once: no kill or outage comes between them
        self.state |= changes
        self.file.execute("UPDATE device SET state = ?", [json.dumps(self.state)])

    def ask(self, method, path, body=None, etag="", digest=None):
        connection = http.client.HTTPSConnection(self.given["host"], self.given["port"], timeout=20, context=self.tls)
        connection.connect()
        if ("URI", self.given["manager"]) not in connection.sock.getpeercert().get("subjectAltName", ()):
            sys.exit(f"the server is not {self.given['manager']}")
        connection.request(method, path, body and json.dumps(body), {"If-None-Match": etag, "Connection": "close"})
        answer = connection.getresponse()
        content, after = answer.read(), answer.headers.get("Retry-After", "")
        self.retry_after = min(int(after), 3600) if after.isdigit() else 0
        if answer.status >= 400 and (method == "GET" or answer.status in (401, 403, 429, 500, 503)):
            raise OSError(f"{path}: {answer.status} {content!r}")  # also 404: a newer manifest names other content
        if answer.status >= 400:
            print(f"{path} is refused, and not sent again: {content!r}", file=sys.stderr, flush=True)
        if digest and digest != "sha256:" + hashlib.sha256(content).hexdigest():
            raise ValueError(f"{path} has another digest: nothing is changed")
        return answer, content

    def poll(self):
        answer, content = self.ask("GET", "/api/v1/deployments", etag=self.state["etag"])
        if answer.status == 304:
            return
        manifest, held = json.loads(content), self.state["deployments"]
        version, wanted = manifest["manifestVersion"], {one["deploymentId"]: one["digest"] for one in manifest["deployments"]}
        if version <= self.state["version"]:
            raise ValueError(f"security: version {version} is refused, {self.state['version']} is held")
        new = {name: digest for name, digest in wanted.items() if held.get(name, {}).get("digest") != digest}
        running = {name: held.get(name) for name in wanted} | self.fetch(manifest, new)
        unsent = self.reports({name: held[name] for name in held.keys() - wanted.keys()}, version, "removing", "removed")
        unsent += self.reports({name: running[name] for name in new}, version, "pending", "installing", "installed")
        self.keep(version=version, etag=answer.headers["ETag"], deployments=running, unsent=self.state["unsent"] + unsent)

    def fetch(self, _manifest, new):
        texts = {name: self.ask("GET", f"/api/v1/deployments/{name}/{digest}", digest=digest)[1] for name, digest in new.items()}
        return {name: {"digest": new[name], **json.loads(text)["spec"]["deploymentProfile"]} for name, text in texts.items()}

    def reports(self, profiles, version, *states):
        return [["POST", f"/api/v1/deployments/{name}/status", {"deploymentId": name, "deviceId": self.given["device"]["id"],
                "adoptedManifestVersion": version, "status": {"state": state},
                "components": [{"name": one["name"], "state": state} for one in profile["components"]]}]
                for (name, profile), state in itertools.product(profiles.items(), states)]

    def send(self):
        while self.state["unsent"]:
            self.ask(*self.state["unsent"][0])
            del self.state["unsent"][0]
            self.keep()

    def run(self):
        while True:
            before, self.wait, self.retry_after = self.wait, self.given["poll"], 0
            for step in (self.poll, self.send):
                try:
                    step()
                except (OSError, ValueError, LookupError, http.client.HTTPException) as error:
                    print(error, file=sys.stderr, flush=True)
                    self.wait = max(self.wait, self.retry_after, min(60, 2 * before))
            time.sleep(self.wait * random.uniform(1, 1.1))

if __name__ == "__main__":
    Device(json.loads(pathlib.Path(sys.argv[1]).read_text("utf-8"))).run()
