//! The bytes that cross a thin link before the views are right, and the cost of a report on the wire.
//!
//! A time on a busy machine proves little. The bytes that cross the link before the views can be right are the same on any
//! machine, and so are the facts before them in LEDGER: these tests assert both. The bench `reconnect` measures the time.

use std::collections::BTreeSet;
use std::io::Write;
use std::time::Instant;

use muster_contract::fact::Fact;
use muster_contract::subjects::LedgerSubject;
use muster_contract::view::Verdict;
use muster_contract::{State, Timestamp};
use muster_domain::fold::{Fleet, Page, Position};
use muster_tests::server::device;
use muster_tests::thin::Thin;

use super::*;

/// The link of these tests.
const BITS_A_SECOND: u64 = 256_000;
/// Bytes that the link carries in a second. The views are to be right within two: the other one is for the hub.
const BYTES_A_SECOND: usize = BITS_A_SECOND as usize / 8;
/// Deployments of the device.
const DEPLOYMENTS: usize = 8;
/// Reports that wait.
const ROWS: usize = 100_000;

/// Prints a figure for the reader of the test's output.
fn say(what: &str) {
    writeln!(std::io::stderr(), "{what}").unwrap_or_default();
}

/// The last state of each deployment: good for half of them.
const fn last_of(deployment: usize) -> State {
    if deployment.is_multiple_of(2) { State::Installed } else { State::Failed }
}

const fn verdict_of(deployment: usize) -> Verdict {
    if deployment.is_multiple_of(2) { Verdict::Converged } else { Verdict::Failing }
}

fn all_say(views: &[DeploymentView], verdict: impl Fn(usize) -> Verdict) -> bool {
    let right = |view: &DeploymentView| {
        let at = view.deployment.as_str().trim_start_matches("app-").parse().unwrap();
        view.verdict == verdict(at)
    };
    views.len() == DEPLOYMENTS && views.iter().all(right)
}

/// Where the last of these reports ends within what a device has said.
fn end_of_the_last(said: &[u8], seqs: &BTreeSet<u64>) -> usize {
    let text = String::from_utf8_lossy(said);
    let end = |seq: &u64| {
        let from = text.find(&format!("\"seq\":{seq},")).unwrap_or_else(|| {
            panic!(
                "report {seq} is not within the first {} bytes: {}",
                said.len(),
                &text[..text.len().min(8_000)]
            )
        });
        from + text[from..].find("\r\n").unwrap_or(usize::MAX - from)
    };
    seqs.iter().map(end).max().unwrap()
}

/// The views as LEDGER gives them right behind the last of these reports, and the other reports of this number or above
/// that stand before it.
async fn views_behind(hub: &Hub, seqs: &BTreeSet<u64>, from: u64) -> (Vec<DeploymentView>, Vec<u64>) {
    let mut replay = hub.bus.replay(stream::LEDGER, &[], Start::First).await.unwrap();
    let (mut fleet, mut awaited, mut others) = (Fleet::default(), seqs.clone(), Vec::new());
    loop {
        for delivery in soon("LEDGER", replay.next_batch(1_000)).await.unwrap() {
            let at = Position { ledger_seq: delivery.stream_seq, stored_at: delivery.stored_at };
            let subject = LedgerSubject::parse(&delivery.subject).unwrap();
            let fact = Fact::parse(&subject, &delivery.payload).unwrap();
            let seq = if let Fact::Status(fact) = &fact { Some(fact.seq.get()) } else { None };
            fleet.apply(at, &subject, fact);
            let Some(seq) = seq.filter(|seq| *seq >= from) else { continue };
            if !awaited.remove(&seq) {
                others.push(seq);
            }
            if awaited.is_empty() {
                let page = Page { after: None, limit: usize::MAX };
                return (fleet.deployments_answer(&Default::default(), &page).unwrap().deployments, others);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn views_are_right_by_the_first_second_of_a_link_of_256_kbit() {
    let hub = Hub::start().await;
    let backlog = Backlog::new(device("press-4"), DEPLOYMENTS).await;
    hub.desire(&backlog).await;
    backlog.tell(Timestamp::now(), (0..DEPLOYMENTS).map(|at| (at, State::Installing))).await;
    let sender = backlog.send(hub.settings(&backlog, hub.address()), None);
    until("the hub knows where it began", || hub.views(), |views| all_say(views, |_| Verdict::Progressing))
        .await;
    hub.knows(&backlog, 1 + DEPLOYMENTS as u64).await;
    sender.end().await;

    backlog.tell_history(ROWS).await;
    backlog.tell(Timestamp::now(), (0..DEPLOYMENTS).map(|at| (at, last_of(at)))).await;
    let waiting = backlog.summary().await.unsent;
    assert_eq!(waiting, (ROWS + DEPLOYMENTS) as u64);
    let (past, head) = (1 + DEPLOYMENTS as u64, 1 + (DEPLOYMENTS + ROWS + DEPLOYMENTS) as u64);
    let newest: BTreeSet<u64> = (head + 1 - DEPLOYMENTS as u64..=head).collect();

    let thin = Thin::open(hub.address(), BITS_A_SECOND).await;
    let sender = backlog.send(hub.settings(&backlog, thin.address()), None);
    soon("a connection", sender.connected.clone().wait_for(Option::is_some)).await.unwrap();
    until("the views are right", || hub.views(), |views| all_say(views, verdict_of)).await;
    let left = backlog.summary().await.unsent;
    assert!(left * 10 > waiting * 9, "{left} of {waiting} left: the backlog went first");
    // The link carried the newest reports within its first second, connecting and the first heartbeat included, and LEDGER
    // holds them before any of the backlog.
    let needed = end_of_the_last(&thin.beginning(), &newest);
    say(&format!("the newest reports are within the first {needed} bytes of {BYTES_A_SECOND} a second"));
    assert!(needed <= BYTES_A_SECOND, "the newest reports end at byte {needed}");
    let (views, others) = views_behind(&hub, &newest, past + 1).await;
    assert!(others.is_empty(), "LEDGER has of the backlog before the newest reports: {others:?}");
    assert!(all_say(&views, verdict_of), "the newest reports are enough: {views:?}");

    let drains = async || backlog.summary().await.unsent;
    until("the backlog drains behind", drains, |now| *now + 100 <= left).await;
    assert!(all_say(&hub.views().await, verdict_of), "and takes nothing back");
    // Reports that wait for the link do not make the agent give up: one connection carries all of them.
    assert_eq!(thin.connections(), 1);
    sender.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_uplink_limit_holds_on_the_wire_and_a_report_costs_what_is_charged() {
    const ROWS: usize = 400;
    const LIMIT: u64 = 512_000;
    let hub = Hub::start().await;
    let backlog = Backlog::new(device("press-4"), DEPLOYMENTS).await;
    backlog.tell_history(ROWS).await;
    // A link that carries far more than the limit.
    let thin = Thin::open(hub.address(), 100_000_000).await;
    let limit = format!("{LIMIT}bit").parse().unwrap();
    let begin = Instant::now();
    let sender = backlog.send(hub.settings(&backlog, thin.address()), Some(limit));
    until("all is sent", async || backlog.summary().await.unsent, |unsent| *unsent == 0).await;
    let (took, (up, down)) = (begin.elapsed(), thin.bytes());
    let allowed = LIMIT as f64 / 8.0 * (took.as_secs_f64() + 1.25);
    say(&format!("{ROWS} reports: {} bytes up and {} down each, in {took:?}", up / 401, down / 401));
    assert!((up as f64) < allowed, "{up} bytes in {took:?}, {allowed} are allowed");
    hub.knows(&backlog, 1 + ROWS as u64).await;
    sender.end().await;
}
