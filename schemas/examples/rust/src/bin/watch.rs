//! A table of deployments by standing and freshness, live from the bucket `views`, printed after every change.
//!
//! `stale` devices were heard before and `never` devices were not: what they run now is unknown. A view that no rollup has
//! renewed in time is marked OLD. `leaving` counts devices that still have a deployment which they should not have.
//!
//! Run it with `muster-example-watch --url nats://127.0.0.1:4222`.

#![allow(clippy::print_stdout, reason = "it is a program for a terminal")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use async_nats::jetstream::{self, kv::Operation};
use clap::Parser;
use futures_util::StreamExt as _;
use jiff::Timestamp;
use muster_example::hub::{HubArgs, Result};
use serde_json::Value;
use tokio::time::timeout;

const FRESHNESS: [&str; 3] = ["fresh", "stale", "never"];
/// Time between two checks whether a view has become old.
const LOOK: Duration = Duration::from_secs(5);

fn row([deployment, verdict, standing, fresh, stale, never, all]: [&str; 7]) -> String {
    format!("{deployment:<36} {verdict:<15} {standing:<10} {fresh:>6} {stale:>6} {never:>6} {all:>6}\n")
}

/// A row for each standing: targets by freshness, and all of them.
fn rows(view: &Value) -> String {
    let valid_until = view["asOf"]["validUntil"].as_str().and_then(|time| time.parse::<Timestamp>().ok());
    let is_old = valid_until.is_some_and(|time| time < Timestamp::now());
    let verdict = if is_old { "OLD" } else { view["verdict"].as_str().unwrap_or_default() };
    let (deployment, counts) = (view["deployment"].as_str().unwrap_or_default(), view["counts"].as_object());
    let mut rows = String::new();
    for (standing, by) in counts.into_iter().flatten() {
        let [fresh, stale, never] = FRESHNESS.map(|kind| by[kind].as_u64().unwrap_or(0));
        let [f, s, n, all] = [fresh, stale, never, fresh + stale + never].map(|count| count.to_string());
        rows += &row([deployment, verdict, standing, &f, &s, &n, &all]);
    }
    if let Some(leaving) = view["leaving"].as_u64().filter(|leaving| *leaving > 0) {
        rows += &row([deployment, verdict, "leaving", "-", "-", "-", &leaving.to_string()]);
    }
    rows
}

fn table(views: &BTreeMap<String, Value>) -> String {
    let stops = views.values().filter_map(|view| view["hub"]["unheard"].as_array()).flatten();
    let unheard: BTreeSet<u64> = stops.filter_map(|stop| stop["partition"].as_u64()).collect();
    let mut lines = row(["DEPLOYMENT", "VERDICT", "STANDING", "FRESH", "STALE", "NEVER", "ALL"]);
    views.values().for_each(|view| lines += &rows(view));
    if !unheard.is_empty() {
        lines += &format!("The hub does not hear partitions {unheard:?}: their devices count as stale.\n");
    }
    lines
}

#[tokio::main]
async fn main() -> Result<()> {
    let client = HubArgs::parse().connect(None).await?;
    let bucket = jetstream::new(client).get_key_value("views").await?;
    let mut watch = bucket.watch_with_history("deployment.*").await?;
    let (mut views, mut shown, mut is_whole) = (BTreeMap::new(), String::new(), false);
    loop {
        if let Ok(entry) = timeout(LOOK, watch.next()).await {
            let entry = entry.ok_or("the watch has ended")??;
            is_whole |= entry.delta == 0;
            match entry.operation {
                Operation::Put => _ = views.insert(entry.key, serde_json::from_slice(&entry.value)?),
                _ => _ = views.remove(&entry.key),
            }
        }
        let lines = table(&views);
        if is_whole && lines != shown {
            println!("{lines}");
            shown = lines;
        }
    }
}
