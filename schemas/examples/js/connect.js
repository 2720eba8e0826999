// Connects to a hub: `--url`, `--creds` and `--tls-ca`, or `--context NAME`, a context of the nats CLI.
//
// A hub with accounts sends answers to the inbox of the user's own key alone; the key is in the credentials file. Each
// refusal of the server is an error that names the subject. Copy this file beside the example that you copy.
import { readFileSync } from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";

import { connect, credsAuthenticator } from "@nats-io/transport-node";

/** The options that every example takes, with those of its own, and its further words as `words`. */
export function options(usage, own = {}) {
  const names = ["url", "creds", "tls-ca", "context", ...Object.keys(own)];
  const known = Object.fromEntries(names.map((name) => [name, { type: "string", default: own[name] }]));
  try {
    const { values, positionals } = parseArgs({ options: known, allowPositionals: true });
    if (positionals.length === usage.split(" ").filter((word) => /^[A-Z]/.test(word)).length) {
      return { ...values, words: positionals };
    }
  } catch (error) {
    console.error(error.message);
  }
  console.error(`usage: node ${usage} [--url URL] [--creds FILE] [--tls-ca FILE] [--context NAME]`);
  process.exit(2);
}

/** Reads a context of the nats CLI: $XDG_CONFIG_HOME/nats/context/NAME.json. */
function context(name) {
  const home = process.env.XDG_CONFIG_HOME || join(homedir(), ".config");
  return JSON.parse(readFileSync(join(home, "nats", "context", `${name}.json`), "utf8"));
}

/** The inbox of the user's public key, which is the subject of the token in the credentials file. */
function ownInbox(creds) {
  const claims = /JWT-----\s+(\S+)/.exec(creds)[1].split(".")[1];
  return `_INBOX.${JSON.parse(Buffer.from(claims, "base64url").toString()).sub}`;
}

/** A connection that is made again after every break. A device has an inbox of its name. */
export async function hub(options, inbox) {
  const chosen = options.context ? context(options.context) : {};
  const servers = options.url || chosen.url || "nats://127.0.0.1:4222";
  const file = options.creds || chosen.creds;
  const caFile = options["tls-ca"] || chosen.ca;
  const wanted = { servers, maxReconnectAttempts: -1 };
  if (file) {
    const creds = readFileSync(file);
    wanted.authenticator = credsAuthenticator(creds);
    wanted.inboxPrefix = chosen.inbox_prefix || ownInbox(creds.toString());
  }
  if (inbox) wanted.inboxPrefix = inbox;
  if (caFile) wanted.tls = { caFile };
  else if (servers.startsWith("tls://")) wanted.tls = {};
  return await connect(wanted);
}

/** The newest document of a subject, by direct get; null before the first. */
export async function newest(nc, stream, subject) {
  const reply = await nc.request(`$JS.API.DIRECT.GET.${stream}.${subject}`, "", { timeout: 5000 });
  return reply.headers?.get("Status") || reply.headers?.code >= 400 ? null : reply.json();
}

/** A wait that ends after a time, or as soon as `wake` is called; a call before the wait ends it at once. */
export function alarm() {
  let [isDue, end] = [false, () => {}];
  const wake = () => {
    isDue = true;
    end();
  };
  const wait = async (ms) => {
    const timer = await new Promise((resolve) => {
      const timer = setTimeout(() => resolve(timer), ms);
      end = () => resolve(timer);
      if (isDue) end();
    });
    clearTimeout(timer);
    isDue = false;
  };
  return { wake, wait };
}
