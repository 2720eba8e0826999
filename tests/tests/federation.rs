//! What the federation promises, on real servers: two hubs, each with a LEDGER and a rollup, and a top that adds their
//! counts. A third hub with all of their facts says what the top has to say.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use clap::Parser;
use muster_bus::Bus;
use muster_contract::canonical::Digest;
use muster_contract::limits::VIEW_ERRORS_MAX;
use muster_contract::parts::{HUBS_KEY, HubList};
use muster_contract::subjects::{QUERY_PREFIX, ViewKey};
use muster_federation::metrics::ViewResult;
use muster_identity::Role;
use muster_service::life::{Drained, Life};
use muster_tests::guarded::Guarded;
use muster_tests::ledger::{DEVICES_PER_SITE, Message, beginning, publish, reports};
use muster_tests::server::Server;
use muster_tests::wait::{soon, until};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

/// Time a service may take to drain.
const DRAIN: Duration = Duration::from_secs(10);
/// Time an answer may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Devices of the hubs: each has one whole site, `site-0` and `site-1`.
const NORTH: Range<usize> = 0..12;
/// See [`NORTH`].
const SOUTH: Range<usize> = DEVICES_PER_SITE..DEVICES_PER_SITE + 9;

/// A server and a connection that may do everything.
struct Place {
    server: Server,
    bus: Bus,
}

impl Place {
    async fn start() -> Self {
        let server = Server::start();
        let stop = CancellationToken::new();
        let bus = soon("a connection", Bus::connect(server.config("test"), &stop)).await.unwrap();
        Self { server, bus }
    }

    /// The views in the bucket by key, those that are deleted left out.
    async fn views(&self) -> BTreeMap<String, (u64, Value)> {
        let mut watch = soon("views", self.bus.view_watch(">")).await.unwrap();
        let mut views = BTreeMap::new();
        while let Some(batch) = soon("views", watch.next_present(1000)).await.unwrap() {
            for entry in batch {
                let value = entry.value.map(|value| serde_json::from_slice(&value).unwrap());
                views.extend(value.map(|value| (entry.key, (entry.revision, value))));
            }
        }
        views
    }

    /// Digests of the views by key.
    async fn digests(&self) -> BTreeMap<String, Digest> {
        let digest = |value: &Value| value["digest"].as_str().map(|text| text.parse().unwrap());
        self.views().await.into_iter().filter_map(|(key, (_, value))| Some((key, digest(&value)?))).collect()
    }

    async fn view(&self, key: &str) -> Value {
        let found = soon("a view", self.bus.view_get(key)).await.unwrap();
        found
            .and_then(|entry| entry.value)
            .map_or(Value::Null, |value| serde_json::from_slice(&value).unwrap())
    }

    async fn ask(&self, what: &str, question: Value) -> Value {
        let subject = format!("{QUERY_PREFIX}.{what}");
        let answer = self.bus.request(&subject, question.to_string().into(), PATIENCE).await.unwrap();
        serde_json::from_slice(&answer).unwrap()
    }
}

/// A hub with a rollup in this process.
struct Hub {
    place: Place,
    rollup: Life,
    handle: muster_rollup::app::Handle,
    _dir: TempDir,
}

impl Hub {
    /// One whose devices have reported everything as installed.
    async fn start(devices: impl Iterator<Item = usize> + Clone) -> Self {
        let place = Place::start().await;
        soon("the topology", place.bus.converge()).await.unwrap();
        publish(&place.bus, devices.clone().flat_map(begun)).await;
        for round in 1..=2 {
            publish(&place.bus, devices.clone().flat_map(|device| reports(device, round))).await;
        }
        let (dir, url) = (tempfile::tempdir().unwrap(), place.server.hub_url());
        let words = ["muster-rollup", "--nats-url", &url, "--data-dir", dir.path().to_str().unwrap()];
        let config = muster_rollup::config::Cli::try_parse_from(words).unwrap().check().unwrap();
        let rollup = Life::new();
        let handle = soon("a rollup", muster_rollup::app::start(config, &rollup)).await.unwrap();
        let hub = Self { place, rollup, handle, _dir: dir };
        hub.has(devices.count()).await;
        hub
    }

    /// Waits until its bucket says what these devices have told.
    async fn has(&self, devices: usize) {
        let told = json!({ "installed": { "fresh": 3 * devices } });
        until("the hub's view of its fleet", || self.place.view("fleet"), |view| view["counts"] == told)
            .await;
        let look = || async {
            let told = self.handle.present.look(|now| now.fleet.digests());
            (told, self.place.digests().await)
        };
        until("all of the hub's views", look, |(told, seen)| told == seen).await;
        let missing = || async { self.rollup.health().missing() };
        until("a ready rollup", missing, Vec::is_empty).await;
    }

    async fn put(&self, messages: impl IntoIterator<Item = Message>) {
        publish(&self.place.bus, messages).await;
    }
}

/// What a device shall run, with a label that every other device has, and that it is heard.
fn begun(device: usize) -> [Message; 2] {
    let [(subject, desired), liveness] = beginning(device);
    let mut desired: Value = serde_json::from_str(&desired).unwrap();
    if device.is_multiple_of(2) {
        let ring = ["inner", "outer"][device / 2 % 2];
        desired["labels"] = json!({ "ring": ring });
    }
    [(subject, desired.to_string()), liveness]
}

/// What a device says of one deployment: that it failed.
fn failure(device: usize) -> Message {
    let [(subject, report), ..] = reports(device, 3);
    let mut report: Value = serde_json::from_str(&report).unwrap();
    let error = json!({ "code": "E1", "message": format!("disk full on {device}"), "source": "test" });
    report["status"] = json!({ "state": "failed", "error": error });
    (subject, report.to_string())
}

/// A federation in this process.
struct Federation {
    life: Life,
    handle: muster_federation::app::Handle,
}

impl Federation {
    async fn start(top: &Place, hubs: &[(&str, &Hub)]) -> Self {
        let named = hubs.iter().map(|(name, hub)| format!("{name}={}", hub.place.server.hub_url()));
        let (top, named) = (top.server.hub_url(), named.collect::<Vec<_>>().join(","));
        let words = ["muster-federation", "--nats-url", &top, "--hub", &named, "--lease", "3s"];
        let config = muster_federation::config::Cli::try_parse_from(words).unwrap().check().unwrap();
        let life = Life::new();
        let handle = soon("a federation", muster_federation::app::start(config, &life)).await.unwrap();
        Self { life, handle }
    }

    async fn ready(&self) {
        let missing = || async { self.life.health().missing() };
        until("a ready federation", missing, Vec::is_empty).await;
    }

    async fn drain(self) {
        assert_eq!(self.life.drain(DRAIN).await, Drained::default());
        assert!(self.life.failure().is_none(), "{:?}", self.life.failure());
    }
}

/// Two hubs, a top, and a federation that is ready.
struct Two {
    north: Hub,
    south: Hub,
    top: Place,
    federation: Federation,
}

impl Two {
    async fn start() -> Self {
        let (north, south) = (Hub::start(NORTH).await, Hub::start(SOUTH).await);
        let top = Place::start().await;
        let federation = Federation::start(&top, &[("north", &north), ("south", &south)]).await;
        federation.ready().await;
        let two = Self { north, south, top, federation };
        two.top_is_written().await;
        two
    }

    /// Waits until the top's bucket says what the federation knows.
    async fn top_is_written(&self) {
        let look = || async {
            let (seen, merged) = (self.top.digests().await, &self.federation.handle.merged);
            let known = |key: &String| {
                let view = merged.look(|merge| merge.view(&ViewKey::parse(key).unwrap()));
                (key.clone(), view.unwrap().0)
            };
            (seen.keys().map(known).collect::<BTreeMap<_, _>>(), seen)
        };
        until("the top's views", look, |(known, seen)| seen.len() == 8 && known == seen).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_top_says_what_one_hub_with_all_facts_would_say_digest_for_digest() {
    let Two { north, south, top, federation } = Two::start().await;
    let whole = Hub::start(NORTH.chain(SOUTH)).await;
    let look = || async { (whole.place.digests().await, top.digests().await) };
    let (wanted, _) = until("the views of the whole", look, |(wanted, seen)| wanted == seen).await;
    let keys: Vec<&str> = wanted.keys().map(String::as_str).collect();
    let keys_wanted = [
        "deployment.db",
        "deployment.log",
        "deployment.web",
        "fleet",
        "group.ring.inner",
        "group.ring.outer",
        "site.site-0",
        "site.site-1",
    ];
    assert_eq!(keys, keys_wanted);

    // Failures with one error code at both hubs, a device that moves to another ring, and one that is silent.
    let (fails, moves) = ([NORTH.end - 1, SOUTH.start, SOUTH.start + 3], SOUTH.start + 2);
    for device in fails {
        let at = if NORTH.contains(&device) { &north } else { &south };
        at.put([failure(device)]).await;
        whole.put([failure(device)]).await;
    }
    let [(subject, desired), (heard, liveness)] = begun(moves);
    let desired = desired.replace("\"outer\"", "\"third\"").replace("\"inner\"", "\"third\"");
    let moved = desired.replace("\"generation\":1,\"issuedAt\"", "\"generation\":2,\"issuedAt\"");
    let silent = liveness.replace("\"fresh\"", "\"stale\"");
    let messages = [(subject, moved), (heard, silent)];
    south.put(messages.clone()).await;
    whole.put(messages).await;
    let changed = |(wanted_now, seen): &(BTreeMap<String, Digest>, _)| {
        *wanted_now == *seen
            && wanted_now["deployment.web"] != wanted["deployment.web"]
            && wanted_now.contains_key("group.ring.third")
    };
    until("the views of the whole after a change", look, changed).await;
    let web = top.view("deployment.web").await;
    assert_eq!((&web["errors"][0]["count"], &web["verdict"]), (&json!(3), &json!("failing")));

    for (what, question) in [
        ("fleet", json!({})),
        ("deployment", json!({"id": "web"})),
        ("deployments", json!({"limit": 2})),
        ("deployments", json!({"after": "db"})),
        ("site", json!({"site": "site-1"})),
        ("labels", json!({})),
        ("groups", json!({"label": "ring"})),
        ("groups", json!({"label": "ring", "id": "web", "limit": 1})),
        ("group", json!({"label": "ring", "value": "third"})),
    ] {
        let wanted = without_places(whole.place.ask(what, question.clone()).await);
        let seen = without_places(top.ask(what, question.clone()).await);
        assert_eq!(seen, wanted, "{what} {question}");
    }
    federation.drain().await;
}

/// An answer without up to where it has read: each LEDGER has sequences of its own.
fn without_places(mut answer: Value) -> Value {
    match &mut answer {
        Value::Object(fields) => {
            fields.remove("asOf");
            fields.values_mut().for_each(|field| *field = without_places(field.take()));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| *item = without_places(item.take())),
        _ => {}
    }
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hub_that_is_gone_counts_as_silent_until_it_is_back() {
    let Two { north, mut south, top, federation } = Two::start().await;
    let look = || async { top.digests().await };
    let all = look().await;
    let before = top.view("deployment.web").await;
    assert_eq!(before["verdict"], "converged", "{before}");
    assert_eq!(
        before["converged"],
        json!({"lo": NORTH.len() + SOUTH.len(), "hi": NORTH.len() + SOUTH.len()})
    );

    south.place.server.kill();
    let gone = until("a silent hub", || top.view("deployment.web"), |view| *view != before).await;
    assert_eq!(gone["converged"], json!({"lo": NORTH.len(), "hi": NORTH.len() + SOUTH.len()}));
    assert_eq!(gone["verdict"], "incomplete");
    assert_eq!(gone["counts"]["installed"], json!({"fresh": NORTH.len(), "stale": SOUTH.len()}));
    let fleet = |view: &Value| view["devices"] == json!({"fresh": NORTH.len(), "stale": SOUTH.len()});
    until("a fleet of which a part is stale", || top.view("fleet"), fleet).await;
    until(
        "a site that is stale",
        || top.view("site.site-1"),
        |view| view["devices"] == json!({"stale": SOUTH.len()}),
    )
    .await;
    until("the hub told of", || top.view(HUBS_KEY), |view| view["hubs"][1]["heard"] == json!(false)).await;
    assert_eq!(top.digests().await["site.site-0"], all["site.site-0"], "the other hub's site is as it was");
    // What only that hub knows cannot be told; what the other knows can.
    let answer = top.ask("devices", json!({"site": "site-1"})).await;
    assert_eq!(answer["error"]["code"], "notReady");
    assert!(answer["error"]["message"].as_str().unwrap().contains("hub south"), "{answer}");
    assert_eq!(
        top.ask("devices", json!({"site": "site-0"})).await["devices"].as_array().unwrap().len(),
        NORTH.len()
    );

    south.place.server.restart();
    until("everything as before", look, |views| *views == all).await;
    federation.drain().await;
    drop(north);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_about_one_site_is_answered_by_its_hub_and_no_other_question_is_guessed() {
    let Two { north, south, top, federation } = Two::start().await;
    let device = json!({"site": "site-1", "device": format!("device-{}", SOUTH.start), "output": "detail"});
    for (hub, what, question) in [
        (&south, "device", device.clone()),
        (&north, "devices", json!({"site": "site-0", "limit": 3})),
        (&south, "status", json!({"id": "web", "site": ["site-1"], "output": "all"})),
        (&south, "status", json!({"device": [format!("site-1/device-{}", SOUTH.start)]})),
        (&north, "deployment", json!({"id": "web", "site": "site-0", "output": "all"})),
        (&north, "why", json!({"id": "web", "site": "site-0"})),
        (&north, "device", json!({"site": "site-0", "device": "nobody"})),
        (&south, "devices", json!({"site": "site-1", "atSeq": 20})),
    ] {
        assert_eq!(
            top.ask(what, question.clone()).await,
            hub.place.ask(what, question.clone()).await,
            "{what} {question}"
        );
    }
    for (what, question, code, says) in [
        ("devices", json!({}), "badRequest", "name a site"),
        ("status", json!({"id": "web"}), "badRequest", "north, south"),
        ("deployment", json!({"id": "web", "output": "all"}), "badRequest", "output"),
        ("verify", json!({}), "badRequest", "north, south"),
        ("fleet", json!({"atSeq": 3}), "badRequest", "the past"),
        ("views", json!({}), "badRequest", "ask the hub itself"),
        ("deployment", json!({"id": "nothing"}), "notFound", "nothing"),
        ("devices", json!({"site": "nowhere"}), "notFound", "nowhere"),
    ] {
        let error = &top.ask(what, question.clone()).await["error"];
        assert_eq!(error["code"], code, "{what} {question}: {error}");
        assert!(error["message"].as_str().unwrap().contains(says), "{what} {question}: {error}");
    }
    let hubs: HubList = serde_json::from_value(top.ask("hubs", json!({})).await).unwrap();
    let lines: Vec<_> = hubs.hubs.iter().map(|hub| (hub.name.as_str(), hub.heard, hub.sites)).collect();
    assert_eq!(lines, [("north", true, 1), ("south", true, 1)]);
    federation.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_writes_nothing_twice_and_a_standby_neither() {
    let Two { north, south, top, federation } = Two::start().await;
    let ghost = json!({"apiVersion": "muster/v1", "kind": "SiteView", "left": "behind"});
    let revisions = || async {
        top.views().await.into_iter().map(|(key, (revision, _))| (key, revision)).collect::<BTreeMap<_, _>>()
    };
    until("all views", revisions, |views| views.len() == 9).await;
    federation.life.abandon().await;
    soon("a view", top.bus.view_put("site.ghost", ghost.to_string().into(), None)).await.unwrap();
    let mut before = revisions().await;
    before.remove("site.ghost").unwrap();

    let hubs = [("north", &north), ("south", &south)];
    let (second, standby) = (Federation::start(&top, &hubs).await, Federation::start(&top, &hubs).await);
    for federation in [&second, &standby] {
        federation.ready().await;
        let views = before.len() as u64;
        let looked = || async { federation.handle.metrics.views_with(ViewResult::Unchanged) };
        until("a look at every view", looked, |looks| *looks >= views).await;
    }
    let after =
        until("what an earlier life left to go", revisions, |views| !views.contains_key("site.ghost")).await;
    assert_eq!(after, before);
    for federation in [&second, &standby] {
        assert_eq!(federation.handle.metrics.views_with(ViewResult::Written), 0);
    }

    // One of the two writes what changes.
    north.put([failure(NORTH.start)]).await;
    until("a change", || top.view("deployment.web"), |view| view["verdict"] == "failing").await;
    second.drain().await;
    standby.drain().await;
    drop(south);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_told_before_every_hub_was_read() {
    let (north, mut south, top) = (Hub::start(NORTH).await, Hub::start(SOUTH).await, Place::start().await);
    south.place.server.kill();
    let federation = Federation::start(&top, &[("north", &north), ("south", &south)]).await;
    let missing = || async { federation.life.health().missing() };
    until("a desk", missing, |missing| *missing == ["every hub, read once"]).await;
    let asked = || async { top.ask("fleet", json!({})).await["error"]["message"].clone() };
    let unread = |names: &Value| {
        names.as_str().is_some_and(|names| names.contains("south") && !names.contains("north"))
    };
    until("one hub to be read", asked, unread).await;
    assert_eq!(missing().await, ["every hub, read once"]);
    assert!(top.views().await.is_empty());
    let hubs = top.ask("hubs", json!({})).await;
    assert_eq!((&hubs["hubs"][0]["heard"], &hubs["hubs"][1]["heard"]), (&json!(true), &json!(false)));

    south.place.server.restart();
    federation.ready().await;
    let whole = json!({"fresh": NORTH.len() + SOUTH.len()});
    until("the fleet", || top.view("fleet"), |view| view["devices"] == whole).await;
    federation.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_that_no_message_holds_comes_in_several() {
    const DEVICES: usize = 1_000;
    let (hub, top) = (Hub::start(0..DEVICES).await, Place::start().await);
    let federation = Federation::start(&top, &[("only", &hub)]).await;
    federation.ready().await;
    // An error code of its own on every device: more than a view lists, and more than a message holds.
    let failures = (0..DEVICES).map(|device| {
        let (subject, report) = failure(device);
        (
            subject,
            report
                .replace("\"E1\"", &format!("\"{:x<100}-{device}\"", "E"))
                .replace("disk", &"disk ".repeat(80)),
        )
    });
    hub.put(failures).await;
    let look = || async { (hub.place.view("deployment.web").await, top.view("deployment.web").await) };
    let all = |(of_hub, seen): &(Value, Value)| {
        of_hub["digest"] == seen["digest"] && seen["omitted"]["errors"] == json!(DEVICES - VIEW_ERRORS_MAX)
    };
    let (_, seen) = until("every error", look, all).await;
    assert_eq!(
        (&seen["verdict"], seen["errors"].as_array().unwrap().len()),
        (&json!("failing"), VIEW_ERRORS_MAX)
    );
    federation.drain().await;
}

/// What a service is told of a guarded server, with the rights of a role: address, authority and credentials.
fn rights(server: &Guarded, role: Role) -> [String; 3] {
    let authority = server.authority().unwrap().display().to_string();
    [server.url(), authority, server.creds(role).display().to_string()]
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rights_of_a_subscriber_at_a_hub_and_of_a_rollup_at_the_top_suffice() {
    let (hub, top, dir) = (Guarded::start(), Guarded::start(), tempfile::tempdir().unwrap());
    let [url, authority, creds] = rights(&hub, Role::Rollup);
    let words = ["muster-rollup", "--data-dir", dir.path().to_str().unwrap(), "--nats-url", &url];
    let words = [&words[..], &["--tls-ca", &authority, "--creds", &creds]].concat();
    let config = muster_rollup::config::Cli::try_parse_from(words).unwrap().check().unwrap();
    let rollup = Life::new();
    let _rollup = soon("a rollup", muster_rollup::app::start(config, &rollup)).await.unwrap();

    let [url, authority, creds] = rights(&hub, Role::Subscriber);
    let of_hub = [format!("hub={url}"), format!("hub={authority}"), format!("hub={creds}")];
    let [url, authority, creds] = rights(&top, Role::Rollup);
    let words =
        ["muster-federation", "--hub", &of_hub[0], "--hub-tls-ca", &of_hub[1], "--hub-creds", &of_hub[2]];
    let words = [&words[..], &["--nats-url", &url, "--tls-ca", &authority, "--creds", &creds]].concat();
    let config = muster_federation::config::Cli::try_parse_from(words).unwrap().check().unwrap();
    let life = Life::new();
    let handle = soon("a federation", muster_federation::app::start(config, &life)).await.unwrap();
    let federation = Federation { life, handle };
    federation.ready().await;

    let stop = CancellationToken::new();
    let ingest = soon("ingest", Bus::connect(hub.config(Role::Ingest), &stop)).await.unwrap();
    let [_, heard] = beginning(0);
    publish(&ingest, [heard]).await;
    let viewer = soon("a viewer", Bus::connect(top.config(Role::Viewer), &stop)).await.unwrap();
    let fleet = || async {
        let view = viewer.view_get("fleet").await.unwrap().and_then(|entry| entry.value)?;
        serde_json::from_slice::<Value>(&view).ok()
    };
    let one = |view: &Option<Value>| view.as_ref().is_some_and(|view| view["devices"] == json!({"fresh": 1}));
    until("the device", fleet, one).await;
    let question = json!({"site": "site-0"}).to_string();
    let answer = viewer.request("muster.query.devices", question.into(), PATIENCE).await.unwrap();
    let answer: Value = serde_json::from_slice(&answer).unwrap();
    assert_eq!(answer["devices"][0]["device"], "device-0", "{answer}");
    federation.drain().await;
    assert_eq!(rollup.drain(DRAIN).await, Drained::default());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hub_is_no_top() {
    let hub = Hub::start(NORTH).await;
    let url = hub.place.server.hub_url();
    let other = url.replace("127.0.0.1", "localhost");
    let words = ["muster-federation", "--nats-url", &other, "--hub", &format!("north={url}")];
    let config = muster_federation::config::Cli::try_parse_from(words).unwrap().check().unwrap();
    let refusal = soon("a refusal", muster_federation::app::start(config, &Life::new())).await.unwrap_err();
    assert!(refusal.to_string().contains("--nats-url is a hub"), "{refusal}");
}
