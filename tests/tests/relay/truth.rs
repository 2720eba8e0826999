//! How long the truth takes, and what it costs.

use std::io::Write;
use std::time::Instant;

use muster_contract::view::Verdict;
use muster_contract::{State, Timestamp};
use muster_tests::server::device;
use muster_tests::thin::Thin;

use super::*;

/// The link of these tests.
const BITS_A_SECOND: u64 = 256_000;
/// Deployments of the device.
const DEPLOYMENTS: usize = 8;
/// Reports that wait, where `MUSTER_BACKLOG_ROWS` does not say otherwise. The promise is made for 100,000.
const ROWS: usize = 10_000;

fn rows() -> usize {
    std::env::var("MUSTER_BACKLOG_ROWS").map_or(ROWS, |text| text.parse().unwrap())
}

/// A figure for whoever reads the test's output.
fn say(what: &str) {
    writeln!(std::io::stderr(), "{what}").unwrap_or_default();
}

/// What each deployment ends with: half of them well.
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

#[tokio::test(flavor = "multi_thread")]
async fn after_an_outage_the_views_are_right_at_once_while_the_backlog_drains_behind() {
    let rows = rows();
    let hub = Hub::start().await;
    let backlog = Backlog::new(device("press-4"), DEPLOYMENTS).await;
    hub.desire(&backlog).await;
    backlog.tell(Timestamp::now(), (0..DEPLOYMENTS).map(|at| (at, State::Installing))).await;
    let sender = backlog.send(hub.settings(&backlog, hub.address()), None);
    until("the hub knows where it began", || hub.views(), |views| all_say(views, |_| Verdict::Progressing))
        .await;
    hub.knows(&backlog, 1 + DEPLOYMENTS as u64).await;
    sender.end().await;

    let filling = Instant::now();
    backlog.tell_history(rows).await;
    backlog.tell(Timestamp::now(), (0..DEPLOYMENTS).map(|at| (at, last_of(at)))).await;
    let waiting = backlog.summary().await.unsent;
    assert_eq!(waiting, (rows + DEPLOYMENTS) as u64);
    say(&format!("{waiting} reports written in {:?}", filling.elapsed()));

    let thin = Thin::open(hub.address(), BITS_A_SECOND).await;
    let sender = backlog.send(hub.settings(&backlog, thin.address()), None);
    soon("a connection", sender.connected.clone().wait_for(Option::is_some)).await.unwrap();
    let connected = Instant::now();
    until("the views are right", || hub.views(), |views| all_say(views, verdict_of)).await;
    let truth = connected.elapsed();
    let left = backlog.summary().await.unsent;
    say(&format!(
        "time to truth over {BITS_A_SECOND} bit/s: {} ms, with {left} of {waiting} reports still to send",
        truth.as_millis()
    ));
    assert!(left * 10 > waiting * 9, "{left} of {waiting} left: the backlog went first");

    let drains = async || backlog.summary().await.unsent;
    until("the backlog drains behind", drains, |now| *now + 100 <= left).await;
    assert!(all_say(&hub.views().await, verdict_of), "and takes nothing back");
    // What waits for the link may not make the agent give up: one connection carries it all.
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
