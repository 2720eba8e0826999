// Prints a line for each notice of a subscription: the present, then every change.
//
// A notice is confirmed after it was printed, so a program that comes back under the same name continues after the last one
// that it confirmed: it first prints every change that it missed, several of which one notice may cover. A live message only
// says that there is a new notice: the notice itself is read by direct get.
//
//     node notify.js night-shift [--deployment web] [--url …] [--creds FILE --tls-ca FILE | --context NAME]
import { alarm, hub, newest, options } from "./connect.js";

const LOOK_MS = 10_000; // without a live message, which may be lost
const RENEW_MS = 600_000; // the lease of a subscription is an hour

const chosen = options("notify.js NAME", { deployment: undefined });
const [name] = chosen.words;
const wanted = chosen.deployment ? { name, id: chosen.deployment, waitFor: true } : { name };
const nc = await hub(chosen);

async function ask(request, question) {
  const answer = (await nc.request(`muster.notify.${request}`, JSON.stringify(question), { timeout: 5000 })).json();
  if (answer.error?.code === "notReady") {
    await new Promise((resolve) => setTimeout(resolve, 1000));
    return ask(request, question);
  }
  if (answer.error) {
    console.error(`muster.notify.${request}: ${answer.error.message}`);
    process.exit(1);
  }
  return answer;
}

function show({ number, event, asOf, state = {}, reason, message, changes }) {
  const { status, verdict } = state;
  console.log(JSON.stringify({ number, event, ledgerSeq: asOf.ledgerSeq, status, verdict, reason, message, changes }));
}

async function missed({ asOf, hubs }) {
  const question = { name, to: asOf.ledgerSeq, hubs: hubs ?? [] };
  do {
    const page = await ask("missed", question);
    for (const range of page.gone ?? []) console.log(JSON.stringify({ gone: range }));
    for (const change of page.changes) console.log(JSON.stringify({ missed: change }));
    question.next = page.next;
  } while (question.next);
}

const { wake, wait } = alarm();
nc.subscribe(`muster.live.notice.${name}`, { callback: wake });
let { seen } = await ask("subscribe", wanted);
let [renewedAt, isBack] = [Date.now(), true];
(async () => {
  for await (const { type } of nc.status()) if (type === "reconnect") isBack = true;
})();
for (; ; await wait(LOOK_MS)) {
  const notice = await newest(nc, "NOTICES", `muster.notice.${name}`);
  if (notice && notice.number > seen) {
    if (seen && (isBack || notice.number > seen + 1)) {
      await missed(notice);
      delete notice.changes;
    }
    show(notice);
    [seen, isBack, renewedAt] = [notice.number, false, Date.now()];
    if (notice.event === "ended") process.exit(1);
    await ask("confirm", { name, number: seen });
  } else if (Date.now() > renewedAt + RENEW_MS) {
    await ask("subscribe", wanted);
    renewedAt = Date.now();
  }
}
