//! Tests the reader of LEDGER's oldest facts.

use std::sync::Arc;

use muster_contract::fact::Fact;
use muster_ingest::reassert_reader::ReassertReader;
use muster_tests::later::Later;
use muster_tests::server::device;
use muster_tests::wait::soon;

use crate::{Hub, status};

#[tokio::test]
async fn old_facts_of_a_partition_are_read_once_and_young_ones_are_left() {
    let hub = Hub::start(&[]).await;
    let key = device("press-4");
    for seq in 1..=3 {
        hub.send(&key, &status(1, seq, 3)).await;
    }
    hub.send(&device("elsewhere"), &status(1, 1, 1)).await;
    hub.statuses_are(&key, 3).await;
    hub.statuses_are(&device("elsewhere"), 1).await;
    let partition = muster_contract::partition::partition_of(&key);
    assert_ne!(partition, muster_contract::partition::partition_of(&device("elsewhere")));
    let (mut rest, mut numbers) =
        (ReassertReader::new(hub.bus.clone(), Arc::new(Later), partition), Vec::new());
    // The available facts come at once: on a busy machine in more than one batch.
    while numbers.len() < 3 {
        let (next, old) = soon("old facts", rest.next()).await;
        rest = next;
        let ages = |fact: &Fact| matches!(fact, Fact::Status(_) | Fact::Device(_));
        assert!(old.iter().all(|(_, fact)| ages(fact)), "liveness has its own rhythm: {old:?}");
        numbers.extend(old.iter().filter_map(|(subject, fact)| match fact {
            Fact::Status(fact) => Some((subject.device().cloned().unwrap(), fact.seq.get())),
            _ => None,
        }));
    }
    assert_eq!(numbers, [1, 2, 3].map(|seq| (key.clone(), seq)));
    // No other fact is old: it waits for more.
    let more = tokio::time::timeout(std::time::Duration::from_secs(6), rest.next()).await;
    assert!(more.is_err(), "{:?}", more.map(|(_, old)| old));
}
