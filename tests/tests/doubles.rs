//! A device that has a double for a moment: somebody copied its name, or its disk. It is heard again soon after the
//! double has gone, and what it sent meanwhile fills nobody's LEDGER.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::time::Duration;

use muster_agent::outbox::RENEWAL_INTERVAL;
use muster_contract::fact::{Fact, IncidentKind};
use muster_contract::view::Verdict;
use muster_domain::intake::{BATCH_EVERY, FACTS_PER_MINUTE};
use muster_tests::story::{device_settled, key, nothing_lost, publish, rebuilt, verdict};
use muster_tests::system::{System, agent_name};
use tokio::time::Instant;

/// How long the double is there.
const SECONDS: Duration = Duration::from_secs(6);
/// Time for connecting, a receipt and a report beyond the interval on a loaded machine.
const SLACK: Duration = Duration::from_secs(12);

#[tokio::test(flavor = "multi_thread")]
async fn a_device_is_heard_again_within_a_minute_after_its_double_has_gone() {
    let mut system = System::start().await;
    let device = key("plant-a/press-1");
    let address = system.address();
    system.start_agent(&device, address, &[]);
    publish(&system, std::slice::from_ref(&device), "web", 1).await;
    verdict(&system, "web", 1, Verdict::Converged).await;

    // The double has the name and nothing else: it begins an epoch above the device's, and both chase each other.
    let elsewhere = system.dir().join("elsewhere");
    system.start_agent_as("double", &device, &elsewhere, address, &[]);
    system
        .eventually("the hub hears two", async || {
            let epochs = system.ledger().await.into_iter().filter_map(|entry| match entry.fact {
                Fact::Incident(incident) => Some(incident.what),
                _ => None,
            });
            let amnesia = epochs.filter(|what| matches!(what, IncidentKind::Amnesia { .. })).count();
            if amnesia >= 2 { Ok(()) } else { Err(format!("{amnesia} new epochs")) }
        })
        .await;
    tokio::time::sleep(SECONDS).await;
    system.kill("double").await;
    let gone = Instant::now();

    // The next publication reaches the device at once; the hub must receive the device's report.
    publish(&system, std::slice::from_ref(&device), "web", 2).await;
    device_settled(&system, &device, 2).await;
    verdict(&system, "web", 1, Verdict::Converged).await;
    assert!(gone.elapsed() < RENEWAL_INTERVAL + SLACK, "{:?}", gone.elapsed());
    assert!(RENEWAL_INTERVAL <= Duration::from_secs(60));
    nothing_lost(&system).await;
    rebuilt(&system).await;

    let ledger = system.ledger().await;
    let kept: Vec<_> = ledger
        .iter()
        .filter_map(|entry| {
            if let Fact::Quarantine(fact) = &entry.fact { Some((entry.stored_at, fact)) } else { None }
        })
        .collect();
    let minute = |at: &usize| {
        let from = kept[*at].0.as_second();
        kept.iter().filter(|(stored_at, _)| (from..from + 60).contains(&stored_at.as_second())).count()
    };
    let most = (0..kept.len()).map(|at| minute(&at)).max().unwrap_or(0);
    // Two minutes of facts of their own may meet in one; sums of up to two epochs.
    let allowed = 2 * FACTS_PER_MINUTE as usize + 2 * (60 / BATCH_EVERY.as_secs() as usize);
    assert!(most <= allowed, "{most} quarantine facts in a minute, {allowed} are allowed");
    let counted: u64 = kept.iter().map(|(_, fact)| fact.others + 1).sum();
    assert_eq!(kept.iter().map(|(_, fact)| fact.count_for_device).max().unwrap_or(0), counted);
    assert!(!system.log(&agent_name(&device)).contains("panicked"));
}
