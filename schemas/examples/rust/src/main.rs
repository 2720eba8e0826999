//! Proves the views in the bucket: rebuilds each from the facts of LEDGER and compares the digests. The folded state is left to
//! the next run, which reads only the tail. Prints a line of JSON for each view, and ends with 1 where one is not what the
//! facts give, and with 2 where nothing can be said; then nothing is left, because the state may be what is wrong. A view that
//! was written before what was read already has to show what is so still: one that has changed since is written again, which is
//! waited for.
//!
//! Where LEDGER has forgotten its first fact and there is no snapshot, its window alone gives the present, but not every moment
//! at which a quiet view was written. So the window is read to its end, and every digest compared with what the hub tells of
//! that fact (`muster.query.digests`), before the bucket is looked at.
//!
//! ```sh
//! cargo run --package muster-example -- proof-rs.json [nats://127.0.0.1:4222]
//! ```

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "it is a program for a terminal")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use muster_contract::subjects::ViewKey;
use muster_contract::view::content_digest;
use muster_example::fleet::Fleet;
use muster_example::ledger::{Hub, ledger_seq};
use muster_example::snapshot::Window;
use muster_example::{Result, snapshot};
use serde_json::{Value, json};

/// Digests of views by key.
type Digests = BTreeMap<String, Value>;

/// Exit code where no view was found right or wrong.
const NOTHING_SAID: u8 = 2;
/// For a view that has changed to be written again.
const WRITTEN_WITHIN: Duration = Duration::from_secs(10);
/// Between two looks at it.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

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
    let mut all_proven = true;
    if fleet.as_of.ledger_seq == 0 && ledger.first > 1 {
        all_proven = window_is_proven(&hub, &mut fleet, &ledger).await?;
    }
    for (key, theirs) in hub.views().await? {
        // Who waited for one in vain waits for no other.
        let patience = if all_proven { WRITTEN_WITHIN } else { Duration::ZERO };
        let Some(theirs) = up_to_date(&hub, &key, theirs, &fleet, patience).await? else { continue };
        let (key_text, seq) = (key.to_string(), ledger_seq(&theirs));
        let read = hub.read_until(&mut fleet, seq).await?;
        let ours = digest(&fleet, &key);
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

/// The view, as old as it is where it shows what is so still; none where it went.
async fn up_to_date(
    hub: &Hub,
    key: &ViewKey,
    mut theirs: Value,
    fleet: &Fleet,
    patience: Duration,
) -> Result<Option<Value>> {
    let until = Instant::now() + patience;
    let ours = digest(fleet, key);
    while ledger_seq(&theirs) < fleet.as_of.ledger_seq && theirs["digest"] != ours && Instant::now() < until {
        tokio::time::sleep(LOOK_AGAIN).await;
        let Some(now) = hub.view(key).await? else { return Ok(None) };
        theirs = now;
    }
    Ok(Some(theirs))
}

/// The digest that the facts give; null where there is no such view.
fn digest(fleet: &Fleet, key: &ViewKey) -> Value {
    fleet.view(key).map(|view| view["digest"].clone()).unwrap_or_default()
}

/// Reads all that LEDGER still has, and whether the present that it gives is what the hub tells of it.
async fn window_is_proven(hub: &Hub, fleet: &mut Fleet, ledger: &Window) -> Result<bool> {
    let (first, seq) = (ledger.first, ledger.last);
    eprintln!("LEDGER begins with {first}: its window is compared with what the hub tells as of {seq}");
    let mut read = hub.read_until(fleet, seq).await?;
    let ours =
        fleet.views().into_iter().map(|(key, view)| (key.to_string(), view["digest"].clone())).collect();
    let theirs = hub.digests(seq).await?;
    let mut wrong = Vec::new();
    for (key, own, told) in beside(&ours, &theirs) {
        let proven = own == told;
        println!(
            "{}",
            json!({ "key": key, "ledgerSeq": seq, "read": read, "digest": own, "told": told, "proven": proven })
        );
        read = 0;
        if !proven {
            wrong.push(format!(
                "{key} first: the window gives {}, the hub tells {}",
                json!(own),
                json!(told)
            ));
        }
    }
    if let Some(first) = wrong.first() {
        eprintln!("{} differ, {first}. It is wrong, or LEDGER has lost what still holds", wrong.len());
    }
    Ok(wrong.is_empty())
}

/// Every key of either, with the digest that each has of it.
fn beside<'a>(
    ours: &'a Digests,
    theirs: &'a Digests,
) -> Vec<(&'a String, Option<&'a Value>, Option<&'a Value>)> {
    let keys: BTreeSet<_> = ours.keys().chain(theirs.keys()).collect();
    keys.into_iter().map(|key| (key, ours.get(key), theirs.get(key))).collect()
}
