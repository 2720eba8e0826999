// Reads in every way, with nats.js, shipped credentials and TLS. Prints the results as one line of JSON.
//
//     node nats_js.mjs EXAMPLES_FOLDER NAME --url URL --creds FILE --tls-ca FILE
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [folder] = process.argv.splice(2, 1);
const fromExamples = createRequire(`${folder}/package.json`);
const { jetstream, jetstreamManager } = fromExamples("@nats-io/jetstream");
const { Kvm } = fromExamples("@nats-io/kv");
const { hub, newest, options } = await import(pathToFileURL(`${folder}/connect.js`));
const { hub: hubOfPage } = await import(pathToFileURL(`${folder}/browser.js`));

const SUBJECTS = ["muster.owner.>", "muster.quarantine.>"];
const chosen = options("nats_js.mjs NAME");
const [name] = chosen.words;
const nc = chosen.url.startsWith("ws") ? await hubOfPage(chosen.url, readFileSync(chosen.creds, "utf8")) : await hub(chosen);
const found = {};

async function readLedger() {
  const consumers = jetstream(nc).consumers;
  const ordered = await consumers.get("LEDGER", { filter_subjects: ["muster.quarantine.>"] });
  found.ordered = (await ordered.next({ expires: 10_000 })).subject;
  const manager = await jetstreamManager(nc);
  await manager.consumers.add("LEDGER", { durable_name: name, ack_policy: "explicit", filter_subjects: SUBJECTS });
  const durable = await consumers.get("LEDGER", name);
  const first = await durable.next({ expires: 10_000 });
  await first.ackAck();
  found.durable = first.seq < (await durable.next({ expires: 10_000 })).seq;
  await durable.delete();
}

async function readViews() {
  const views = await new Kvm(nc).open("views");
  found.get = (await views.get("fleet")).json().kind;
  for await (const entry of await views.watch({ key: "fleet" })) {
    found.watch = entry.key;
    break;
  }
  const keys = [];
  for await (const key of await views.keys()) keys.push(key);
  found.keys = keys.includes("fleet");
  found.history = [];
  for await (const entry of await views.history({ key: "fleet" })) found.history.push(entry.key);
}

async function ask() {
  found.request = (await nc.request("muster.query.fleet", "", { timeout: 10_000 })).json().kind;
  const live = nc.subscribe(`muster.live.notice.${name}`, { max: 1 });
  await nc.request("muster.notify.subscribe", JSON.stringify({ name }), { timeout: 10_000 });
  for await (const message of live) found.notice = message.json().event;
  found.newestNotice = (await newest(nc, "NOTICES", `muster.notice.${name}`)).event;
}

await readLedger();
await readViews();
await ask();
try {
  await nc.request("$JS.API.CONSUMER.NAMES.LEDGER", "", { timeout: 10_000 });
} catch (error) {
  found.refused = error.message;
}
console.log(JSON.stringify(found));
await nc.close();
