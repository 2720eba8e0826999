//! A view of your own: targets by standing for each value of a label, durable, and checked against the hub.
//!
//! Position and rows are in one file that is replaced whole, so a program that was killed reads only the tail of LEDGER. Each
//! line has the table, and `agrees`: for the same sequence the hub's view of each group has the digest that
//! `muster.query.digests` names, and the same sums; null while the hub cannot say. Freshness and missing reports are
//! left out.
//!
//! Run it with `muster-example-view ring ring.json`.

#![allow(clippy::print_stdout, reason = "it is a program for a terminal")]

use async_nats::Client;
use async_nats::jetstream::{self, consumer::DeliverPolicy, consumer::pull::OrderedConfig};
use clap::Parser;
use futures_util::StreamExt as _;
use muster_example::by_label::{Groups, apply, load, save, sums, table};
use muster_example::digest::content_digest;
use muster_example::hub::{HubArgs, Result, ask, digests};
use serde_json::json;

#[derive(Parser)]
struct Args {
    /// A label, such as ring
    label: String,
    /// Where position and rows are kept
    file: std::path::PathBuf,
    #[command(flatten)]
    hub: HubArgs,
}

/// Whether the hub's views of the groups are the same at a sequence.
async fn agrees(client: &Client, label: &str, seq: u64, groups: &Groups) -> Result<bool> {
    let shown = digests(client, seq).await?;
    for (value, counts) in groups {
        let question = json!({ "label": label, "value": value, "atSeq": seq });
        let view = ask(client, "muster.query.group", &question).await?;
        if sums(&view) != *counts || shown[format!("group.{label}.{value}")] != content_digest(&view) {
            return Ok(false);
        }
    }
    Ok(true)
}

#[tokio::main]
async fn main() -> Result<()> {
    let Args { label, file, hub } = Args::parse();
    let client = hub.connect(None).await?;
    let stream = jetstream::new(client.clone()).get_stream("LEDGER").await?;
    let ledger = stream.cached_info();
    let mut state = load(&file, &ledger.created.to_string(), ledger.state.first_sequence);
    let start_sequence = state["seq"].as_u64().unwrap_or(0) + 1;
    let config = OrderedConfig {
        deliver_policy: DeliverPolicy::ByStartSequence { start_sequence },
        ..OrderedConfig::default()
    };
    let mut facts = stream.create_consumer(config).await?.messages().await?;
    let (mut is_new, mut read) = (true, 0);
    while let Some(message) = facts.next().await.transpose()? {
        let info = message.info().map_err(|error| error.to_string())?;
        let mut subject = message.subject.splitn(3, '.').skip(1);
        let (kind, name) = (subject.next().unwrap_or_default(), subject.next().unwrap_or_default());
        if kind != "hub" {
            // A pulse is kept for a short time: no place to resume from.
            apply(&mut state, kind, name, serde_json::from_slice(&message.payload)?);
            state["seq"] = info.stream_sequence.into();
            (is_new, read) = (true, read + 1);
        }
        if is_new && info.pending == 0 {
            save(&file, &state)?;
            let (groups, seq) = (table(&state, &label), state["seq"].as_u64().unwrap_or(0));
            let agreed = agrees(&client, &label, seq, &groups).await.ok();
            let line = json!({ "ledgerSeq": seq, "read": read, label.as_str(): groups, "agrees": agreed });
            println!("{line}");
            is_new = agreed.is_none();
        }
    }
    Err("LEDGER ended".into())
}
