//! Every subject of every API, stream and service, with every reply subject, as every role, against a real server: what
//! changed on the hub is what the table of rights says, and nothing else.
//!
//! Subjects come from the topology and from the lists of rights, so that a new stream or right is tried without being
//! added here. Services within HUB are tried without foreign replies: they share an account with the streams, and a
//! reply there reaches what HUB reaches; that is why nobody else is in that account.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use muster_bus::topology::described;
use muster_bus::{
    Bus, BusConfig, Call, EndpointSpec, Outgoing, Requester, ServiceSpec, Serving, StreamState,
};
use muster_identity::exchange::OFFERS;
use muster_identity::{Role, creds, jwt};
use muster_tests::guarded::Guarded;
use muster_tests::leaf::Site;
use muster_tests::raw::Raw;
use muster_tests::server::device;
use muster_tests::wait::{soon, until};
use serde_json::json;

use crate::connect;

/// Streams of HUB, as the topology has them.
static STREAMS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let topology = described();
    let streams = topology["streams"].as_array().unwrap();
    streams.iter().map(|stream| stream["name"].as_str().unwrap().to_owned()).collect()
});
/// Messages handed to the server before it is asked whether it read them.
const BATCH: usize = 500;

/// What a role may change in HUB, by stream. The keeper changes the mirrors alone, people change what services change for
/// them.
fn may_change(role: Role) -> BTreeSet<&'static str> {
    let streams: &[&'static str] = match role {
        Role::Device => &["UPLINK", "PRESENCE"],
        // LEDGER takes desired states from DOWNLINK.
        Role::Publisher => &["DOWNLINK", "LEDGER"],
        Role::Ingest => &["DOWNLINK", "LEDGER", "UPLINK"],
        Role::Rollup => &["KV_views", "NOTICES"],
        Role::Keeper | Role::Viewer | Role::Subscriber => &[],
        // Settings of streams that are there; credentials are made for an hour.
        Role::Maintainer => return STREAMS.iter().map(String::as_str).collect(),
        // Renewed tokens of devices. Within HUB a reply reaches what any service does.
        Role::Renewer => &["DOWNLINK"],
        Role::Operator => &["DOWNLINK"],
    };
    streams.iter().copied().collect()
}

/// A hub with something in every stream, mirrors, and services that answer every request with a text.
struct Stage {
    hub: Guarded,
    ingest: Bus,
    keeper: Bus,
    asked: Arc<Mutex<Vec<Requester>>>,
    _serving: Vec<Serving>,
    _services: Vec<Bus>,
}

impl Stage {
    async fn start() -> Self {
        let site = "plant7".parse().unwrap();
        let hub = Guarded::start_with_sites(&[&site]);
        let ingest = crate::ingest(&hub).await;
        let (publisher, rollup) =
            (connect(hub.config(Role::Publisher)).await, connect(hub.config(Role::Rollup)).await);
        let operator = connect(hub.config(Role::Operator)).await;
        for key in ["press-4", "press-5"] {
            hub.enroll(&device(key), "1h");
            let write = async |bus: &Bus, subject: String| {
                bus.publish(Outgoing::new(subject, "stored")).await.unwrap()
            };
            write(&publisher, format!("muster.desired.plant7.{key}")).await;
            write(&ingest, format!("muster.receipt.plant7.{key}")).await;
            write(&ingest, format!("muster.status.plant7.{key}.web")).await;
            write(&operator, format!("muster.credential.plant7.{key}")).await;
            let own = connect(hub.device_config(&device(key))).await;
            write(&own, format!("muster.report.plant7.{key}")).await;
            write(&own, format!("muster.presence.plant7.{key}")).await;
        }
        for subject in ["$KV.views.fleet", "muster.subscription.mine", "muster.notice.mine"] {
            rollup.publish(Outgoing::new(subject, "stored")).await.unwrap();
        }
        hub.mirror().await;
        let keeper = connect(hub.config(Role::Keeper)).await;
        let asked = Arc::new(Mutex::new(Vec::new()));
        let serving = vec![
            serve(
                &publisher,
                "muster-publisher",
                &["muster.publisher.apply", "muster.publisher.status"],
                &asked,
            )
            .await,
            serve(
                &rollup,
                "muster-query",
                &["muster.query.fleet", "muster.notify.list", "muster.view.apply"],
                &asked,
            )
            .await,
            serve(&ingest, "muster-ingest", &["muster.ingest.quarantine.0"], &asked).await,
        ];
        Self { hub, ingest, keeper, asked, _serving: serving, _services: vec![publisher, rollup, operator] }
    }

    async fn state(&self) -> BTreeMap<&'static str, StreamState> {
        let mut state = BTreeMap::new();
        for stream in STREAMS.iter().map(String::as_str) {
            state.insert(stream, self.ingest.stream_state(stream).await.unwrap());
        }
        state
    }

    async fn mirrors(&self) -> [StreamState; 2] {
        let of = async |stream| self.keeper.stream_state(stream).await.unwrap();
        [of("LEDGER").await, of("KV_views").await]
    }

    fn raw(&self, role: Role) -> Raw {
        let creds = match role {
            Role::Device => self.hub.dir().join("plant7_press-4.creds"),
            role => self.hub.creds(role),
        };
        Raw::connect(self.hub.server.port(), &creds).unwrap()
    }

    fn key_of(&self, role: Role) -> String {
        let text = std::fs::read_to_string(self.hub.creds(role)).unwrap();
        jwt::read(creds::token(&text).unwrap()).unwrap().sub
    }
}

async fn serve(
    bus: &Bus,
    name: &'static str,
    subjects: &[&'static str],
    asked: &Arc<Mutex<Vec<Requester>>>,
) -> Serving {
    let endpoint = |subject: &&'static str| EndpointSpec {
        name: subject.rsplit('.').next().unwrap(),
        subject: (*subject).to_owned(),
    };
    let endpoints = subjects.iter().map(endpoint).collect();
    let spec = ServiceSpec { name, version: "1.0.0", description: "answers", endpoints };
    let asked = Arc::clone(asked);
    let answer = move |call: Call| {
        asked.lock().unwrap().push(call.requester);
        async { Ok("an answer".into()) }
    };
    bus.serve(spec, answer).await.unwrap()
}

/// Requests of JetStream's API, each with a payload that it takes where it needs one.
fn api_subjects() -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> =
        ["INFO", "STREAM.NAMES", "STREAM.LIST", "STREAM.CREATE.MINE", "ACCOUNT.PURGE.X"]
            .map(|verb| (format!("$JS.API.{verb}"), String::new()))
            .into();
    for stream in STREAMS.iter() {
        let config = |deliver: &str| json!({ "stream_name": stream, "config": { "name": "mine", "ack_policy": "none", "deliver_subject": deliver } });
        let stream_config = json!({ "name": stream, "subjects": ["foreign.>"], "max_msgs": 1 }).to_string();
        for (verb, payload) in [
            ("STREAM.INFO", String::new()),
            ("STREAM.DELETE", String::new()),
            ("STREAM.PURGE", String::new()),
            ("STREAM.UPDATE", stream_config.clone()),
            ("STREAM.CREATE", stream_config),
            ("STREAM.MSG.GET", json!({ "seq": 1 }).to_string()),
            ("STREAM.MSG.DELETE", json!({ "seq": 1 }).to_string()),
            ("STREAM.SNAPSHOT", json!({ "deliver_subject": "foreign" }).to_string()),
            ("STREAM.RESTORE", String::new()),
            ("STREAM.LEADER.STEPDOWN", String::new()),
            ("DIRECT.GET", json!({ "seq": 1 }).to_string()),
            ("DIRECT.GET", json!({ "last_by_subj": "nothing.there" }).to_string()),
            ("CONSUMER.LIST", String::new()),
            ("CONSUMER.NAMES", String::new()),
            ("CONSUMER.CREATE", config("$JS.API.STREAM.DELETE.LEDGER").to_string()),
            ("CONSUMER.CREATE", config("muster.desired.plant7.press-5").to_string()),
        ] {
            all.push((format!("$JS.API.{verb}.{stream}"), payload));
        }
        for verb in
            ["DURABLE.CREATE", "INFO", "DELETE", "MSG.NEXT", "PAUSE", "UNPIN", "RESET", "LEADER.STEPDOWN"]
        {
            all.push((format!("$JS.API.CONSUMER.{verb}.{stream}.ingest-0"), String::new()));
        }
        all.push((format!("$JS.API.CONSUMER.CREATE.{stream}.mine"), config("$KV.views.fleet").to_string()));
        all.push((format!("$JS.API.CONSUMER.CREATE.{stream}.mine.>"), config("_INBOX.somebody").to_string()));
        all.push((format!("$JS.API.DIRECT.GET.{stream}.nothing.there"), String::new()));
        all.push((format!("$JS.ACK.{stream}.ingest-0.1.1.1.1.0"), String::new()));
        all.push((format!("$JS.ACK._.hash.{stream}.ingest-0.1.1.1.1.0"), String::new()));
        all.push((format!("$JS.FC.{stream}.ingest-0.x"), String::new()));
    }
    all
}

/// A subject of each pattern that any role may use or any account offers, and of every kind of document.
fn own_subjects() -> Vec<(String, String)> {
    let mut patterns: BTreeSet<String> = OFFERS.iter().map(|offer| offer.subject.to_owned()).collect();
    patterns.extend(OFFERS.iter().filter_map(|offer| offer.local.map(str::to_owned)));
    for role in Role::ALL {
        let rights = role.rights();
        patterns.extend(rights.publish.into_iter().chain(rights.subscribe));
    }
    let as_they_are: Vec<_> = patterns.iter().filter(|pattern| !pattern.contains('{')).cloned().collect();
    let filled = |pattern: &String| {
        let subject = pattern.replace("{site}", "plant7").replace("{key}", "somebody");
        let example = match pattern.contains(".*.*") {
            true => subject.replacen(".*.*", ".plant7.press-5", 1),
            false => subject,
        };
        ["press-4", "press-5"].map(|device| {
            let subject = example.replace("{device}", device).replace("press-5", device);
            (subject.replace(['*', '>'], "mine"), String::new())
        })
    };
    let examples: BTreeSet<_> = patterns.iter().flat_map(filled).collect();
    // A wildcard in a subject that is published stands for nothing, and must be no way around a right.
    examples.into_iter().chain(as_they_are.into_iter().map(|pattern| (pattern, String::new()))).collect()
}

/// Subjects at which an answer would do harm if it got there.
fn harmful_replies() -> Vec<String> {
    let streams = STREAMS.iter().flat_map(|stream| {
        ["STREAM.DELETE", "STREAM.PURGE", "CONSUMER.DELETE"].map(|verb| match verb {
            "CONSUMER.DELETE" => format!("$JS.API.{verb}.{stream}.ingest-0"),
            _ => format!("$JS.API.{verb}.{stream}"),
        })
    });
    let fixed = [
        "hub.api.STREAM.DELETE.LEDGER",
        "hub.api.STREAM.INFO.LEDGER",
        "mirror.readers.x",
        "muster.desired.plant7.press-5",
        "muster.receipt.plant7.press-5",
        "muster.credential.plant7.press-5",
        "muster.report.plant7.press-5",
        "muster.presence.plant7.press-5",
        "muster.status.plant7.press-5.web",
        "muster.incident.plant7.press-5",
        "muster.owner.0.0",
        "muster.hub.0",
        "muster.hearing.0",
        "muster.subscription.mine",
        "muster.notice.mine",
        "$KV.views.fleet",
        "muster.publisher.apply",
        "muster.query.fleet",
        "$SRV.PING",
        "_INBOX.somebody.x",
        "_R_.abc.def",
    ];
    streams.chain(fixed.map(str::to_owned)).collect()
}

/// Whether a subject is one of a pattern's.
fn covers(pattern: &str, subject: &str) -> bool {
    let mut subject = subject.split('.');
    for token in pattern.split('.') {
        match (token, subject.next()) {
            (">", Some(_)) => return true,
            ("*", Some(_)) => {}
            (token, Some(given)) if token == given => {}
            _ => return false,
        }
    }
    subject.next().is_none()
}

/// The subjects that the server lets a role publish to, which must be those of the table.
fn permitted(raw: &mut Raw, role: Role) -> Vec<(String, String)> {
    let rights = role.rights().publish;
    let own: Vec<String> =
        rights.iter().map(|right| right.replace("{site}", "plant7").replace("{device}", "press-4")).collect();
    let mut found = Vec::new();
    for (subject, payload) in api_subjects().into_iter().chain(own_subjects()) {
        let is_refused =
            raw.publish(&subject, "", &payload).iter().any(|line| line.contains("Permissions Violation"));
        let is_right = own.iter().any(|pattern| covers(pattern, &subject));
        assert_eq!(!is_refused, is_right, "{role:?}: {subject}");
        if is_right {
            found.push((subject, payload));
        }
    }
    found
}

fn pairs(subjects: &[(String, String)]) -> Vec<(String, String, String)> {
    let replies = harmful_replies();
    let with = |(subject, payload): &(String, String)| {
        let (subject, payload) = (subject.clone(), payload.clone());
        replies.clone().into_iter().map(move |reply| (subject.clone(), reply, payload.clone()))
    };
    subjects.iter().flat_map(with).collect()
}

/// Streams whose state differs.
fn changed(
    before: &BTreeMap<&'static str, StreamState>,
    after: &BTreeMap<&'static str, StreamState>,
) -> BTreeSet<&'static str> {
    before.iter().filter(|(stream, state)| after[*stream] != **state).map(|(stream, _)| *stream).collect()
}

/// What was there after a role had tried everything.
struct Look {
    state: BTreeMap<&'static str, StreamState>,
    mirrors: [StreamState; 2],
    role: Role,
}

impl Look {
    /// The next look, after another role. All that has changed since this look is one of the two roles': the server may have
    /// stored something of the first one late.
    async fn next(self, stage: &Stage, role: Role) -> Self {
        let next = Self { state: stage.state().await, mirrors: stage.mirrors().await, role };
        let changed = changed(&self.state, &next.state);
        let allowed = &may_change(self.role) | &may_change(role);
        let (before, after) = (&self.state, &next.state);
        assert!(changed.is_subset(&allowed), "{role:?} changed {changed:?}:\n{before:#?}\n{after:#?}");
        if role != Role::Keeper {
            let created = |look: &Self| look.mirrors.each_ref().map(|mirror| mirror.created_at);
            assert_eq!(created(&next), created(&self), "{role:?}");
        }
        next
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_each_role_changes_by_any_subject_and_reply_is_the_table_of_rights() {
    let stage = Stage::start().await;
    let mut look = Look { state: stage.state().await, mirrors: stage.mirrors().await, role: Role::Viewer };
    // Those who change nothing come first: a late effect of theirs is found at the next look.
    for role in [Role::Viewer, Role::Subscriber, Role::Keeper, Role::Operator, Role::Device] {
        let mut raw = stage.raw(role);
        let subjects = permitted(&mut raw, role);
        if role != Role::Keeper {
            for batch in pairs(&subjects).chunks(BATCH) {
                let refused = raw.publish_all(batch).into_iter().find(|line| !line.contains("Reply of"));
                assert!(refused.is_none_or(|line| !line.contains("-ERR")), "{role:?}");
            }
        }
        if role == Role::Keeper {
            stage.hub.mirror().await;
        }
        look = look.next(&stage, role).await;
    }
    for role in [Role::Renewer, Role::Publisher, Role::Rollup, Role::Ingest] {
        permitted(&mut stage.raw(role), role);
        look = look.next(&stage, role).await;
    }
    soon("the streams as the contract has them", stage.ingest.converge()).await.unwrap();
    look.next(&stage, Role::Ingest).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_role_hears_what_is_anothers_alone_or_in_a_queue_group() {
    let stage = Stage::start().await;
    let mut patterns: BTreeSet<String> = own_subjects().into_iter().map(|(subject, _)| subject).collect();
    let everything =
        [">", "*", "*.>", "*.*", "$JS.>", "$SYS.>", "$KV.>", "muster.>", "_INBOX.>", "_INBOX.*.*", "_R_.>"];
    patterns.extend(everything.map(str::to_owned));
    for role in Role::ALL.into_iter().filter(|role| role.is_everyday() || *role == Role::Device) {
        let key = if role == Role::Device { String::new() } else { stage.key_of(role) };
        let fill = |right: String| {
            right.replace("{site}", "plant7").replace("{device}", "press-4").replace("{key}", &key)
        };
        let own: Vec<String> = role.rights().subscribe.into_iter().map(fill).collect();
        let mut raw = stage.raw(role);
        for (number, pattern) in (1..).zip(&patterns) {
            for subscription in [pattern.clone(), format!("{pattern} group")] {
                let said = raw.subscribe(&subscription, number).join("\n");
                let is_own = own.iter().any(|right| covers(right, pattern));
                assert_eq!(
                    !said.contains("Permissions Violation"),
                    is_own,
                    "{role:?}: {subscription}: {said}"
                );
                raw.unsubscribe(number);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_header_of_a_person_empties_a_stream_or_sets_a_life_span() {
    let stage = Stage::start().await;
    let before = stage.state().await["DOWNLINK"].clone();
    let mut raw = stage.raw(Role::Operator);
    let key = stage.key_of(Role::Operator);
    raw.subscribe(&format!("_INBOX.{key}.*"), 1);
    let headers =
        ["Nats-Rollup: all", "Nats-Rollup: sub", "Nats-TTL: 1s", "Nats-Incr: +1", "Nats-Batch-Id: x"];
    for header in headers {
        let subject = "muster.credential.plant7.press-5";
        raw.publish_with(subject, &format!("_INBOX.{key}.1"), header, "{}");
    }
    let after = stage.state().await["DOWNLINK"].clone();
    assert!(after.messages >= before.messages && after.first_seq == before.first_seq, "{before:?} {after:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_site_that_is_taken_over_changes_by_no_reply_what_is_not_its_own() {
    let stage = Stage::start().await;
    let site = Site::taken_over(&stage.hub, &"plant7".parse().unwrap());
    let attacker = connect(BusConfig::service(site.server.url(), "attacker")).await;
    let (fetch, patience) = ("muster.fetch.desired.plant7.press-4", Duration::from_secs(1));
    let own = async || attacker.request(fetch, Default::default(), patience).await.ok();
    until("the site's own documents", own, Option::is_some).await.unwrap();
    let before = stage.state().await;
    let all: Vec<_> = api_subjects().into_iter().chain(own_subjects()).collect();
    let mut raw = Raw::anonymous(site.server.port()).unwrap();
    for batch in pairs(&all).chunks(BATCH) {
        raw.publish_all(batch);
    }
    // Across the leaf node the answer to a request tells that all before it was handled.
    until("the site's own documents again", own, Option::is_some).await.unwrap();
    let changed = changed(&before, &stage.state().await);
    assert!(changed.is_subset(&BTreeSet::from(["UPLINK", "PRESENCE"])), "{changed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_knows_who_asks_and_a_forged_header_changes_nothing() {
    let stage = Stage::start().await;
    let forged = json!({ "acc": "A", "user": stage.key_of(Role::Operator), "name_tag": "operator", "issuer_key": "A" });
    for (role, subject) in [
        (Role::Viewer, "muster.query.fleet"),
        (Role::Subscriber, "muster.publisher.status"),
        (Role::Operator, "muster.ingest.quarantine.0"),
    ] {
        stage.asked.lock().unwrap().clear();
        let key = stage.key_of(role);
        let mut raw = stage.raw(role);
        raw.subscribe(&format!("_INBOX.{key}.*"), 1);
        let header = format!("Nats-Request-Info: {forged}");
        raw.publish_with(subject, &format!("_INBOX.{key}.1"), &header, "{}");
        let asked = async || stage.asked.lock().unwrap().clone();
        let asked = until("a request", asked, |asked: &Vec<Requester>| !asked.is_empty()).await;
        let name = role.as_str().to_owned();
        assert_eq!(asked, [Requester::User { key, name, role: Some(role) }]);
    }
}

/// The premise of everything here: without it the other tests could not fail.
#[tokio::test(flavor = "multi_thread")]
async fn inside_hub_a_reply_deletes_a_stream_so_only_services_are_there() {
    let stage = Stage::start().await;
    let mut raw = stage.raw(Role::Ingest);
    raw.publish("$JS.API.DIRECT.GET.LEDGER.nothing.there", "$JS.API.STREAM.DELETE.LEDGER", "");
    let ledger = async || stage.ingest.stream_state("LEDGER").await.is_ok();
    until("LEDGER is gone", ledger, |is_there| !is_there).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mirror_that_was_deleted_or_lost_its_origin_is_made_again() {
    let stage = Stage::start().await;
    let mut raw = stage.raw(Role::Keeper);
    raw.publish("$JS.API.STREAM.DELETE.LEDGER", "", "");
    stage.hub.mirror().await;
    let (origin, mirror) = (stage.state().await["LEDGER"].clone(), stage.mirrors().await[0].clone());
    assert_eq!((mirror.messages, mirror.last_seq), (origin.messages, origin.last_seq));
    let mut raw = stage.raw(Role::Ingest);
    raw.publish("$JS.API.DIRECT.GET.LEDGER.nothing.there", "$JS.API.STREAM.DELETE.LEDGER", "");
    let ledger = async || stage.ingest.stream_state("LEDGER").await.is_ok();
    until("LEDGER is gone", ledger, |is_there| !is_there).await;
    soon("LEDGER again", stage.ingest.converge()).await.unwrap();
    let fact = Outgoing::new("muster.status.plant7.press-4.web", "after");
    stage.ingest.publish(fact).await.unwrap();
    stage.hub.mirror().await;
    let origin = stage.state().await["LEDGER"].clone();
    let mirror = async || stage.mirrors().await[0].clone();
    let is_same =
        |mirror: &StreamState| (mirror.messages, mirror.last_seq) == (origin.messages, origin.last_seq);
    until("the mirror of the new LEDGER", mirror, is_same).await;
}
