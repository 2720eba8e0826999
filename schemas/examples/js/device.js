// A device: it sends heartbeats, and reports the deployments of its desired state as installed. CONTRACT.md has the rules.
//
// It keeps nothing over a restart: each start begins a new epoch, of which the hub accepts 6 an hour, and loses unsent
// reports. durable_device.py keeps its numbers and reports in a file, over kills and restarts.
//
//     node device.js plant7/press-4 [--heartbeat 30] [--url …] [--creds FILE --tls-ca FILE | --context NAME]
import { randomUUID } from "node:crypto";
import { jetstream } from "@nats-io/jetstream";
import { alarm, hub, newest, options } from "./connect.js";

const chosen = options("device.js DEVICE", { heartbeat: "30" });
const name = chosen.words[0].replace("/", ".");
const nc = await hub(chosen, `_INBOX_${name.replace(".", "_")}`);
const known = await newest(nc, "DOWNLINK", `muster.receipt.${name}`);
const epoch = Math.max(Math.floor(Date.now() / 1000), (known?.epoch ?? 0) + 1); // above any that the hub knows
const [life, outbox, sent] = [randomUUID(), new Map(), new Set()]; // reports that no receipt covers, by number
const { wake, wait } = alarm();
let [head, generation, running] = [0, 0, new Map()];

function report(kind, fields) {
  head += 1;
  outbox.set(head, { apiVersion: "muster/v1", kind, epoch, seq: head, observedAt: new Date().toISOString(), ...fields });
}

function status(state, { id, digest, profile }) {
  const components = profile.components.map((component) => ({ name: component.name, state }));
  report("StatusReport", { deployment: id, generation, digest, status: { state }, components });
}

/** Applies a newer document. Deployments that it no longer names are reported as removed. */
function apply(desired) {
  if (!desired || desired.generation <= generation) return;
  const before = running;
  running = new Map(desired.deployments.map((entry) => [entry.id, entry]));
  for (const [id, entry] of before) if (!running.has(id)) status("removed", entry);
  generation = desired.generation;
  for (const [id, entry] of running) if (before.get(id)?.digest !== entry.digest) status("installed", entry);
}

/** Deletes the reports that a receipt covers, and sends those again that it misses. */
function receive(receipt) {
  if (receipt.epoch > epoch || (receipt.epoch === epoch && receipt.through > head)) {
    console.error("the hub knows more than this device has sent: another one has its name");
    process.exit(1);
  }
  for (const seq of [...outbox.keys()].filter((seq) => seq <= receipt.through && receipt.epoch === epoch)) {
    if (receipt.missing.some(([first, last]) => first <= seq && seq <= last)) sent.delete(seq);
    else outbox.delete(seq);
  }
}

/** Sends a heartbeat, then the newest report of each deployment, then the rest by number. */
async function send() {
  const unsent = [...outbox.keys()].filter((seq) => !sent.has(seq));
  const newestOf = new Set(new Map([...outbox.values()].map((it) => [it.deployment, it.seq])).values());
  const beat = { apiVersion: "muster/v1", kind: "Heartbeat", epoch, head, unsent: unsent.length, generation };
  nc.publish(`muster.presence.${name}`, JSON.stringify(beat));
  for (const seq of unsent.sort((one, other) => newestOf.has(other) - newestOf.has(one) || one - other)) {
    const current = outbox.get(seq).deployment && { current: newestOf.has(seq) };
    const once = { msgID: `${life}.${seq}`, expect: { streamName: "UPLINK" } };
    await jetstream(nc).publish(`muster.report.${name}`, JSON.stringify({ ...outbox.get(seq), head, ...current }), once);
    sent.add(seq);
  }
}

nc.subscribe(`muster.live.*.${name}`, {
  callback: (_, message) => (message.json().kind === "Receipt" && receive(message.json())) || wake(),
});
report("CapabilitiesReport", { properties: { supportedDeploymentTypes: ["simulated"] }, agentVersion: "device.js 1" });
for (;;) {
  try {
    apply(await newest(nc, "DOWNLINK", `muster.desired.${name}`));
    await send();
  } catch (error) {
    console.error(`trying again: ${error.message}`);
  }
  await wait(chosen.heartbeat * (800 + 200 * Math.random()));
}
