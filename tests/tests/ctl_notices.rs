//! A watch against a hub that the test plays, which takes its time: a real nats-server, a real link with a
//! latency. What the hub itself tells is in `ctl_watch`.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use muster_bus::{Bus, Call, EndpointSpec, Fault, ServiceSpec, Serving};
use muster_contract::SubscriptionName;
use muster_contract::notify::{MissedQuery, Subscription};
use muster_contract::query::ErrorCode;
use muster_contract::view::content_digest;
use muster_ctl::ask::Hub;
use muster_ctl::notices::Notices;
use muster_simulator::link::{Condition, Link, Shape};
use muster_tests::command::refused;
use muster_tests::schemas::example;
use muster_tests::server::Server;
use muster_tests::system::program;
use muster_tests::wait::{soon, until};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

/// The requests to a simulated hub, and its delay before a confirmation.
#[derive(Default)]
struct Asked {
    subscribed: AtomicU64,
    confirmed: AtomicU64,
    thinks: Duration,
    /// Knows of no subscription that is confirmed.
    forgets: bool,
}

struct Played {
    server: Server,
    bus: Bus,
    asked: Arc<Asked>,
    _serving: Serving,
}

impl Played {
    async fn start(asked: Asked) -> Self {
        let server = Server::start();
        let bus = Bus::connect(server.config("test"), &CancellationToken::new()).await.unwrap();
        bus.converge().await.unwrap();
        let endpoint = |name| EndpointSpec { name, subject: format!("muster.notify.{name}") };
        let endpoints = ["subscribe", "confirm", "unsubscribe", "missed"].map(endpoint).into();
        let spec = ServiceSpec { name: "played", version: "0.1.0", description: "a test", endpoints };
        let asked = Arc::new(asked);
        let heard = asked.clone();
        let serving = bus.serve(spec, move |call| answer(heard.clone(), call)).await.unwrap();
        Self { server, bus, asked, _serving: serving }
    }

    /// Tells notice `number`, after the one whose revision is given; its own.
    async fn tell(&self, number: u64, after: u64) -> u64 {
        let mut notice: Value = example("Notice.changed");
        notice["number"] = json!(number);
        notice["omitted"] = json!({});
        self.bus.notice_put(&name(), notice.to_string().into(), None, after).await.unwrap()
    }
}

/// A watch over a link, and what it prints.
fn watch(link: &Link, words: &[&str]) -> (Child, Lines<BufReader<ChildStdout>>) {
    let url = format!("nats://{}", link.address());
    let mut child = Command::new(program("muster"))
        .args([&["--nats-url", &url][..], words].concat())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    (child, lines)
}

fn name() -> SubscriptionName {
    "night-shift".parse().unwrap()
}

/// Every subscription was there, and its subscriber has seen the first of two notices.
async fn answer(asked: Arc<Asked>, call: Call) -> Result<bytes::Bytes, Fault> {
    if call.endpoint == "confirm" {
        sleep(asked.thinks).await;
        asked.confirmed.fetch_add(1, Ordering::SeqCst);
        if asked.forgets {
            return Err(refused(ErrorCode::NotFound, "there is none"));
        }
    } else if call.endpoint == "missed" {
        let asked: MissedQuery = serde_json::from_slice(&call.payload).unwrap();
        let mut page: Value = example("MissedAnswer.a-page");
        match asked.next {
            None => page["changes"].as_array_mut().unwrap().truncate(1),
            Some(_) => {
                page["changes"].as_array_mut().unwrap().remove(0);
                (page["gone"], page["next"]) = (json!([]), Value::Null);
            }
        }
        return Ok(page.to_string().into());
    } else if call.endpoint == "subscribe" {
        asked.subscribed.fetch_add(1, Ordering::SeqCst);
    }
    Ok(json!({ "name": name(), "resumed": true, "seen": 1, "told": 2 }).to_string().into())
}

#[tokio::test]
async fn a_notice_that_takes_longer_to_read_than_the_next_picture_is_shown_once() {
    let hub = Played::start(Asked::default()).await;
    let revision = hub.tell(2, 0).await;
    let link = Link::open(format!("127.0.0.1:{}", hub.server.port())).await.unwrap();
    link.shape(Shape::PLAIN.late(Duration::from_millis(650), Duration::ZERO));
    let words = ["--timeout", "30s", "watch", "packet-tap", "--name", "night-shift", "--format", "json"];
    let (_watch, mut lines) = watch(&link, &words);
    let mut line = async || -> Value {
        let line = soon("a notice", lines.next_line()).await.unwrap().expect("it goes on");
        serde_json::from_str(&line).unwrap()
    };
    for page in ["the first page", "the second"] {
        assert!(line().await["missed"].is_object(), "one notice may cover many changes: {page}");
    }
    assert_eq!(line().await["number"], 2, "it was stored before the watch listened");
    hub.tell(3, revision).await;
    assert_eq!(line().await["number"], 3, "nothing is shown twice, and nothing is left out");
    let confirmed = async || hub.asked.confirmed.load(Ordering::SeqCst);
    until("both are confirmed", confirmed, |count| *count >= 2).await;
}

#[tokio::test]
async fn a_watch_that_comes_back_shows_what_it_missed_before_the_newest_notice() {
    let hub = Played::start(Asked::default()).await;
    hub.tell(5, 0).await;
    let link = Link::open(format!("127.0.0.1:{}", hub.server.port())).await.unwrap();
    let words = ["--timeout", "30s", "watch", "packet-tap", "--name", "night-shift"];
    let (_json, mut lines) = watch(&link, &[&words[..], &["--format", "json"]].concat());
    let mut line = async || -> Value {
        let line = soon("a line", lines.next_line()).await.unwrap().expect("it goes on");
        serde_json::from_str(&line).unwrap()
    };
    for changes in [1, 1] {
        let page = line().await;
        assert_eq!(page["missed"]["changes"].as_array().unwrap().len(), changes, "{page}");
    }
    assert_eq!(line().await["number"], 5);
    let (_table, mut lines) = watch(&link, &words);
    let mut said = Vec::new();
    for _ in 0..3 {
        said.push(soon("a line", lines.next_line()).await.unwrap().unwrap());
    }
    assert!(said[0].contains("changes from ledger 4303 to 4520 cannot be listed any more"), "{said:?}");
    assert!(said[1].contains("web plant7/press-4: outdated → failed"), "{said:?}");
    assert!(said[2].contains("verdict waiting → failing"), "{said:?}");
}

#[tokio::test]
async fn a_silent_hub_delays_neither_notices_nor_the_end_of_a_watch() {
    let hub = Played::start(Asked { thinks: Duration::from_secs(120), ..Asked::default() }).await;
    hub.tell(2, 0).await;
    let link = Link::open(format!("127.0.0.1:{}", hub.server.port())).await.unwrap();
    let words = ["--timeout", "120s", "watch", "packet-tap", "--name", "night-shift", "--format", "json"];
    let (mut child, mut lines) = watch(&link, &[&words[..], &["--within", "3s"]].concat());
    assert!(soon("a notice", lines.next_line()).await.unwrap().is_some());
    let ended = timeout(Duration::from_secs(30), child.wait()).await.expect("the time is over").unwrap();
    assert_eq!(ended.code(), Some(0));
}

#[tokio::test]
async fn a_watch_of_all_recovers_over_a_link_slower_than_its_snapshots() {
    let hub = Played::start(Asked::default()).await;
    let mut view: Value = example("DeploymentView.converged");
    let key = "deployment.packet-tap";
    hub.bus.view_put(key, view.to_string().into(), None).await.unwrap();
    let link = Link::open(format!("127.0.0.1:{}", hub.server.port())).await.unwrap();
    link.shape(Shape::PLAIN.late(Duration::from_millis(300), Duration::ZERO));
    let words = ["--timeout", "30s", "watch", "--format", "json"];
    let (_watch, mut lines) = watch(&link, &words);
    let mut leaving = async || {
        let line = soon("a view", lines.next_line()).await.unwrap().expect("it goes on");
        serde_json::from_str::<Value>(&line).unwrap()["leaving"].as_u64()
    };
    assert_eq!(leaving().await, view["leaving"].as_u64());
    link.set(Condition::Cut);
    view["leaving"] = json!(7);
    view["digest"] = json!(content_digest(&view).to_string());
    hub.bus.view_put(key, view.to_string().into(), None).await.unwrap();
    link.set(Condition::Open);
    assert_eq!(leaving().await, Some(7), "what changed while it was cut is shown");
}

#[tokio::test]
async fn a_slow_hub_is_heard_although_the_question_is_left_in_between() {
    let (thinks, forgets) = (Duration::from_millis(600), true);
    let hub = Played::start(Asked { thinks, forgets, ..Asked::default() }).await;
    let subscription = Subscription { lease_seconds: 16, ..Subscription::named(name()) };
    let asking = Hub::new(hub.bus.clone(), Duration::from_secs(5));
    let mut notices = Notices::open(&asking, subscription).await.unwrap();
    // A quarter of the lease is over after 4 s. The confirmation is left while the hub thinks about it.
    assert!(timeout(Duration::from_millis(4_300), notices.next()).await.is_err());
    // It is asked again as soon as somebody waits, not when the next quarter is over.
    assert!(timeout(Duration::from_millis(2_500), notices.next()).await.is_err(), "no notice comes");
    assert_eq!(hub.asked.subscribed.load(Ordering::SeqCst), 2, "it had ended, and was made again");
}
