//! An attacker's connection: the library's client with the credentials of one device or one reader, and nothing of
//! Muster's between it and the server.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_nats::{Client, ConnectOptions};
use bytes::Bytes;
use muster_contract::DeviceKey;
use muster_identity::{Role, creds, jwt, roles};
use serde_json::Value;

use crate::guarded::Guarded;

/// Commands the client may queue: few, so that a flood is as fast as the server reads and memory stays small.
const CAPACITY: usize = 256;
/// Longer than any trial.
const NEVER: Duration = Duration::from_secs(24 * 60 * 60);
/// How long an attacker waits for an answer.
pub const ANSWER_PATIENCE: Duration = Duration::from_secs(10);

/// Connects a device.
///
/// # Errors
/// The server does not let it in.
pub async fn device(hub: &Guarded, key: &DeviceKey) -> Result<Client, String> {
    let file = hub.dir().join(format!("{}_{}.creds", key.site, key.device));
    connect(hub, &file, format!("_INBOX_{}_{}", key.site, key.device)).await
}

/// Connects a reader.
///
/// # Errors
/// The server does not let it in.
pub async fn reader(hub: &Guarded, role: Role) -> Result<Client, String> {
    user(hub, &hub.creds(role)).await
}

/// Connects somebody with a credentials file of an account other than the devices'.
///
/// # Errors
/// The server does not let it in.
pub async fn user(hub: &Guarded, file: &Path) -> Result<Client, String> {
    let text = std::fs::read_to_string(file).unwrap();
    let user = jwt::read(creds::token(&text).unwrap()).unwrap().sub;
    connect(hub, file, roles::inbox(&user)).await
}

async fn connect(hub: &Guarded, file: &Path, inbox: String) -> Result<Client, String> {
    let mut options = ConnectOptions::with_credentials_file(file).await.map_err(|error| error.to_string())?;
    if let Some(authority) = hub.authority() {
        options = options.add_root_certificates(authority.to_owned()).require_tls(true);
    }
    let is_connected = Arc::new(AtomicBool::new(false));
    let was_connected = Arc::clone(&is_connected);
    let options = options
        .custom_inbox_prefix(inbox)
        .client_capacity(CAPACITY)
        .request_timeout(Some(ANSWER_PATIENCE))
        // A connection that the hub ends stays ended: what an attacker holds can be counted.
        .reconnect_delay_callback(
            move |_| if was_connected.load(Ordering::Relaxed) { NEVER } else { Duration::ZERO },
        )
        // The library prints what the server refuses otherwise.
        .event_callback(|_| async {});
    let client = Box::pin(options.connect(hub.url())).await.map_err(|error| error.to_string())?;
    is_connected.store(true, Ordering::Relaxed);
    Ok(client)
}

/// The answer to a request; nothing where none comes.
pub async fn ask(client: &Client, subject: String, body: impl Into<Bytes>) -> Option<Value> {
    let answer = client.request(subject, body.into()).await.ok()?;
    Some(serde_json::from_slice(&answer.payload).unwrap_or(Value::Null))
}

/// True where an answer of the JetStream API, or of a service, says that it refuses.
pub fn is_refused(answer: &Value) -> bool {
    !answer["error"].is_null()
}
