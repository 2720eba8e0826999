//! Streams as an operator may change them, behind the backs of those who use them.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use muster_bus::Bus;
use muster_contract::limits::DUPLICATE_WINDOW;
use muster_contract::subjects::stream;
use serde_json::{Value, json};

use crate::system::DEADLINE;
use crate::wait::until;

/// Changes the configuration of a stream.
///
/// # Panics
///
/// Where the server refuses it.
pub async fn edit(bus: &Bus, stream: &str, change: impl FnOnce(&mut Value)) {
    let api = |verb: String, body: Value| async move {
        let answer = bus.request(&format!("$JS.API.{verb}"), body.to_string().into(), DEADLINE).await;
        serde_json::from_slice::<Value>(&answer.unwrap()).unwrap()
    };
    let mut config = api(format!("STREAM.INFO.{stream}"), json!({})).await["config"].take();
    change(&mut config);
    let answer = api(format!("STREAM.UPDATE.{stream}"), config).await;
    assert!(answer["error"].is_null(), "{answer}");
}

/// UPLINK takes any number of reports of a device, and recognises message ids for as long as other streams do: for tests that
/// look at what was sent, where nobody removes it.
///
/// # Panics
///
/// Where the server refuses it.
pub async fn keep_all_of_uplink(bus: &Bus) {
    edit(bus, stream::UPLINK, |config| {
        config["max_msgs_per_subject"] = json!(-1);
        config["discard_new_per_subject"] = json!(false);
        config["duplicate_window"] = json!(DUPLICATE_WINDOW.as_nanos() as u64);
    })
    .await;
}

/// LEDGER forgets everything up to a position, as if it had aged out.
///
/// # Panics
///
/// Where it does not.
pub async fn forget_up_to(bus: &Bus, position: u64) {
    let last = bus.stream_state(stream::LEDGER).await.unwrap().last_seq;
    edit(bus, stream::LEDGER, |config| {
        config["max_msgs"] = json!(last - position);
    })
    .await;
    let first = || async { bus.stream_state(stream::LEDGER).await.unwrap().first_seq };
    until("LEDGER forgets", first, |first| *first == position + 1).await;
    edit(bus, stream::LEDGER, |config| {
        config["max_msgs"] = json!(-1);
    })
    .await;
}

/// Stops DOWNLINK's flow into LEDGER; returns the settings that [`let_through`] restores.
///
/// # Panics
///
/// Where the server refuses it.
pub async fn hold_back(bus: &Bus) -> Value {
    let mut sources = Value::Null;
    edit(bus, stream::LEDGER, |config| sources = config["sources"].take()).await;
    assert!(sources.is_array(), "LEDGER has sources: {sources}");
    sources
}

/// LEDGER takes from DOWNLINK again, and what it has missed first.
///
/// # Panics
///
/// Where the server refuses it.
pub async fn let_through(bus: &Bus, sources: &Value) {
    edit(bus, stream::LEDGER, |config| config["sources"] = sources.clone()).await;
}
