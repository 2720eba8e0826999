// A view of your own: targets by standing for each value of a label, durable, and checked against the hub.
//
// Position and rows are in one file that is replaced whole, so a program that was killed reads only the tail of LEDGER. Each line
// has the table, and `agrees`: for the same sequence the hub's view of each group has the digest that `muster.query.digests`
// names, and the same sums; null while the hub cannot say. Freshness and missing reports are left out.
//     node view.js ring ring.json [--url nats://127.0.0.1:4222] [--creds FILE --tls-ca FILE | --context NAME]
import { existsSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { DeliverPolicy, jetstream, jetstreamManager } from "@nats-io/jetstream";
import { hub, options } from "./connect.js";
import { canonical, contentDigest } from "./digest.js";

const isLater = (one, other) => one[0] > other[0] || (one[0] === other[0] && one[1] > other[1]);

/** The highest generation and the highest (epoch, seq) hold, whichever came last. */
function apply(state, kind, name, fact) {
  if (kind === "desired" && fact.generation >= (state.desired[name]?.generation ?? 0)) {
    const targets = Object.fromEntries(fact.deployments.map((entry) => [entry.id, entry.targetGeneration]));
    state.desired[name] = { generation: fact.generation, retired: fact.retired, labels: fact.labels ?? {}, targets };
  } else if (kind === "status" && isLater([fact.epoch, fact.seq], state.reports[name]?.order ?? [0, 0])) {
    const isLoop = fact.retries?.some((retry) => retry.crashLoop);
    const standing = isLoop ? "failed" : fact.status.state;
    state.reports[name] = { order: [fact.epoch, fact.seq], generation: fact.generation, standing };
  }
}

function table({ desired, reports }, label) {
  const groups = {};
  for (const [device, { labels, retired, targets }] of Object.entries(desired)) {
    if (retired || !(label in labels)) continue;
    groups[labels[label]] ??= {};
    const counts = groups[labels[label]];
    for (const [deployment, generation] of Object.entries(targets)) {
      const report = reports[`${device}.${deployment}`] ?? { generation, standing: "waiting" };
      const standing = report.generation >= generation ? report.standing : "outdated";
      counts[standing] = (counts[standing] ?? 0) + 1;
    }
  }
  return groups;
}

const chosen = options("view.js LABEL FILE");
const [[label, file], nc] = [chosen.words, await hub(chosen)];
const request = (question, fields) => nc.request(`muster.query.${question}`, JSON.stringify(fields), { timeout: 30_000 });
const ask = async (question, fields) => (await request(question, fields)).json();

async function agrees(atSeq, groups) {
  let page = await ask("digests", { atSeq });
  const digests = { ...page.views };
  for (; page.next; Object.assign(digests, page.views)) page = await ask("digests", { atSeq, after: page.next });
  for (const [value, counts] of Object.entries(groups)) {
    const view = await ask("group", { label, value, atSeq });
    if (page.error || view.error) return null;
    const sum = (by) => Object.values(by).reduce((one, other) => one + other, 0);
    const sums = Object.fromEntries(Object.entries(view.counts).map(([standing, by]) => [standing, sum(by)]));
    if (canonical(sums) !== canonical(counts) || digests[`group.${label}.${value}`] !== contentDigest(view)) return false;
  }
  return true;
}

const ledger = await (await jetstreamManager(nc)).streams.info("LEDGER");
let state = existsSync(file) ? JSON.parse(readFileSync(file, "utf8")) : null;
if (state?.ledger !== ledger.created || state.seq + 1 < ledger.state.first_seq)
  state = { ledger: ledger.created, seq: 0, desired: {}, reports: {} }; // another LEDGER, or a gap
const after = { deliver_policy: DeliverPolicy.StartSequence, opt_start_seq: state.seq + 1 };
let [isNew, read] = [true, 0];
for await (const message of await (await jetstream(nc).consumers.get("LEDGER", after)).consume()) {
  const [, kind, ...name] = message.subject.split(".");
  if (kind !== "hub") {
    // A pulse is kept for a short time: no place to resume from.
    apply(state, kind, name.join("."), message.json());
    [state.seq, isNew, read] = [message.seq, true, read + 1];
  }
  if (isNew && message.info.pending === 0) {
    writeFileSync(`${file}.new`, JSON.stringify(state));
    renameSync(`${file}.new`, file);
    const [groups, agreed] = [table(state, label), await agrees(state.seq, table(state, label)).catch(() => null)];
    console.log(JSON.stringify({ ledgerSeq: state.seq, read, [label]: groups, agrees: agreed }));
    isNew = agreed === null;
  }
}
