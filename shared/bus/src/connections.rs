//! Lists, follows and ends the connections of users at all servers of the cluster, through the system account.
//!
//! It needs a bus that is connected with the credentials of a system-account user. It covers only clients with a JWT, not
//! clients that a server still authenticates, routes, or leaf nodes. Events come at most once: a caller that counts
//! connections must also list them from time to time.
//!
//! The caller decides how many connections a key may have.

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
use crate::read::Subscription;
use crate::read_error::ReadError;
use crate::request::RequestError;

/// The server name to which every server answers.
const EVERY_SERVER: &str = "PING";
/// How long a server may take to answer.
const SERVER_ANSWER: Duration = Duration::from_secs(5);
/// Time without a further answer after which the list of servers counts as complete.
const SERVERS_SILENCE: Duration = Duration::from_millis(500);
/// Connections in one answer: with their tokens some hundred KiB.
const PAGE: usize = 256;
/// Open connections, as the server's API numbers the states.
const OPEN: u8 = 0;
/// Closed connections returned at once.
const CLOSED_MAX: usize = 1024;

/// The identity of a connection: its server, and its number there, which the server never reuses.
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
    /// Its identity.
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

/// A change that a server reports.
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
    /// At least one event, and all others that have arrived; `None` when the bus is gone. Cancel-safe.
    ///
    /// Opened and closed connections come on two subjects. The server sends "opened" first, so it has arrived when "closed"
    /// is read: this reads closed connections first, then all opened ones, and returns the opened ones first.
    pub async fn next_batch(&mut self) -> Option<Vec<ConnectionEvent>> {
        let first = tokio::select! {
            opened = self.opened.next() => opened?,
            closed = self.closed.next() => closed?,
        };
        let mut events: Vec<_> = event(&first.subject, &first.payload).into_iter().collect();
        for (subscription, most) in [(&mut self.closed, CLOSED_MAX), (&mut self.opened, usize::MAX)] {
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
    /// No server answers, or an answer is no list.
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

    /// Closes a connection; false if its server does not have it any more.
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
        let (mut servers, mut wait) = (BTreeSet::new(), SERVER_ANSWER);
        while let Ok(Some(answer)) = timeout(wait, answers.next()).await {
            if let Ok(answer) = serde_json::from_slice::<ServerAnswer<Ignored>>(&answer.payload) {
                servers.insert(answer.server.id);
            }
            wait = SERVERS_SILENCE;
        }
        if servers.is_empty() {
            Err(RequestError::Timeout { subject, timeout: SERVER_ANSWER })
        } else {
            Ok(servers)
        }
    }

    async fn connections_page(&self, server: &str, offset: usize) -> Result<ConnectionPage, RequestError> {
        let subject = list_subject(server);
        let body = json!({ "auth": true, "state": OPEN, "limit": PAGE, "offset": offset }).to_string();
        let answer = self.request(&subject, body.into(), SERVER_ANSWER).await?;
        let read = serde_json::from_slice::<ServerAnswer<ConnectionPage>>(&answer);
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
    // The server has verified the token; reading it checks its form once more.
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
struct ServerAnswer<T: DeserializeOwned> {
    server: ServerBody,
    #[serde(bound = "")]
    data: T,
}

/// The data of an answer that is not read.
#[derive(Deserialize)]
struct Ignored {}

/// The server's answer to a request that it refuses.
#[derive(Deserialize)]
struct Refusal {
    #[serde(rename = "error")]
    _error: Ignored,
}

#[derive(Deserialize)]
struct ConnectionPage {
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
    fn an_event_without_a_token_opens_nothing_but_may_close() {
        let body =
            br#"{"server":{"id":"S"},"client":{"id":7,"start":"2026-11-23T22:16:12.187197339Z","user":"U"}}"#;
        assert_eq!(event("$SYS.ACCOUNT.A.CONNECT", body), None);
        let id = ConnectionId { server: "S".to_owned(), number: 7 };
        assert_eq!(event("$SYS.ACCOUNT.A.DISCONNECT", body), Some(ConnectionEvent::Closed(id)));
        assert_eq!(event("$SYS.ACCOUNT.A.DISCONNECT", b"garbage"), None);
    }

    #[test]
    fn the_refusal_of_a_server_is_recognised() {
        let refused =
            br#"{"server":{"id":"S"},"error":{"code":500,"description":"no such client or leafnode id"}}"#;
        assert!(serde_json::from_slice::<Refusal>(refused).is_ok());
        assert!(serde_json::from_slice::<Refusal>(br#"{"server":{"id":"S"}}"#).is_err());
    }
}
