//! Proves the views in the bucket: rebuilds each from the facts of LEDGER and compares the digests. The folded state is left to
//! the next run, which reads only the tail. Prints a line of JSON for each view, and ends with 1 where one is not what the
//! facts give, and with 2 where nothing can be said; then nothing is left, because the state may be what is wrong. A view that is older than what was read already
//! is skipped: it is proven before more is read, or not at all.
//!
//! ```sh
//! cargo run --package muster-example -- proof-rs.json [nats://127.0.0.1:4222]
//! ```

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "it is a program for a terminal")]

use std::path::Path;
use std::process::ExitCode;

use muster_contract::view::content_digest;
use muster_example::ledger::{Hub, ledger_seq};
use muster_example::{Result, snapshot};
use serde_json::json;

/// Exit code where no view was found right or wrong.
const NOTHING_SAID: u8 = 2;

#[tokio::main]
async fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let Some(path) = arguments.next() else {
        eprintln!("usage: prove SNAPSHOT [URL]");
        return NOTHING_SAID.into();
    };
    let url = arguments.next().unwrap_or_else(|| "nats://127.0.0.1:4222".to_owned());
    match prove(Path::new(&path), &url).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            NOTHING_SAID.into()
        }
    }
}

/// Whether every view is what the facts give.
async fn prove(path: &Path, url: &str) -> Result<bool> {
    let hub = Hub::connect(url).await?;
    let ledger = hub.window().await?;
    let mut fleet = snapshot::load(path, &ledger)?;
    if fleet.as_of.ledger_seq == 0 && ledger.first > 1 {
        let words = "without a snapshot of what was before, views of before cannot be proven";
        return Err(format!("LEDGER begins with {}: {words}", ledger.first).into());
    }
    let mut all_proven = true;
    for (key, theirs) in hub.views().await? {
        let (key_text, seq) = (key.to_string(), ledger_seq(&theirs));
        if fleet.as_of.ledger_seq > seq {
            println!("{}", json!({ "key": key_text, "ledgerSeq": seq, "skipped": true }));
            continue;
        }
        let read = hub.read_until(&mut fleet, seq).await?;
        let ours = fleet.view(&key).map(|view| view["digest"].clone()).unwrap_or_default();
        // Its digest is what the facts give, and its own.
        let proven = ours == theirs["digest"] && json!(content_digest(&theirs)) == ours;
        println!(
            "{}",
            json!({ "key": key_text, "ledgerSeq": seq, "read": read, "digest": ours, "proven": proven })
        );
        all_proven &= proven;
    }
    if all_proven {
        snapshot::save(path, fleet, &ledger)?;
    }
    Ok(all_proven)
}
