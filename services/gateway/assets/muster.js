// Keeps a page of the fleet up to date, and says when it is not. Without it the page is a plain page.
"use strict";

const root = document.documentElement;
root.classList.remove("no-script");
// The events that a page follows. A page of the past has none, and stays as the gateway made it.
const stream = root.dataset.stream;
// Without a sign of life for this long, the page greys itself.
const SILENCE_MS = 15000;
// Least time between two reloads of the content.
const RELOAD_MS = 2000;
// Age at which the content is loaded again without an event: rollouts, incidents and the quarantine are in no followed view.
const REFRESH_MS = 10000;
// Delay before a refused stream is opened again, which browsers do not do.
const REOPEN_MS = 5000;
let isHeard = false;
let heardAt = Date.now();
let loadedAt = Date.now();
// The gateway's clock minus this machine's.
let clockMs = 0;
let hubIsStale = root.classList.contains("is-stale");
let cause = "";
// Why the content could not be loaded again.
let failure = "";
let isLoading = false;
let isDue = false;

const byId = (id) => document.getElementById(id);

// Readers of a screen speak every change of these texts.
function say(element, text) {
  if (element && element.textContent !== text) element.textContent = text;
}

function heard() {
  isHeard = true;
  heardAt = Date.now();
  show();
}

function show() {
  if (!stream) return;
  const isCut = Date.now() - heardAt > SILENCE_MS;
  const isStale = hubIsStale || isCut || failure !== "";
  const isHeld = !isStale && isDue && isBusy();
  root.classList.toggle("is-stale", isStale);
  root.classList.toggle("is-held", isHeld);
  const alarm = byId("alarm");
  if (alarm) {
    alarm.hidden = !isStale;
    const before = " The page shows what was known before.";
    const since = new Date(heardAt + clockMs).toISOString().slice(11, 19) + " UTC";
    if (isCut) say(alarm, "Not up to date: nothing came from the gateway since " + since + "." + before);
    else if (hubIsStale && cause) say(alarm, "Not up to date: " + cause);
    else if (failure) say(alarm, "Not up to date: " + failure + "." + before);
  }
  if (isStale) say(byId("state"), "not up to date");
  else if (isHeld) say(byId("state"), "held while you select or type");
  else if (isHeard) say(byId("state"), "live");
}

function ago(seconds) {
  if (seconds < 60) return Math.max(0, Math.round(seconds)) + " s";
  if (seconds < 5400) return Math.round(seconds / 60) + " min";
  if (seconds < 129600) return Math.round(seconds / 3600) + " h";
  return Math.round(seconds / 86400) + " d";
}

function ages() {
  if (!stream) return;
  for (const time of document.querySelectorAll("time[data-ago]")) {
    say(time, ago((Date.now() + clockMs - Date.parse(time.dateTime)) / 1000) + " ago");
  }
}

// The date of an answer has whole seconds, so a small difference is none.
function setClock(answer) {
  const ahead = Date.parse(answer.headers.get("date")) - Date.now();
  if (Number.isFinite(ahead)) clockMs = Math.abs(ahead) > 2000 ? ahead : 0;
}

// A form that is being filled in must not be replaced under its reader.
function isBusy() {
  const active = document.activeElement;
  return (active && active.matches("input, select, textarea")) || String(document.getSelection()).length > 0;
}

// Finds the focused control again in other content: by its id, or by its address or label and its rank among those.
function focusFinder(main) {
  const active = document.activeElement;
  const name = main.contains(active) && ["id", "href", "aria-label"].find((name) => active.hasAttribute(name));
  if (!name) return () => null;
  const selector = active.localName + "[" + name + "=\"" + CSS.escape(active.getAttribute(name)) + "\"]";
  const rank = [...main.querySelectorAll(selector)].indexOf(active);
  return (other) => other.querySelectorAll(selector)[rank];
}

function renew(page, main) {
  const old = document.querySelector("main");
  const find = focusFinder(old);
  // Details that a reader has opened stay open.
  for (const details of main.querySelectorAll("details[id]")) {
    const shown = byId(details.id);
    if (shown) details.open = shown.open;
  }
  old.replaceWith(document.adoptNode(main));
  const control = find(main);
  if (control) control.focus({ preventScroll: true });
  document.title = page.title;
  ages();
}

// Loads the content again. A page whose subject is gone says so; any other refusal leaves the content, greyed.
async function reload() {
  if (isLoading || isBusy() || document.hidden) { isDue = true; return; }
  isLoading = true;
  isDue = false;
  loadedAt = Date.now();
  try {
    const answer = await fetch(location.href, { headers: { accept: "text/html" }, cache: "no-store", signal: AbortSignal.timeout(SILENCE_MS) });
    // The session is over: the login page takes the place of this one.
    if (answer.redirected) { location.reload(); return; }
    setClock(answer);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const main = page.querySelector("main");
    if (!main || !(answer.ok || answer.status === 404)) {
      const words = page.querySelector("#alarm:not([hidden]), h1");
      failure = words ? words.textContent : "the gateway answered with status " + answer.status;
      isDue = true;
    } else {
      failure = "";
      if (isBusy()) isDue = true;
      else renew(page, main);
      heard();
    }
  } catch (_) {
    failure = "the gateway does not answer";
    isDue = true;
  }
  isLoading = false;
  show();
}

// Content that was loaded just now is loaded again by the timer below.
function due() {
  isDue = true;
  if (Date.now() - loadedAt >= RELOAD_MS) reload();
}

// Whether the content was made from the view of an event: the fleet may have changed between the two.
function isShown(event) {
  const shown = byId("digest");
  return shown !== null && event.data.includes(JSON.stringify(shown.dataset.digest));
}

// A browser opens few connections to one address: a page that nobody sees has none.
let source = null;

function follow() {
  const opened = new EventSource(stream);
  source = opened;
  const recovered = () => { const was = hubIsStale; hubIsStale = false; heard(); return was; };
  const reopen = () => setTimeout(() => { if (source === opened && !document.hidden) follow(); }, REOPEN_MS);
  opened.addEventListener("snapshot", (event) => { if (recovered() || !isShown(event)) due(); });
  opened.addEventListener("change", () => { recovered(); due(); });
  opened.addEventListener("alive", () => { heard(); if (isDue) due(); });
  opened.addEventListener("end", () => { opened.close(); reload(); reopen(); });
  opened.addEventListener("error", () => { if (opened.readyState === EventSource.CLOSED) reopen(); });
  opened.addEventListener("stale", (event) => {
    hubIsStale = true;
    try { cause = JSON.parse(event.data).cause || ""; } catch (_) { cause = ""; }
    heard();
  });
}

if (stream) {
  if (!document.hidden) follow();
  document.addEventListener("visibilitychange", () => {
    if (source) source.close();
    source = null;
    if (document.hidden) return;
    // The content is as old as the last look at the page.
    isHeard = false;
    heardAt = Date.now();
    say(byId("state"), "loading");
    follow();
    due();
  });
}
setInterval(() => {
  if (stream && Date.now() - loadedAt >= (isDue && !failure ? RELOAD_MS : REFRESH_MS)) reload();
  show();
  ages();
}, 1000);

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button.copy");
  if (!button) return;
  const text = button.parentElement.querySelector("code").textContent;
  try { await navigator.clipboard.writeText(text); button.textContent = "copied"; } catch (_) { button.textContent = "select it"; }
  setTimeout(() => { button.textContent = "copy"; }, 1500);
});

// Changes that cannot be taken back ask once more.
document.addEventListener("submit", (event) => {
  const words = event.submitter && event.submitter.dataset.confirm;
  if (words && !window.confirm(words)) event.preventDefault();
});
