//! Accepts, revokes and lists client certificates of Margo's HTTP API, each as one device, which may speak for others. The hub keeps
//! them in the bucket `http_devices`: gateways read them with each request, and only operators write them. This module signs nothing
//! and needs no directory of keys.

use muster_bus::{Bus, Outgoing};
use muster_contract::DeviceId;
use muster_contract::http_device::{CLIENTS, ClientIdentity, HttpClient, client_subject};
use muster_contract::subjects::stream;
use muster_contract::version::ApiVersion;
use tokio::time::timeout;

use super::children;
use super::context::AuthContext;
use super::error::AuthError;
use crate::config::{Connection, EnrollArgs, PollLease};
use crate::error::CtlError;
use crate::{reach, render};

/// Accepts a certificate as a device.
pub(super) async fn accept(
    context: &mut AuthContext<'_>,
    identity: &ClientIdentity,
    args: &EnrollArgs,
) -> Result<(), CtlError> {
    // A bad file is reported before anything is asked.
    let named = children::named(args)?;
    let (connection, bus) = connected(context).await?;
    let known = read(&bus, identity).await?;
    let is_another = |known: &&HttpClient| !known.revoked && known.device != args.device;
    if let Some(known) = known.as_ref().filter(is_another).filter(|_| !args.replace) {
        let (identity, device) = (identity.to_string(), known.device.to_string());
        return Err(AuthError::AnotherDevice { identity, device }.into());
    }
    let lease_before =
        known.filter(|known| known.device == args.device).and_then(|known| known.poll_lease_ms);
    let others = all(&bus).await?;
    children::check(identity, &args.device, &named, &others)?;
    let client = HttpClient {
        api_version: ApiVersion::V1,
        spiffe_id: identity.to_string(),
        device: args.device.clone(),
        children: children::recorded(&args.device, named, &others),
        poll_lease_ms: args.poll_lease.map_or(lease_before, |PollLease(lease)| lease),
        revoked: false,
        changed_at: context.clock.now(),
    };
    write(&bus, &connection, &client).await?;
    context.show(&client, |client, _| render::auth::client(client))
}

/// Revokes a certificate, or its right to speak for one device.
pub(super) async fn revoke(
    context: &mut AuthContext<'_>,
    identity: &ClientIdentity,
    child: Option<&DeviceId>,
) -> Result<(), CtlError> {
    let (connection, bus) = connected(context).await?;
    let known = read(&bus, identity).await?;
    let known = known.ok_or_else(|| AuthError::NoClient(identity.to_string()))?;
    let changed_at = context.clock.now();
    let client = match child {
        Some(child) => HttpClient { changed_at, ..children::without(known, child)? },
        None => HttpClient { revoked: true, changed_at, ..known },
    };
    write(&bus, &connection, &client).await?;
    context.show(&client, |client, _| render::auth::client(client))
}

/// Lists all certificates that were ever accepted.
pub(super) async fn list(context: &mut AuthContext<'_>) -> Result<(), CtlError> {
    let (_, bus) = connected(context).await?;
    let mut clients = all(&bus).await?;
    clients.sort_by(|a, b| (&a.device, &a.spiffe_id).cmp(&(&b.device, &b.spiffe_id)));
    context.show(&clients, |clients, _| render::auth::clients(clients))
}

async fn all(bus: &Bus) -> Result<Vec<HttpClient>, AuthError> {
    let (mut clients, mut from) = (Vec::new(), 1);
    while let Some(entry) = bus.next_of(stream::HTTP_DEVICES, from, CLIENTS).await? {
        from = entry.stream_seq + 1;
        clients.extend(serde_json::from_slice::<HttpClient>(&entry.payload));
    }
    Ok(clients)
}

async fn connected(context: &AuthContext<'_>) -> Result<(Connection, Bus), CtlError> {
    let connection = context.connection.check()?;
    let bus = reach::connect(&connection).await?;
    Ok((connection, bus))
}

async fn read(bus: &Bus, identity: &ClientIdentity) -> Result<Option<HttpClient>, AuthError> {
    let subject = client_subject(identity.as_str());
    let entry = bus.next_of(stream::HTTP_DEVICES, 1, &subject).await?;
    Ok(entry.and_then(|entry| serde_json::from_slice(&entry.payload).ok()))
}

async fn write(bus: &Bus, connection: &Connection, client: &HttpClient) -> Result<(), AuthError> {
    // Cannot fail: an object of texts.
    let document = serde_json::to_vec(client).unwrap_or_default();
    let message = Outgoing {
        expected_stream: Some(stream::HTTP_DEVICES),
        ..Outgoing::new(client_subject(&client.spiffe_id), document)
    };
    let stored = timeout(connection.timeout, bus.publish(message)).await;
    stored.map_err(|_| AuthError::ClientTimedOut(connection.timeout))??;
    Ok(())
}
