//! Prints a line for each notice of a subscription: the present, then every change.
//!
//! A notice is confirmed after it was printed, so a program that comes back under the same name continues after the last one
//! that it confirmed: it first prints every change that it missed, several of which one notice may cover. A live message only
//! says that there is a new notice: the notice itself is read by direct get.
//!
//! Run it with `muster-example-notify night-shift --deployment web`.

#![allow(clippy::print_stdout, reason = "it is a program for a terminal")]

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use clap::Parser;
use futures_util::StreamExt as _;
use muster_example::hub::{HubArgs, Result, ask, missed, newest};
use serde_json::{Value, json};
use tokio::time::timeout;

/// Time between two looks without a live message, which may be lost.
const LOOK: Duration = Duration::from_secs(10);
/// Time after which a subscription is renewed; its lease is an hour.
const RENEW: Duration = Duration::from_secs(600);

#[derive(Parser)]
struct Args {
    /// Name of the subscription, your own
    name: String,
    /// Only this deployment [default: the whole fleet]
    #[arg(long)]
    deployment: Option<String>,
    #[command(flatten)]
    hub: HubArgs,
}

fn show(notice: &Value) {
    let (state, as_of) = (&notice["state"], &notice["asOf"]);
    let mut line =
        json!({ "number": notice["number"], "event": notice["event"], "ledgerSeq": as_of["ledgerSeq"] });
    let parts = [(state, ["status", "verdict", ""]), (notice, ["reason", "message", "changes"])];
    for (part, names) in parts {
        names
            .iter()
            .filter(|name| !part[**name].is_null())
            .for_each(|name| line[*name] = part[*name].clone());
    }
    println!("{line}");
}

#[tokio::main]
async fn main() -> Result<()> {
    let Args { name, deployment, hub } = Args::parse();
    let client = hub.connect(None).await?;
    let mut live = client.subscribe(format!("muster.live.notice.{name}")).await?;
    let wanted = deployment
        .map_or_else(|| json!({ "name": name }), |id| json!({ "name": name, "id": id, "waitFor": true }));
    let mut seen = ask(&client, "muster.notify.subscribe", &wanted).await?["seen"].as_u64();
    let (mut renewed_at, mut connects) = (Instant::now(), 0);
    loop {
        let mut notice =
            newest(&client, "NOTICES", &format!("muster.notice.{name}")).await?.unwrap_or_default();
        if notice["number"].as_u64() > seen {
            let now = (notice["number"].as_u64(), client.statistics().connects.load(Relaxed));
            if seen > Some(0) && now != (seen.map(|seen| seen + 1), connects) {
                missed(&client, &name, &notice).await?.iter().for_each(|line| println!("{line}"));
                notice["changes"].take();
            }
            show(&notice);
            ((seen, connects), renewed_at) = (now, Instant::now());
            if notice["event"] == "ended" {
                return Err("the subscription has ended".into());
            }
            ask(&client, "muster.notify.confirm", &json!({ "name": name, "number": seen })).await?;
        } else if renewed_at.elapsed() > RENEW {
            ask(&client, "muster.notify.subscribe", &wanted).await?;
            renewed_at = Instant::now();
        }
        let _ = timeout(LOOK, live.next()).await;
    }
}
