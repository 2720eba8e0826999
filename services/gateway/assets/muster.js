// Keeps a page of the fleet up to date, and says when it is not. Without it the page is a plain page.
"use strict";

const root = document.documentElement;
root.classList.remove("no-script");
const stream = root.dataset.stream;
// Without a sign of life for this long, the page greys itself.
const SILENCE_MS = 15000;
// Least time between two reloads of the content.
const RELOAD_MS = 2000;
let heardAt = Date.now();
let loadedAt = Date.now();
let hubIsStale = root.classList.contains("is-stale");
let cause = "";
let isLoading = false;
let isDue = false;

const byId = (id) => document.getElementById(id);

function show() {
  const silence = Date.now() - heardAt;
  const isCut = stream && silence > SILENCE_MS;
  const isStale = hubIsStale || isCut;
  root.classList.toggle("is-stale", isStale);
  const alarm = byId("alarm");
  if (alarm) {
    alarm.hidden = !isStale;
    if (isCut) alarm.textContent = "This page is cut off: nothing came for " + Math.round(silence / 1000) + " s. It shows what was known before.";
    else if (hubIsStale && cause) alarm.textContent = "Not up to date: " + cause;
  }
  const state = byId("state");
  if (state && stream) state.textContent = isStale ? "not up to date" : "live";
}

function ago(seconds) {
  if (seconds < 60) return Math.max(0, Math.round(seconds)) + " s";
  if (seconds < 5400) return Math.round(seconds / 60) + " min";
  if (seconds < 129600) return Math.round(seconds / 3600) + " h";
  return Math.round(seconds / 86400) + " d";
}

function ages() {
  for (const time of document.querySelectorAll("time[data-ago]")) {
    time.textContent = ago((Date.now() - Date.parse(time.dateTime)) / 1000) + " ago";
  }
}

// A form that is being filled in must not be replaced under its reader.
function isBusy() {
  const active = document.activeElement;
  return (active && active.matches("input, select, textarea")) || String(document.getSelection()).length > 0;
}

async function reload() {
  if (isLoading || isBusy() || document.hidden) { isDue = true; return; }
  isLoading = true;
  isDue = false;
  loadedAt = Date.now();
  try {
    const answer = await fetch(location.href, { headers: { accept: "text/html" }, cache: "no-store" });
    // The session is over: the login page takes the place of this one.
    if (answer.redirected) { location.reload(); return; }
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const main = page.querySelector("main");
    if (main && answer.ok) {
      // A reader with a keyboard stays at the same link or button.
      const active = document.activeElement;
      const focused = active && active.closest("main") && active.outerHTML;
      document.querySelector("main").replaceWith(document.adoptNode(main));
      document.title = page.title;
      const same = focused && [...document.querySelectorAll("main a, main button")].find((one) => one.outerHTML === focused);
      if (same) same.focus();
      ages();
    }
  } catch (_) {
    // The stream tells whether the gateway is reached.
  }
  isLoading = false;
}

function due() {
  isDue = true;
  const wait = RELOAD_MS - (Date.now() - loadedAt);
  setTimeout(() => { if (isDue) reload(); }, Math.max(0, wait));
}

// A browser opens few connections to one address: a page that nobody sees has none.
let source = null;

function follow() {
  source = new EventSource(stream);
  const heard = () => { heardAt = Date.now(); show(); };
  const isNews = (event) => { const was = hubIsStale; hubIsStale = false; heard(); return was || event.type === "change"; };
  source.addEventListener("snapshot", (event) => { if (isNews(event)) due(); });
  source.addEventListener("change", (event) => { if (isNews(event)) due(); });
  // Operations and waves begin to wait for a decision without a change of the fleet.
  source.addEventListener("alive", () => { heard(); due(); });
  source.addEventListener("end", () => { source.close(); reload(); });
  source.addEventListener("stale", (event) => {
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
    heardAt = Date.now();
    follow();
    due();
  });
}
setInterval(() => { show(); ages(); }, 1000);

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
