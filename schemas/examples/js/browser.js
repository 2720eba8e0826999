// Connects a page to a hub by WebSocket, with the same role, inbox and calls as connect.js. It needs nothing of Node.js: a bundler,
// or an import map for `@nats-io/nats-core`, makes it a module of your page.
//
//     const nc = await hub("wss://hub.example:8081", await file.text()); // the credentials file that a person chose
import { credsAuthenticator, wsconnect } from "@nats-io/nats-core";

/** The inbox of the user's public key, which is the subject of the token in the credentials file. */
function ownInbox(creds) {
  const claims = /JWT-----\s+(\S+)/.exec(creds)[1].split(".")[1];
  return `_INBOX.${JSON.parse(atob(claims.replaceAll("-", "+").replaceAll("_", "/"))).sub}`;
}

/** A connection that is made again after every break. `creds` is the text of a credentials file; an open hub needs none. */
export async function hub(servers, creds) {
  const wanted = { servers, maxReconnectAttempts: -1 };
  if (creds) {
    wanted.authenticator = credsAuthenticator(new TextEncoder().encode(creds));
    wanted.inboxPrefix = ownInbox(creds);
  }
  return await wsconnect(wanted);
}
