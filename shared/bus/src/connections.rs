//! The connections of users at all servers of the cluster, by the system account: events, lists, and how to end one.
//!
//! It needs a bus that has connected with the credentials of a system-account user. Only clients that came with a JWT
//! are listed; a client that a server still authenticates, routes, and the servers of sites are not. Events come at most
//! once: whoever counts connections by them must list all from time to time.
//!
//! It decides nothing: how many connections a key may have is the caller's.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _};
use muster_contract::Timestamp;
use muster_identity::claims::{CONNECTED, DISCONNECTED};
use muster_identity::jwt;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::time::timeout;

use crate::bus::Bus;
use crate::read::{ReadError, Subscription};
use crate::request::RequestError;

/// Every server answers to this name.
const EVERY_SERVER: &str = "PING";
/// How long a server may take to answer.
const SERVER_ANSWER: Duration = Duration::from_secs(5);
/// After this long without a further server, all have answered who is there.
const SERVERS_SILENCE: Duration = Duration::from_millis(500);
/// Connections in one answer: with their tokens some hundred KiB.
const PAGE: usize = 256;
/// Open connections, as the server's API numbers the states.
const OPEN: u8 = 0;
/// Ends of connections handed out at once.
const ENDS_MAX: usize = 1024;

/// A connection, by the server that has it: the server never gives a number twice.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId {
    /// The server's id.
    pub server: String,
    /// The connection's number there.
    pub number: u64,
}

/// An open connection of a user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connection {
    /// Which.
    pub id: ConnectionId,
    /// The user's public key.
    pub key: String,
    /// The name in the user's JWT.
    pub name: String,
    /// The value of the JWT's tag `role`; empty without one.
    pub role: String,
    /// When it was opened, by its server's clock.
    pub started_at: Timestamp,
}

/// What a server says of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConnectionEvent {
    /// A user has connected.
    Opened(Connection),
    /// A connection has ended.
    Closed(ConnectionId),
}

/// The events of all servers.
#[derive(Debug)]
pub struct ConnectionEvents {
    opened: Subscription,
    closed: Subscription,
}

impl ConnectionEvents {
    /// At least one event, and all others that are there; `None` when the bus is gone. Cancel-safe.
    ///
    /// A connection's beginning and end come on two subjects. The server sends the beginning first, so it has arrived
    /// when the end is read: ends are read first, then every beginning, and beginnings are given first.
    pub async fn next_batch(&mut self) -> Option<Vec<ConnectionEvent>> {
        let first = tokio::select! {
            opened = self.opened.next() => opened?,
            closed = self.closed.next() => closed?,
        };
        let mut events: Vec<_> = event(&first.subject, &first.payload).into_iter().collect();
        for (subscription, most) in [(&mut self.closed, ENDS_MAX), (&mut self.opened, usize::MAX)] {
            for _ in 0..most {
                let Some(Some(delivery)) = subscription.next().now_or_never() else { break };
                events.extend(event(&delivery.subject, &delivery.payload));
            }
        }
        events.sort_by_key(|event| matches!(event, ConnectionEvent::Closed(_)));
        Some(events)
    }
}

impl Bus {
    /// Follows the connections of all accounts at all servers.
    ///
    /// # Errors
    /// The connection is gone.
    pub async fn connection_events(&self) -> Result<ConnectionEvents, ReadError> {
        let opened = self.subscribe(CONNECTED).await?;
        let closed = self.subscribe(DISCONNECTED).await?;
        Ok(ConnectionEvents { opened, closed })
    }

    /// Lists the open connections at all servers that answer.
    ///
    /// # Errors
    /// No server answers, or one answers something else than a list.
    pub async fn connections(&self) -> Result<Vec<Connection>, RequestError> {
        let mut connections = Vec::new();
        for server in self.servers().await? {
            for page in 0.. {
                let listed = self.connections_page(&server, page * PAGE).await?;
                let last = listed.connections.len() < PAGE;
                connections.extend(listed.connections.into_iter().filter_map(|info| info.of(&server)));
                if last {
                    break;
                }
            }
        }
        Ok(connections)
    }

    /// Ends a connection; false where its server has none of this number any more.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn end_connection(&self, id: &ConnectionId) -> Result<bool, RequestError> {
        let subject = format!("$SYS.REQ.SERVER.{}.KICK", id.server);
        let body = Bytes::from(json!({ "cid": id.number }).to_string());
        let answer = self.request(&subject, body, SERVER_ANSWER).await?;
        Ok(serde_json::from_slice::<Refusal>(&answer).is_err())
    }

    /// The ids of all servers that answer.
    async fn servers(&self) -> Result<BTreeSet<String>, RequestError> {
        let subject = list_subject(EVERY_SERVER);
        let failed = |_| RequestError::Disconnected { subject: subject.clone() };
        let inbox = self.wire.client.new_inbox();
        let mut answers = self.wire.client.subscribe(inbox.clone()).await.map_err(failed)?;
        let body = Bytes::from(json!({ "limit": 1 }).to_string());
        let asked = self.wire.post(subject.clone().into(), Some(inbox.into()), None, body).await;
        asked.map_err(|source| RequestError::Refused { subject: subject.clone(), source })?;
        let (mut servers, mut patience) = (BTreeSet::new(), SERVER_ANSWER);
        while let Ok(Some(answer)) = timeout(patience, answers.next()).await {
            if let Ok(answer) = serde_json::from_slice::<Answer<Unread>>(&answer.payload) {
                servers.insert(answer.server.id);
            }
            patience = SERVERS_SILENCE;
        }
        match servers.is_empty() {
            true => Err(RequestError::Timeout { subject, timeout: SERVER_ANSWER }),
            false => Ok(servers),
        }
    }

    async fn connections_page(&self, server: &str, offset: usize) -> Result<Page, RequestError> {
        let subject = list_subject(server);
        let body = json!({ "auth": true, "state": OPEN, "limit": PAGE, "offset": offset }).to_string();
        let answer = self.request(&subject, body.into(), SERVER_ANSWER).await?;
        let read = serde_json::from_slice::<Answer<Page>>(&answer);
        read.map(|answer| answer.data).map_err(|_| RequestError::Timeout { subject, timeout: SERVER_ANSWER })
    }
}

fn list_subject(server: &str) -> String {
    format!("$SYS.REQ.SERVER.{server}.CONNZ")
}

/// The event of a message; `None` for a client without a JWT.
fn event(subject: &str, payload: &[u8]) -> Option<ConnectionEvent> {
    let event: EventBody = serde_json::from_slice(payload).ok()?;
    let id = ConnectionId { server: event.server.id, number: event.client.id };
    if subject.ends_with(".DISCONNECT") {
        return Some(ConnectionEvent::Closed(id));
    }
    connection(id, &event.client.jwt, event.client.start).map(ConnectionEvent::Opened)
}

fn connection(id: ConnectionId, token: &str, started_at: Timestamp) -> Option<Connection> {
    // The server has checked the token; that it is whole is checked once more.
    let known = jwt::read(token).ok()?;
    let role = known.tag("role").unwrap_or_default().to_owned();
    Some(Connection { id, key: known.sub, name: known.name, role, started_at })
}

#[derive(Deserialize)]
struct ServerBody {
    id: String,
}

#[derive(Deserialize)]
struct EventBody {
    server: ServerBody,
    client: ClientBody,
}

#[derive(Deserialize)]
struct ClientBody {
    id: u64,
    start: Timestamp,
    #[serde(default)]
    jwt: String,
}

#[derive(Deserialize)]
struct Answer<T: DeserializeOwned> {
    server: ServerBody,
    #[serde(bound = "")]
    data: T,
}

/// An answer of which only the sender is of interest.
#[derive(Deserialize)]
struct Unread {}

/// The server's answer where it does not do what was asked.
#[derive(Deserialize)]
struct Refusal {
    #[serde(rename = "error")]
    _error: Unread,
}

#[derive(Deserialize)]
struct Page {
    #[serde(default)]
    connections: Vec<ConnectionInfo>,
}

#[derive(Deserialize)]
struct ConnectionInfo {
    cid: u64,
    start: Timestamp,
    #[serde(default)]
    jwt: String,
}

impl ConnectionInfo {
    fn of(self, server: &str) -> Option<Connection> {
        let id = ConnectionId { server: server.to_owned(), number: self.cid };
        connection(id, &self.jwt, self.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_without_a_token_opens_nothing_and_every_end_is_one() {
        let body =
            br#"{"server":{"id":"S"},"client":{"id":7,"start":"2026-11-23T22:16:12.187197339Z","user":"U"}}"#;
        assert_eq!(event("$SYS.ACCOUNT.A.CONNECT", body), None);
        let id = ConnectionId { server: "S".to_owned(), number: 7 };
        assert_eq!(event("$SYS.ACCOUNT.A.DISCONNECT", body), Some(ConnectionEvent::Closed(id)));
        assert_eq!(event("$SYS.ACCOUNT.A.DISCONNECT", b"garbage"), None);
    }

    #[test]
    fn a_server_that_ends_nothing_says_why() {
        let refused =
            br#"{"server":{"id":"S"},"error":{"code":500,"description":"no such client or leafnode id"}}"#;
        assert!(serde_json::from_slice::<Refusal>(refused).is_ok());
        assert!(serde_json::from_slice::<Refusal>(br#"{"server":{"id":"S"}}"#).is_err());
    }
}
