//! Sends a device its renewed JWT over the hub. The device checks the JWT and decides whether it uses it.

use muster_bus::Outgoing;
use muster_contract::credential::Credential;
use muster_contract::subjects::{self, stream};
use muster_contract::version::{ApiVersion, kind};
use muster_contract::{DeviceKey, decode};
use muster_identity::Role;

use super::error::AuthError;
use super::key_store::KeyStore;
use crate::config::Connection;
use crate::reach;

/// Publishes it with the operator's own credentials and waits until the hub has stored it.
pub(super) async fn run(
    store: &KeyStore,
    device: &DeviceKey,
    token: &str,
    connection: &Connection,
) -> Result<(), AuthError> {
    let creds = Some(store.path(&format!("creds/{}.creds", Role::Operator.as_str())));
    let connection = Connection { creds, inbox_prefix: None, ..connection.clone() };
    let bus = reach::connect(&connection).await.map_err(|why| AuthError::NotSent(Box::new(why.into())))?;
    let document =
        Credential { api_version: ApiVersion::V1, kind: kind::Credential::Credential, jwt: token.to_owned() };
    let message = Outgoing {
        expected_stream: Some(stream::DOWNLINK),
        ..Outgoing::new(subjects::credential(device), decode::to_bytes(&document))
    };
    let stored = tokio::time::timeout(connection.timeout, bus.publish(message)).await;
    let stored = stored.map_err(|_| AuthError::StoreTimedOut(connection.timeout));
    let stored = stored.and_then(|stored| stored.map_err(AuthError::NotStored));
    stored.map(drop).map_err(|why| AuthError::NotSent(Box::new(why)))
}
