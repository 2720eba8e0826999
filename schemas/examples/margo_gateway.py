#!/usr/bin/env python3
"""A gateway that speaks Margo's HTTP API (1.0.0-rc.3) for child devices without a connection of their own. All only pretend.

It is a margo_device.py with two more settings: children (their names: it speaks for ID/NAME) and unreachable (a file with the
names of those that do not answer). One request takes all new deployments; a child that falls silent, or is back, is reported.
    python3 margo_gateway.py SETTINGS.json
"""
import hashlib, io, json, pathlib, sys, tarfile
from margo_device import Device

class Gateway(Device):
    def __init__(self, given):
        super().__init__(given)
        self.id = given["device"]["id"]
        self.ids = [self.id] + [f"{self.id}/{child}" for child in given["children"]]
        for device in self.ids[1:]:  # after the gateway itself
            properties = given["device"] | {"id": device}
            self.state["unsent"].append(["PUT", "/api/v1/capabilities/" + device, {"properties": properties}])

    def ask(self, method, path, body=None, **more):
        try:
            return super().ask(method, path, body, **more)
        except OSError as refused:
            if method == "GET" or "/" not in body.get("deviceId", "") or f"{path}: 403 " not in str(refused):
                raise
            return print(refused, file=sys.stderr, flush=True)  # an operator has taken the child from this gateway

    def poll(self):
        super().poll()
        for name, profile in self.state["deployments"].items():
            if profile["failed"] != bool(self.error(profile["device"])):
                unsent = self.reports({name: profile}, self.state["version"], "installing", "installed")
                self.keep(unsent=self.state["unsent"] + unsent)

    def fetch(self, manifest, new):
        profiles = {}
        bundle = self.ask("GET", manifest["bundle"]["url"], digest=manifest["bundle"]["digest"])[1] if new else None
        for name, digest in new.items():
            with tarfile.open(fileobj=io.BytesIO(bundle)) as files:
                text = files.extractfile(name + ".yaml").read()
            if digest != "sha256:" + hashlib.sha256(text).hexdigest():
                raise ValueError(f"{name} in the bundle has another digest: nothing is changed")
            document = json.loads(text)  # JSON is YAML
            device = document.get("metadata", {}).get("deviceId", self.id)
            profiles[name] = {"digest": digest, "device": device, **document["spec"]["deploymentProfile"]}
        return profiles

    def error(self, device):
        """Why nothing can be done on a device, with Margo's codes for gateways."""
        silent = pathlib.Path(self.given["unreachable"]).read_text("utf-8").split()
        if device.endswith("/*"):
            code, message = "103", "this gateway chooses no device"
        elif device not in self.ids:
            code, message = "101", f"there is no device {device}"
        elif device.removeprefix(self.id + "/") in silent:
            code, message = "102", f"{device} does not answer"
        else:
            return {}
        return {"error": {"code": code, "source": self.id, "message": message}}

    def reports(self, profiles, version, *states):
        reports = []
        for name, profile in profiles.items():
            error = self.error(profile["device"])
            profile["failed"] = bool(error)
            for state in ["failed"] if error else states:
                status = {"state": state, **error}
                reports.append(["POST", f"/api/v1/deployments/{name}/status", {
                    "deploymentId": name, "deviceId": profile["device"], "adoptedManifestVersion": version, "status": status,
                    "components": [{"name": one["name"], **status} for one in profile["components"]]}])
        return reports

if __name__ == "__main__":
    Gateway(json.loads(pathlib.Path(sys.argv[1]).read_text("utf-8"))).run()
