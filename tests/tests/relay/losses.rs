//! Reports and receipts that the network loses on the way, and that arrive all the same.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use muster_agent::{Config, Handle};
use muster_contract::fact::{Fact, StatusFact};
use muster_contract::subjects::LedgerSubject;
use muster_contract::view::Verdict;
use muster_contract::{State, Timestamp};
use muster_service::clock::{Clock, ManualClock};
use muster_service::config::LogFormat;
use muster_service::{Common, Supervisor};
use muster_tests::server::device;
use muster_tests::thin::Thin;
use muster_tests::wait::{FACT_DEADLINE, within};

use super::*;

/// The reports of deployments in LEDGER, in its order.
async fn ledger(hub: &Hub) -> Vec<StatusFact> {
    let last = hub.bus.stream_state(stream::LEDGER).await.unwrap().last_seq;
    let mut replay = hub.bus.replay(stream::LEDGER, &[], Start::First).await.unwrap();
    let (mut facts, mut seen) = (Vec::new(), 0);
    while seen < last {
        for delivery in soon("LEDGER", replay.next_batch(1_000)).await.unwrap() {
            seen = delivery.stream_seq;
            let subject = LedgerSubject::parse(&delivery.subject).unwrap();
            if let Fact::Status(fact) = Fact::parse(&subject, &delivery.payload).unwrap() {
                facts.push(fact);
            }
        }
    }
    facts
}

#[tokio::test(flavor = "multi_thread")]
async fn m11_a_dropped_link_loses_no_row_and_keeps_their_order() {
    const ROWS: usize = 1_500;
    const CUTS: u64 = 4;
    let hub = Hub::start().await;
    let backlog = Backlog::new(device("press-4"), 4).await;
    hub.desire(&backlog).await;
    backlog.tell_history(ROWS).await;
    let head = 1 + ROWS as u64;
    let thin = Thin::open(hub.address(), 2_000_000).await;
    let sender = backlog.send(hub.settings(&backlog, thin.address()), None);
    let unsent = async || backlog.summary().await.unsent;
    let up = async || sender.connected.borrow().as_ref().is_some_and(|bus| bus.link().borrow().is_up());
    for cut in 1..=CUTS {
        // Each cut is of a link of its own, also where so much was confirmed at once that the next is due.
        until("the link is up", up, |up| *up).await;
        // In the middle of it: some confirmed, some under way, some waiting.
        until("some of it is sent", unsent, |unsent| *unsent <= head - cut * head / (CUTS + 2)).await;
        thin.cut();
        until("the loss is seen", up, |up| !up).await;
        thin.mend();
    }
    until("all is sent", unsent, |unsent| *unsent == 0).await;
    assert!(thin.connections() > CUTS);
    hub.knows(&backlog, head).await;
    let facts = ledger(&hub).await;
    let seqs: Vec<_> = facts.iter().map(|fact| fact.seq).collect();
    let distinct: BTreeSet<_> = seqs.iter().copied().collect();
    assert_eq!((seqs.len(), distinct.len()), (ROWS, ROWS), "each once");
    // A reader of LEDGER never steps back: a report behind its successor is marked as such, and no other is.
    let mut newest = BTreeMap::new();
    for fact in &facts {
        let known: &mut u64 = newest.entry(&fact.deployment).or_default();
        assert_eq!(fact.late, fact.seq.get() < *known, "{fact:?} after {known}");
        *known = fact.seq.get().max(*known);
    }
    // The newest of each deployment first, then the others in their order. What the client's small queue held when a link
    // broke goes out first on the next one, before what was lost in the break: that is the one step back there may be.
    let history: Vec<_> = facts.iter().filter(|fact| !fact.current).map(|fact| fact.seq.get()).collect();
    assert_eq!(history.len(), ROWS - 4);
    let steps_back = history.windows(2).filter(|pair| pair[1] < pair[0]).count();
    assert!(steps_back <= CUTS as usize, "{history:?}");
    // By their numbers, which is how the hub orders them, the history is whole and ends with the truth.
    let truth = |views: &Vec<DeploymentView>| views.iter().all(|view| view.verdict == Verdict::Progressing);
    until("the last report is the truth", || hub.views(), |views| views.len() == 4 && truth(views)).await;
    sender.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn m18_two_reports_of_one_millisecond_are_kept_and_the_later_one_holds() {
    let hub = Hub::start().await;
    let backlog = Backlog::new(device("press-4"), 1).await;
    hub.desire(&backlog).await;
    let now = Timestamp::now();
    backlog.tell(now, [(0, State::Installing), (0, State::Failed), (0, State::Installed)]).await;
    let sender = backlog.send(hub.settings(&backlog, hub.address()), None);
    hub.knows(&backlog, 4).await;
    let mut facts = ledger(&hub).await;
    facts.sort_unstable_by_key(|fact| fact.seq);
    let expected = [State::Installing, State::Failed, State::Installed];
    assert_eq!(facts.iter().map(|fact| fact.status.state).collect::<Vec<_>>(), expected);
    assert!(facts.iter().all(|fact| fact.observed_at.as_millisecond() == now.as_millisecond()), "{facts:?}");
    let truth = |views: &Vec<DeploymentView>| views.iter().all(|view| view.verdict == Verdict::Converged);
    until("the later one is the truth", || hub.views(), |views| views.len() == 1 && truth(views)).await;
    sender.end().await;
}

/// A whole agent with a clock of the test's own.
async fn agent(hub: &Hub, backlog: &Backlog, clock: &ManualClock, supervisor: &Supervisor) -> Handle {
    let config = Config {
        common: Common {
            nats_url: hub.server.url().parse().unwrap(),
            creds: None,
            tls_ca: None,
            http_addr: None,
            log_format: LogFormat::Text,
            log_filter: "info".to_owned(),
        },
        device: backlog.device.clone(),
        data_dir: hub.dir.path().join("device"),
        runtime: muster_agent::config::RuntimeKind::Simulated,
        join: None,
        packages: muster_agent::package::PackageSettings::default(),
        labels: Default::default(),
        on_exit: muster_agent::reconcile::OnExit::Keep,
        heartbeat: Duration::from_millis(500),
        reconnect_max: Duration::from_millis(100),
        uplink_limit: None,
        poll: Some(Duration::from_secs(1)),
        ping: None,
        schedule: Default::default(),
        retry: muster_agent::reconcile::RetryPolicy {
            min: Duration::from_secs(1),
            max: Duration::from_secs(1),
            crash_loop: Default::default(),
        },
        outbox: Default::default(),
    };
    let clock: Arc<dyn Clock> = Arc::new(clock.clone());
    muster_agent::app::start_with_clock(clock, config, supervisor).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn m10_a_last_success_that_gets_lost_is_missed_visibly_and_sent_again() {
    let mut hub = Hub::start().await;
    let backlog = Backlog::new(device("press-4"), 1).await;
    let clock = ManualClock::at(Timestamp::now());
    let supervisor = Supervisor::new();
    let handle = agent(&hub, &backlog, &clock, &supervisor).await;
    hub.knows(&backlog, 1).await;
    hub.kill_ingest().await;
    hub.desire(&backlog).await;
    // Capabilities, installing, installed: all confirmed by the server, which then loses what the hub has not seen.
    let confirmed = async || handle.outbox().await.unwrap();
    let sent = until("it comes up and says so", confirmed, |sent| sent.head >= 3 && sent.unsent == 0).await;
    let purged = hub.bus.request("$JS.API.STREAM.PURGE.UPLINK", Default::default(), Duration::from_secs(5));
    purged.await.unwrap();

    hub.start_ingest();
    let missed = async || hub.asked.device(&backlog.device).await.ok().map(|answer| answer.device);
    let line = until("the gap is seen", missed, |line| {
        line.as_ref().is_some_and(|line| line.head == sent.head && !line.account.missing.is_empty())
    })
    .await
    .unwrap();
    assert_eq!(line.account.missing.max(), Some(sent.head), "{line:?}");
    let views = hub.views().await;
    assert!(
        !views.is_empty() && views.iter().all(|view| view.converged.lo == 0),
        "nobody calls it converged"
    );

    // A report sent so long ago counts as lost at the hub's next inventory, which comes every half minute.
    clock.set(clock.now() + Duration::from_secs(31));
    let good = |views: &Vec<DeploymentView>| views.len() == 1 && views[0].verdict == Verdict::Converged;
    within(2 * FACT_DEADLINE, "it is made good", || hub.views(), good).await;
    hub.knows(&backlog, sent.head).await;
    let states: Vec<_> = ledger(&hub).await.iter().map(|fact| fact.status.state).collect();
    assert_eq!(states.iter().filter(|state| **state == State::Installed).count(), 1, "{states:?}");
    let drained = supervisor.drain(Duration::from_secs(20)).await;
    assert!(drained.late.is_empty(), "{drained:?}");
}
