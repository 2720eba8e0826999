// A table of deployments by standing and freshness, live from the bucket `views`, printed after every change.
//
// `stale` devices were heard before and `never` devices were not: what they run now is unknown. A view that no rollup has
// renewed in time is marked OLD. `leaving` counts devices that still have a deployment which they should not have.
//
//     node watch.js [--url nats://127.0.0.1:4222] [--creds FILE --tls-ca FILE | --context NAME]
import { Kvm } from "@nats-io/kv";

import { hub, options } from "./connect.js";

const FRESHNESS = ["fresh", "stale", "never"];
const WIDTHS = [36, 15, 10, 6, 6, 6, 6];
const LOOK_MS = 5000; // between two checks whether a view has become old

function line(cells) {
  return cells.map((cell, at) => String(cell)[at < 3 ? "padEnd" : "padStart"](WIDTHS[at])).join(" ");
}

/** A row for each standing: targets by freshness, and all of them. */
function rows(view) {
  const isOld = view.asOf.validUntil && Date.parse(view.asOf.validUntil) < Date.now();
  const name = [view.deployment, isOld ? "OLD" : view.verdict];
  const found = Object.entries(view.counts).map(([standing, counts]) => {
    const sums = FRESHNESS.map((kind) => counts[kind] ?? 0);
    return line([...name, standing, ...sums, sums.reduce((sum, count) => sum + count, 0)]);
  });
  return view.leaving ? [...found, line([...name, "leaving", "-", "-", "-", view.leaving])] : found;
}

function table(views) {
  const heading = line(["DEPLOYMENT", "VERDICT", "STANDING", "FRESH", "STALE", "NEVER", "ALL"]);
  const sorted = [...views.values()].sort((one, other) => (one.deployment < other.deployment ? -1 : 1));
  const unheard = new Set(sorted.flatMap((view) => (view.hub?.unheard ?? []).map((stop) => stop.partition)));
  const silent = `The hub does not hear partitions ${[...unheard].join(", ")}: their devices count as stale.`;
  return [heading, ...sorted.flatMap(rows), ...(unheard.size ? [silent] : []), ""].join("\n");
}

const views = new Map();
let shown = null;

function show() {
  const lines = table(views);
  if (lines !== shown) console.log(lines);
  shown = lines;
}

const nc = await hub(options("watch.js"));
const bucket = await new Kvm(nc).open("views");
const watcher = await bucket.watch({ key: "deployment.*" });
setInterval(show, LOOK_MS);
for await (const entry of watcher) {
  if (entry.operation === "PUT") views.set(entry.key, entry.json());
  else views.delete(entry.key);
  if (entry.delta === 0) show();
}
