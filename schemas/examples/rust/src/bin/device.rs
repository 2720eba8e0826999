//! A device: it sends heartbeats, and reports the deployments of its desired state as installed. CONTRACT.md has the rules.
//!
//! It keeps nothing over a restart: each start begins a new epoch, of which the hub accepts 6 an hour, and loses unsent
//! reports. durable_device.py keeps its numbers and reports in a file, over kills and restarts.
//!
//! Run it with `muster-example-device plant7/press-4 --heartbeat 30`.

use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::{self, Context};
use clap::Parser;
use futures_util::StreamExt as _;
use jiff::Timestamp;
use muster_example::hub::{HubArgs, Result, newest};
use muster_example::outbox::Device;
use serde_json::{Value, json};
use tokio::time::timeout;

#[derive(Parser)]
struct Args {
    /// Site and name, such as plant7/press-4
    device: String,
    /// Seconds between two heartbeats
    #[arg(long, default_value_t = 30.0)]
    heartbeat: f64,
    #[command(flatten)]
    hub: HubArgs,
}

/// Sends a heartbeat, then the unsent reports.
async fn send(device: &mut Device, hub: &Context) -> Result<()> {
    let (beat, subject) = (device.beat().to_string(), format!("muster.report.{}", device.name));
    hub.client().publish(format!("muster.presence.{}", device.name), beat.into()).await?;
    for (seq, document) in device.unsent() {
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Msg-Id", format!("{}.{seq}", device.life));
        headers.insert("Nats-Expected-Stream", "UPLINK");
        hub.publish_with_headers(subject.clone(), headers, document.to_string().into()).await?.await?;
        device.sent.insert(seq);
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let Args { device, heartbeat, hub } = Args::parse();
    let name = device.replace('/', ".");
    let client = hub.connect(Some(format!("_INBOX_{}", name.replace('.', "_")))).await?;
    let mut live = client.subscribe(format!("muster.live.*.{name}")).await?;
    let known = newest(&client, "DOWNLINK", &format!("muster.receipt.{name}")).await?.unwrap_or_default();
    let epoch = (Timestamp::now().as_second() as u64).max(known["epoch"].as_u64().unwrap_or(0) + 1);
    let mut device = Device { name, epoch, life: uuid::Uuid::now_v7().to_string(), ..Device::default() };
    let properties = json!({ "supportedDeploymentTypes": ["simulated"] });
    device.report(
        json!({ "kind": "CapabilitiesReport", "properties": properties, "agentVersion": "device.rs 1" }),
    );
    let context = jetstream::new(client.clone());
    loop {
        let desired = newest(&client, "DOWNLINK", &format!("muster.desired.{}", device.name)).await;
        device.apply(&desired.ok().flatten().unwrap_or_default());
        // A report that is refused or unanswered is sent again after the next heartbeat.
        let _ = send(&mut device, &context).await;
        let wait = Duration::from_secs_f64(heartbeat * (0.8 + 0.2 * fastrand::f64()));
        if let Ok(Some(message)) = timeout(wait, live.next()).await {
            let document: Value = serde_json::from_slice(&message.payload)?;
            if document["kind"] == "Receipt" {
                device.receive(&document)?;
            }
        }
    }
}
