//! Tests that deployments which devices invent wait for those with targets.

use std::collections::BTreeMap;

use futures_util::{StreamExt, stream};
use muster_bus::ViewWatch;
use muster_contract::canonical::Digest;
use muster_tests::wait::{soon, until};
use serde_json::json;
use tokio::time::Instant;

use crate::ledger::Device;
use crate::{Hub, Rollup};

const REAL: usize = 20;
const INVENTED: usize = 10_000;
/// Views of invented deployments between a real report and its view: a turn of 64 as the report comes, those written while
/// LEDGER and the fold take it in, and a turn after. Without an order of their own it would be all that are left.
const BETWEEN_MAX: u64 = 1_000;
const BUCKET: &str = "KV_views";

/// Reports of devices that nobody wants to run anything.
async fn invent(hub: &Hub) {
    let facts = (0..INVENTED).map(|number| {
        let (device, seq) = (number / 100, number % 100 + 1);
        let id = format!("invented-{number}");
        let fact = json!({
            "apiVersion": "muster/v1", "kind": "StatusFact", "epoch": 1, "seq": seq, "head": 100,
            "observedAt": "2026-11-20T08:00:00Z", "receivedAt": "2026-11-20T08:00:00Z", "deployment": id,
            "generation": 1, "digest": Digest::of_bytes(id.as_bytes()).to_string(),
            "status": {"state": "installed"}, "components": [{"name": "main", "state": "installed"}],
            "current": false,
        });
        async move { hub.put(&format!("muster.status.plant8.noisy-{device}.{id}"), &fact).await }
    });
    stream::iter(facts).buffer_unordered(100).collect::<()>().await;
}

/// Reads the bucket's entries as they are written until `done`; the first revision of each key `after` one.
async fn written(
    watch: &mut ViewWatch,
    after: u64,
    done: impl Fn(&BTreeMap<String, u64>) -> bool,
) -> BTreeMap<String, u64> {
    let mut first = BTreeMap::new();
    while !done(&first) {
        for entry in soon("views", watch.next_batch(500)).await.unwrap() {
            if entry.revision > after {
                first.entry(entry.key).or_insert(entry.revision);
            }
        }
    }
    first
}

fn is_invented(key: &str) -> bool {
    key.starts_with("deployment.invented-")
}

#[tokio::test(flavor = "multi_thread")]
async fn invented_deployments_wait_for_real_ones() {
    let hub = Hub::start().await;
    let names: Vec<String> = (0..REAL).map(|number| format!("real-{number}")).collect();
    let mut device = Device::new("plant7.press-4");
    device.wants(&hub, &names.iter().map(String::as_str).collect::<Vec<_>>()).await;
    device.is(&hub, "fresh").await;
    for name in &names {
        device.reports(&hub, name, "installed").await;
    }
    invent(&hub).await;
    let mut watch = soon("views", hub.bus.view_watch(">")).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let rollup = Rollup::start(&hub, dir.path()).await;

    // At the start everything is due: the targeted deployment, its site, the other site and the fleet come
    // first.
    let first = written(&mut watch, 0, |seen| seen.keys().filter(|key| is_invented(key)).count() > 0).await;
    let invented = first.iter().filter(|(key, _)| is_invented(key)).map(|(_, revision)| *revision).min();
    let others: Vec<_> = first.iter().filter(|(key, _)| !is_invented(key)).collect();
    assert_eq!(others.len(), REAL + 3, "{others:?}");
    assert!(others.iter().all(|(_, revision)| Some(**revision) < invented), "{first:?}");

    // While the invented ones are written, a real one changes.
    let begun = Instant::now();
    device.reports(&hub, "real-7", "failed").await;
    let before = soon("views", hub.bus.stream_state(BUCKET)).await.unwrap().last_seq;
    let seen = written(&mut watch, before, |seen| seen.contains_key("deployment.real-7")).await;
    let between = seen["deployment.real-7"] - before;
    println!("a real view after {:?}, {between} writes before it", begun.elapsed());
    assert!(between <= BETWEEN_MAX, "{between} writes came first");
    let left = async || soon("views", hub.bus.stream_state(BUCKET)).await.unwrap().last_seq;
    assert!(left().await < INVENTED as u64, "the flood was over: nothing is shown");
    // They do get their turn.
    until("more of them", left, |last| *last >= before + BETWEEN_MAX).await;
    rollup.drain().await;
}
