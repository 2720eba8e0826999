//! Tests EMCO's rows.

use std::time::Duration;

use muster_contract::notify::{EndReason, Notice, NoticeEvent, NoticeStatus};
use muster_contract::query::Query;
use muster_contract::status::{Deployed, Ready};
use muster_contract::subjects::stream;
use muster_contract::view::{Freshness, Standing, Verdict};
use muster_notify::metrics::NoticeResult;
use muster_tests::wait::until;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Listener, ask, refusal, subscribed};
use crate::ledger::Device;
use crate::{Hub, Rollup};

/// Shortest window: tests wait for notices, not for windows.
const QUICK: u64 = 200;

/// A hub with a rollup, and two devices at two sites that run web and db.
pub(super) struct Stage {
    pub(super) hub: Hub,
    pub(super) rollup: Rollup,
    pub(super) devices: Vec<Device>,
    _dir: TempDir,
}

impl Stage {
    pub(super) async fn start() -> Self {
        let hub = Hub::start().await;
        let mut devices: Vec<Device> = ["plant7.press-4", "plant9.oven-2"].map(Device::new).into();
        for device in &mut devices {
            device.wants(&hub, &["web", "db"]).await;
            device.is(&hub, "fresh").await;
            device.reports(&hub, "web", "installed").await;
        }
        let dir = tempfile::tempdir().unwrap();
        let rollup = Rollup::start(&hub, dir.path()).await;
        rollup.ready().await;
        Self { hub, rollup, devices, _dir: dir }
    }

    pub(super) async fn report(&mut self, device: usize, deployment: &str, state: &str) {
        self.devices[device].reports(&self.hub, deployment, state).await;
    }

    /// Waits until somebody was looked at once more, and had been told already what is.
    async fn nothing_new(&self, since: u64) {
        let looks = || async { self.rollup.handle.notices.notices_with(NoticeResult::Unchanged) };
        until("a look that finds nothing new", looks, |looks| *looks > since).await;
    }

    fn looks(&self) -> u64 {
        self.rollup.handle.notices.notices_with(NoticeResult::Unchanged)
    }
}

pub(super) fn of(name: &str, mut subscription: Value) -> Value {
    subscription["name"] = json!(name);
    subscription["windowMs"] = json!(QUICK);
    subscription
}

fn status(notice: &Notice) -> Option<NoticeStatus> {
    notice.state.as_ref().map(|state| state.status)
}

fn verdict(notice: &Notice) -> Option<Verdict> {
    notice.state.as_ref().and_then(|state| state.verdict)
}

#[tokio::test(flavor = "multi_thread")]
async fn n01_a_subscription_has_name_subject_axis_output_and_filters() {
    let stage = Stage::start().await;
    let hub = &stage.hub;
    for (name, about) in [
        ("by-deployment", json!({"id": "web", "status": "deployed", "output": "all"})),
        ("by-site", json!({"site": ["plant7"], "status": "ready"})),
        ("by-device", json!({"device": ["plant7/press-4"], "output": "all"})),
        (
            "filtered",
            json!({"id": "web", "app": ["com.example.web"], "site": ["plant7", "plant9"],
                "device": ["plant9/oven-2"], "component": ["main"]}),
        ),
        ("everything", json!({})),
    ] {
        let listener = Listener::start(hub, &of(name, about)).await;
        assert_eq!(listener.number(1).await.event, NoticeEvent::Present, "{name}");
    }
    let (code, words) = refusal(hub, "subscribe", &json!({"name": ""})).await;
    assert!(code == "badRequest" && words.contains("name"), "{words}");
    let (code, words) = refusal(hub, "subscribe", &json!({"id": "web"})).await;
    assert!(code == "badRequest" && words.contains("name"), "{words}");
    let other = of("by-site", json!({"site": ["plant9"]}));
    let (code, words) = refusal(hub, "subscribe", &other).await;
    assert!(code == "conflict" && words.contains("'by-site'"), "{words}");
    assert!(subscribed(hub, &of("everything", json!({}))).await.resumed);
    let (code, words) = refusal(hub, "subscribe", &of("typo", json!({"id": "wbe"}))).await;
    assert!(code == "notFound" && words.contains("web"), "{words}");
    let (code, words) = refusal(hub, "subscribe", &of("deep", json!({"output": "detail"}))).await;
    assert!(code == "badRequest" && words.contains("output"), "{words}");
    let list = ask(hub, "list", &json!({"limit": 2})).await;
    assert_eq!((&list["next"], list["subscriptions"].as_array().unwrap().len()), (&"by-device".into(), 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn n02_the_status_of_a_whole_is_that_of_all_its_parts_on_either_axis() {
    let mut stage = Stage::start().await;
    let ready = of("ready", json!({"id": "db", "status": "ready", "output": "all"}));
    let ready = Listener::start(&stage.hub, &ready).await;
    let deployed = of("deployed", json!({"id": "db", "status": "deployed", "output": "all"}));
    let deployed = Listener::start(&stage.hub, &deployed).await;
    assert_eq!(status(&ready.number(1).await), Some(NoticeStatus::NotReady));
    assert_eq!(status(&deployed.number(1).await), Some(NoticeStatus::NotDeployed));

    stage.report(0, "db", "installed").await;
    stage.report(1, "db", "installing").await;
    let is = |wanted| move |notice: &Notice| status(notice) == Some(wanted);
    let notice = deployed.told("both have taken it up", is(NoticeStatus::Deployed)).await;
    let state = notice.state.unwrap();
    assert_eq!(state.apps[0].rollup.deployed_status, Some(Deployed::Applied));
    assert!(state.targets.iter().all(|target| target.deployed_status == Some(Deployed::Applied)));

    let one_is_up = |notice: &Notice| {
        let Some(state) = &notice.state else { return false };
        state.targets.iter().map(|target| target.ready_status).eq([Some(Ready::Ready), Some(Ready::NotReady)])
    };
    let state = ready.told("one of two is ready", one_is_up).await.state.unwrap();
    assert_eq!(
        (state.status, state.apps[0].rollup.ready_status),
        (NoticeStatus::NotReady, Some(Ready::NotReady))
    );
    assert_eq!(state.targets[1].components[0].ready_status, Some(Ready::NotReady));

    stage.report(1, "db", "installed").await;
    let state = ready.told("all are ready", is(NoticeStatus::Ready)).await.state.unwrap();
    assert_eq!(state.apps[0].rollup.ready_status, Some(Ready::Ready));
    assert!(state.targets.iter().all(|target| target.components[0].ready_status == Some(Ready::Ready)));
}

#[tokio::test(flavor = "multi_thread")]
async fn n03_what_was_told_is_not_told_again() {
    let mut stage = Stage::start().await;
    let listener = Listener::start(&stage.hub, &of("web", json!({"id": "web", "output": "all"}))).await;
    let first = listener.number(1).await;
    let looks = stage.looks();
    stage.report(0, "web", "installed").await;
    stage.nothing_new(looks).await;
    assert_eq!(listener.newest().await.unwrap(), first, "the same state reported anew is no news");
    stage.report(0, "web", "failed").await;
    let second = listener.number(2).await;
    assert_eq!((second.number, verdict(&second)), (2, Some(Verdict::Failing)));

    let only = of("verdicts", json!({"id": "web", "on": "verdict"}));
    let only = Listener::start(&stage.hub, &only).await;
    only.number(1).await;
    let looks = stage.looks();
    stage.report(1, "web", "failed").await;
    stage.nothing_new(looks).await;
    assert_eq!(only.newest().await.unwrap().number, 1, "one more that failed is no other verdict");
}

#[tokio::test(flavor = "multi_thread")]
async fn n04_a_burst_is_one_notice_a_window_and_the_last_shows_the_end() {
    let mut stage = Stage::start().await;
    let window = 1_000;
    let about = json!({"name": "web", "id": "web", "windowMs": window});
    let listener = Listener::start(&stage.hub, &about).await;
    listener.number(1).await;
    let begun = tokio::time::Instant::now();
    for round in 0..30 {
        stage.report(round % 2, "web", ["failed", "installing"][round / 2 % 2]).await;
    }
    stage.report(0, "web", "failed").await;
    stage.report(1, "web", "installed").await;
    let last = listener
        .told("the end of the burst", |notice| {
            let state = notice.state.as_ref();
            let counts = state.map(|state| &state.rollup.counts);
            let one = |of| counts.and_then(|counts| counts.get(&of)).is_some_and(|split| split.fresh == 1);
            one(Standing::Failed) && one(Standing::Installed)
        })
        .await;
    let windows = begun.elapsed().as_millis() as u64 / window + 1;
    assert!(last.number <= 1 + windows, "{} notices in {windows} windows", last.number);
    assert!(last.coalesced, "it was held back: {last:?}");
    let heard = listener.all();
    let numbers: Vec<_> = heard.iter().map(|notice| notice.number).collect();
    assert_eq!(numbers, (1..=last.number).collect::<Vec<_>>(), "none is left out of the count");
}

#[tokio::test(flavor = "multi_thread")]
async fn n05_each_is_told_only_what_its_own_filters_let_through() {
    let mut stage = Stage::start().await;
    let about = |site: &str| json!({"id": "db", "site": [site], "output": "all"});
    let one = Listener::start(&stage.hub, &of("one", about("plant7"))).await;
    let other = Listener::start(&stage.hub, &of("other", about("plant9"))).await;
    let whole = Listener::start(&stage.hub, &of("whole", json!({"id": "db", "output": "all"}))).await;
    for listener in [&one, &other, &whole] {
        listener.number(1).await;
    }
    stage.report(0, "db", "failed").await;
    stage.report(1, "db", "installed").await;
    let both = |notice: &Notice| {
        notice.state.as_ref().is_some_and(|state| {
            state.targets.iter().map(|line| line.standing).eq([Standing::Failed, Standing::Installed])
        })
    };
    whole.told("both", both).await;
    one.number(2).await;
    other.number(2).await;
    for (listener, site) in [(&one, "plant7"), (&other, "plant9")] {
        for notice in listener.all() {
            let state = notice.state.unwrap();
            assert_eq!(state.rollup.targets, 1);
            assert!(state.targets.iter().all(|line| line.key.site.as_str() == site), "{state:?}");
            assert!(notice.changes.iter().all(|change| change.key.site.as_str() == site));
            assert!(state.view.is_none() && state.verdict.is_none(), "they are of the whole");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn n05_a_filtered_subscription_gets_no_other_standing() {
    let mut stage = Stage::start().await;
    let about = json!({"app": ["com.example.db"], "output": "all"});
    let app = Listener::start(&stage.hub, &of("app", about)).await;
    let about = json!({"component": ["main"], "site": ["plant7"]});
    let component = Listener::start(&stage.hub, &of("component", about)).await;
    for listener in [&app, &component] {
        listener.number(1).await;
    }
    // Both in one window, and web first: the notice about db would take its change along.
    stage.report(0, "web", "failed").await;
    stage.report(0, "db", "failed").await;
    let failed = |notice: &Notice| {
        let counts = notice.state.as_ref().map(|state| &state.rollup.counts);
        counts.is_some_and(|counts| counts.contains_key(&Standing::Failed))
    };
    app.told("db has failed", failed).await;
    component.told("main of both", |notice| notice.number >= 2).await;
    let all = app.all().into_iter().flat_map(|notice| notice.changes);
    let told: Vec<_> = all.map(|change| change.deployment.to_string()).collect();
    assert!(!told.is_empty() && told.iter().all(|of| of == "db"), "{told:?}");

    // A leaving row still belongs to its application: a subscription to that sees it leave.
    let number = app.newest().await.unwrap().number;
    stage.devices[0].wants(&stage.hub, &["web"]).await;
    let last = app.number(number + 1).await;
    let [change] = last.changes.as_slice() else { panic!("{:?}", last.changes) };
    let is_leaving = change.to.is_some_and(|stood| stood.leaving);
    assert_eq!((change.deployment.as_str(), change.from.is_some(), is_leaving), ("db", true, true));
}

#[tokio::test(flavor = "multi_thread")]
async fn n06_a_change_elsewhere_tells_nothing() {
    let mut stage = Stage::start().await;
    let here = of("here", json!({"id": "web", "site": ["plant7"], "output": "all"}));
    let here = Listener::start(&stage.hub, &here).await;
    let there = Listener::start(&stage.hub, &of("there", json!({"site": ["plant9"]}))).await;
    let db = Listener::start(&stage.hub, &of("db", json!({"id": "db"}))).await;
    let web = json!({"app": ["com.example.web"], "device": ["plant7/press-4"], "output": "all"});
    let web = Listener::start(&stage.hub, &of("web", web)).await;
    for listener in [&here, &there, &db, &web] {
        listener.number(1).await;
    }
    // Another site, then another deployment of the same device.
    stage.report(1, "web", "failed").await;
    there.number(2).await;
    stage.report(0, "db", "failed").await;
    db.number(2).await;
    assert_eq!(here.newest().await.unwrap().number, 1);
    assert_eq!(web.newest().await.unwrap().number, 1);
    stage.report(0, "web", "failed").await;
    let told = web.number(2).await;
    assert_eq!((told.number, told.changes.len()), (2, 1), "{:?}", told.changes);
    let told = here.number(2).await;
    assert_eq!((told.number, told.changes.len()), (2, 1), "{:?}", told.changes);
    assert_eq!(told.changes[0].from.unwrap().standing, Standing::Installed);
    assert_eq!(told.changes[0].to.unwrap().standing, Standing::Failed);
    assert_eq!(db.newest().await.unwrap().number, 2);
}

/// An answer as a notice shows it: a notice is about changes, and to read a report is none.
fn without_reports(mut answer: Value) -> Value {
    match &mut answer {
        Value::Object(fields) => {
            fields.remove("report");
            fields.values_mut().for_each(|field| *field = without_reports(field.take()));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| *item = without_reports(item.take())),
        _ => {}
    }
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn n07_the_first_notice_is_the_present() {
    let stage = Stage::start().await;
    let listener = Listener::start(&stage.hub, &of("web", json!({"id": "web", "output": "all"}))).await;
    let notice = listener.number(1).await;
    assert_eq!((notice.event, notice.since, notice.changes.len()), (NoticeEvent::Present, None, 0));
    let state = notice.state.unwrap();
    let query = Query { id: Some("web".parse().unwrap()), ..Query::default() };
    let answer = without_reports(stage.hub.ask("deployment", &query).await);
    assert_eq!(serde_json::to_value(&state.view).unwrap(), answer["view"]);
    let asked = stage.hub.bus.request(
        "muster.query.status",
        bytes::Bytes::from_static(br#"{"id":"web","output":"all"}"#),
        crate::PATIENCE,
    );
    let asked = without_reports(serde_json::from_slice(&asked.await.unwrap()).unwrap());
    for part in ["rollup", "apps", "targets"] {
        assert_eq!(serde_json::to_value(&state).unwrap()[part], asked[part], "{part}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn n08_delivery_failure_silence_and_removal_are_told_as_well_as_health() {
    let mut stage = Stage::start().await;
    stage.devices[0].wants(&stage.hub, &["web", "db", "tap"]).await;
    let about = json!({"id": "tap", "output": "all", "waitFor": true});
    let listener = Listener::start(&stage.hub, &of("tap", about)).await;
    let deployed = |notice: &Notice| {
        let state = notice.state.as_ref()?;
        state.targets.first()?.deployed_status
    };
    let is = |wanted| move |notice: &Notice| deployed(notice) == Some(wanted);
    let notice = listener.told("published and not taken up", is(Deployed::Pending)).await;
    if notice.number > 1 {
        assert!(notice.changes[0].from.is_none(), "it was not there: {:?}", notice.changes);
    }
    stage.report(0, "tap", "installing").await;
    let notice = listener.told("taken up", is(Deployed::Applied)).await;
    assert_eq!(notice.changes[0].from.unwrap().standing, Standing::Waiting);
    stage.report(0, "tap", "failed").await;
    listener.told("failed", |notice| verdict(notice) == Some(Verdict::Failing)).await;
    stage.devices[0].is(&stage.hub, "stale").await;
    let silent = |notice: &Notice| {
        notice.changes.iter().any(|change| change.to.is_some_and(|to| to.freshness == Freshness::Stale))
    };
    listener.told("silent", silent).await;
    stage.devices[0].wants(&stage.hub, &["web", "db"]).await;
    listener.told("it shall go", is(Deployed::Deleting)).await;
    stage.report(0, "tap", "removed").await;
    listener.told("it is gone", |notice| notice.event == NoticeEvent::Gone).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn n09_a_leaver_leaves_nothing_and_a_slow_reader_delays_no_one() {
    let mut stage = Stage::start().await;
    let idle = Listener::start(&stage.hub, &of("idle", json!({"id": "web", "output": "all"}))).await;
    idle.number(1).await;
    // Nobody confirms, nobody reads: the stream holds one notice of it all the same, and others hear at once.
    let busy = Listener::start(&stage.hub, &of("busy", json!({"id": "web"}))).await;
    busy.number(1).await;
    for round in 0..6 {
        let number = busy.newest().await.unwrap().number;
        stage.report(0, "web", ["failed", "installed"][round % 2]).await;
        busy.number(number + 1).await;
    }
    let held = stage.hub.bus.stream_state(stream::NOTICES).await.unwrap().messages;
    assert_eq!(held, 4, "a subscription and a notice of each");

    ask(&stage.hub, "unsubscribe", &json!({"name": "busy"})).await;
    let last = busy.told("its end", |notice| notice.event == NoticeEvent::Ended).await;
    assert_eq!(last.reason, Some(EndReason::Unsubscribed));
    stage.report(0, "web", "installing").await;
    idle.told("the change", |notice| verdict(notice) == Some(Verdict::Progressing)).await;
    assert_eq!(busy.newest().await.unwrap().number, last.number, "nothing follows the end");
    let (code, _) = refusal(&stage.hub, "confirm", &json!({"name": "busy", "number": 1})).await;
    assert_eq!(code, "notFound");

    let short = of("short", json!({"id": "web", "leaseSeconds": 5}));
    let short = Listener::start(&stage.hub, &short).await;
    short.number(1).await;
    let last = short.told("the end of its lease", |notice| notice.event == NoticeEvent::Ended).await;
    assert_eq!(last.reason, Some(EndReason::Expired));
    let list = ask(&stage.hub, "list", &json!({})).await;
    let names: Vec<_> = list["subscriptions"].as_array().unwrap().iter().collect();
    assert_eq!(names.len(), 1, "{list}");
    assert_eq!(stage.rollup.handle.notices.subscriptions.get(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn n09_a_confirmation_renews_the_lease() {
    let stage = Stage::start().await;
    let about = of("web", json!({"id": "web", "leaseSeconds": 5}));
    let listener = Listener::start(&stage.hub, &about).await;
    listener.number(1).await;
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    for _ in 0..8 {
        ticks.tick().await;
        let answer = ask(&stage.hub, "confirm", &json!({"name": "web", "number": 1})).await;
        assert_eq!(answer["seen"], 1, "{answer}");
    }
    assert_eq!(listener.newest().await.unwrap().number, 1, "it has not ended");
    let (code, words) = refusal(&stage.hub, "confirm", &json!({"name": "web", "number": 9})).await;
    assert!(code == "badRequest" && words.contains("was never told"), "{words}");
}

#[tokio::test(flavor = "multi_thread")]
async fn n11_the_end_of_what_is_watched_is_told_and_so_is_its_return() {
    let mut stage = Stage::start().await;
    let listener = Listener::start(&stage.hub, &of("web", json!({"id": "web"}))).await;
    listener.number(1).await;
    for device in 0..2 {
        stage.devices[device].wants(&stage.hub, &["db"]).await;
        stage.report(device, "web", "removed").await;
    }
    let gone = listener.told("its end", |notice| notice.event == NoticeEvent::Gone).await;
    assert!(gone.state.is_none() && gone.message.unwrap().contains("targeted nowhere"));
    stage.devices[0].wants(&stage.hub, &["db", "web"]).await;
    let back = listener.told("its return", |notice| notice.state.is_some()).await;
    assert_eq!((back.event, back.number > gone.number), (NoticeEvent::Changed, true));
    assert!(back.changes[0].from.is_none() && back.changes[0].to.is_some(), "{:?}", back.changes);
}

/// The rows are kept for a month after; a subscription to them gets a notice at once.
#[tokio::test(flavor = "multi_thread")]
async fn n11_an_application_removed_everywhere_is_gone_until_it_returns() {
    let mut stage = Stage::start().await;
    let about = json!({"app": ["com.example.web"], "output": "all"});
    let listener = Listener::start(&stage.hub, &of("web", about)).await;
    listener.number(1).await;
    for device in 0..stage.devices.len() {
        stage.devices[device].wants(&stage.hub, &["db"]).await;
        stage.report(device, "web", "removed").await;
    }
    let gone = listener.told("its end", |notice| notice.event == NoticeEvent::Gone).await;
    assert!(gone.state.is_none() && gone.message.unwrap().contains("shall run nowhere and is left nowhere"));
    stage.devices[0].wants(&stage.hub, &["db", "web"]).await;
    let back = listener.told("its return", |notice| notice.state.is_some()).await;
    assert!(back.number > gone.number && back.changes[0].from.is_none(), "{:?}", back.changes);
}
