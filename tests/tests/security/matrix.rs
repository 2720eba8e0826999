//! Every subject of every API, stream and service, with every reply subject, as every role, against a real server: what
//! changed is what the table of rights says, all of it and nothing else.
//!
//! [`subjects`] makes what is tried from the topology and the lists of rights, [`table`] makes what is expected from the
//! same lists, and [`stage`] is the hub. A role within HUB is tried without foreign replies: there a reply reaches what HUB
//! reaches, as [`inside_hub_a_reply_deletes_a_stream_so_only_services_are_there`] shows, and that is why nobody but services
//! and a maintainer is in that account.

pub(crate) mod stage;
pub(crate) mod subjects;
pub(crate) mod table;

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use muster_bus::{BusConfig, Outgoing, Requester};
use muster_contract::OnBehalfOf;
use muster_contract::headers::ON_BEHALF_OF;
use muster_identity::exchange::Account;
use muster_identity::{KeyPair, Role, creds, on_behalf};
use muster_tests::leaf::Site;
use muster_tests::monitor::{Aspect, Change, Streams, changes};
use muster_tests::raw::Raw;
use muster_tests::wait::{soon, until};
use serde_json::json;

use crate::connect;
use stage::Stage;
use subjects::{CONSUMER, api_subjects, covers, own_subjects, pull_consumer, targets};
use table::Actor;

/// Messages handed to the server before it is asked whether it read them.
const BATCH: usize = 500;

/// Requests of one right that are tried with every reply: each reply is some milliseconds of the server's.
const OF_A_RIGHT: usize = 4;

/// All that is tried, in three parts: what makes and changes, then what deletes of a stream, then what deletes streams.
fn attempts(stage: &Stage, actor: &Actor) -> [Vec<(String, String)>; 3] {
    let account = actor.role.map_or(Account::Hub, Role::account);
    let settings = stage.settings(if account == Account::Readers { Account::Readers } else { Account::Hub });
    let own = own_subjects().into_iter().map(|subject| (subject, String::new()));
    let mut parts = [const { Vec::new() }; 3];
    for attempt in api_subjects(&settings).into_iter().chain(own) {
        let is_deletion = attempt.0.contains("DELETE") || attempt.0.contains("PURGE");
        let part = if attempt.0.contains("STREAM.DELETE") { 2 } else { usize::from(is_deletion) };
        parts[part].push(attempt);
    }
    parts
}

/// Tries each subject alone; those that the server takes, which must be those of the table.
fn permitted(raw: &mut Raw, actor: &Actor, attempts: &[(String, String)]) -> Vec<(String, String)> {
    let own: Vec<String> = actor.rights.publish.iter().map(|right| actor.filled(right)).collect();
    let mut found = Vec::new();
    for (subject, payload) in attempts {
        let is_refused =
            raw.publish(subject, "", payload).iter().any(|line| line.contains("Permissions Violation"));
        let is_right = own.iter().any(|pattern| covers(pattern, subject));
        assert_eq!(!is_refused, is_right, "{}: {subject}", actor.name);
        if is_right {
            found.push((subject.clone(), payload.clone()));
        }
    }
    found
}

/// Each subject with each harmful reply.
fn pairs(subjects: impl IntoIterator<Item = (String, String)>) -> Vec<(String, String, String)> {
    let replies = targets();
    let with = |(subject, payload): (String, String)| {
        replies.clone().into_iter().map(move |reply| (subject.clone(), reply, payload.clone()))
    };
    subjects.into_iter().flat_map(with).collect()
}

/// The changes of a role so far, and the streams as they are then.
struct Seen {
    changes: BTreeSet<Change>,
    streams: Streams,
}

impl fmt::Debug for Seen {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.changes.fmt(formatter)
    }
}

/// Tries everything as somebody, and compares what changed with the table; the streams after that.
async fn try_all(stage: &Stage, actor: &Actor, before: Streams) -> Streams {
    let mut raw = stage.raw(actor);
    let mut seen = Seen { changes: BTreeSet::new(), streams: before };
    let mut taken = Vec::new();
    for part in attempts(stage, actor) {
        taken.extend(permitted(&mut raw, actor, &part));
        let streams = stage.streams();
        seen.changes.extend(changes(&seen.streams, &streams));
        seen.streams = streams;
    }
    let mut replied = BTreeSet::new();
    for right in &actor.rights.publish {
        let right = actor.filled(right);
        let of_right = taken.iter().filter(|(subject, _)| covers(&right, subject));
        let count = replied.len();
        replied.extend(of_right.take(OF_A_RIGHT).cloned());
        assert!(replied.len() > count || right.contains('*'), "{}: {right} is untried", actor.name);
    }
    if !actor.is_in_hub() {
        for batch in pairs(replied).chunks(BATCH) {
            let refused = raw.publish_all(batch).into_iter().find(|line| !line.contains("Reply of"));
            assert!(refused.is_none_or(|line| !line.contains("-ERR")), "{}", actor.name);
            stage.wait();
        }
        assert!(!stage.hub.server.log().contains("queue limit"), "requests of {} were dropped", actor.name);
    }
    // LEDGER takes desired states from DOWNLINK in its own time.
    let what = format!("what {} changed is {:#?}", actor.name, actor.may_change());
    let look = async || {
        let streams = stage.streams();
        Seen { changes: &seen.changes | &changes(&seen.streams, &streams), streams }
    };
    let expected = actor.may_change();
    until(&what, look, |seen| seen.changes == expected).await.streams
}

#[tokio::test(flavor = "multi_thread")]
async fn what_each_role_changes_by_any_subject_and_reply_is_the_table_of_rights() {
    let stage = Stage::start().await;
    let mut streams = stage.streams();
    // Those who change nothing come first: a late effect of theirs is found with the next one.
    let readers = [
        Role::Viewer,
        Role::Approver,
        Role::Checker,
        Role::Planner,
        Role::Subscriber,
        Role::Operator,
        Role::Device,
        Role::Margo,
    ]
    .map(|role| stage.actor(role));
    for actor in Actor::of_system(&stage.hub).into_iter().chain(readers) {
        streams = try_all(&stage, &actor, streams).await;
    }
    // Something of readers' to be removed from each mirror.
    let mut subscriber = stage.raw(&stage.actor(Role::Subscriber));
    for mirror in muster_bus::MIRRORED {
        let subject = format!("$JS.API.CONSUMER.CREATE.{mirror}.{CONSUMER}");
        subscriber.publish(&subject, "", &pull_consumer(mirror, None));
    }
    try_all(&stage, &stage.actor(Role::Keeper), stage.streams()).await;
    stage.hub.mirror().await;
    streams = stage.streams();
    for role in [Role::Packager, Role::Renewer, Role::Scheduler, Role::Publisher, Role::Rollup, Role::Ingest]
    {
        streams = try_all(&stage, &stage.actor(role), streams).await;
    }
    soon("the streams as the contract has them", stage.ingest.converge()).await.unwrap();
    let before = stage.settings(Account::Hub);
    let maintainer = stage.actor(Role::Maintainer);
    try_all(&stage, &maintainer, stage.streams()).await;
    for (name, settings) in before {
        let subject = format!("$JS.API.STREAM.UPDATE.{name}");
        stage.raw(&maintainer).publish(&subject, "", &settings.to_string());
    }
    soon("the streams as the contract has them again", stage.ingest.converge()).await.unwrap();
}

/// It has a hub of its own, because the other test depends on the consumers that two roles leave on the mirrors.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_changes_by_any_subject_and_reply_what_its_rights_say() {
    let stage = Stage::start().await;
    let streams = stage.streams();
    try_all(&stage, &stage.actor(Role::Gateway), streams).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_role_hears_what_is_anothers_alone_or_in_a_queue_group() {
    let stage = Stage::start().await;
    let mut patterns = own_subjects();
    let everything =
        [">", "*", "*.>", "*.*", "$JS.>", "$SYS.>", "$KV.>", "muster.>", "_INBOX.>", "_INBOX.*.*", "_R_.>"];
    patterns.extend(everything.map(str::to_owned));
    let actors = Role::ALL.map(|role| stage.actor(role)).into_iter();
    for actor in actors.chain(Actor::of_system(&stage.hub)) {
        let own: Vec<String> = actor.rights.subscribe.iter().map(|right| actor.filled(right)).collect();
        let mut raw = stage.raw(&actor);
        for (number, pattern) in (1..).zip(&patterns) {
            for subscription in [pattern.clone(), format!("{pattern} group")] {
                let said = raw.subscribe(&subscription, number).join("\n");
                let is_own = own.iter().any(|right| covers(right, pattern));
                let is_let = !said.contains("Permissions Violation");
                assert_eq!(is_let, is_own, "{}: {subscription}: {said}", actor.name);
                raw.unsubscribe(number);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_site_that_is_taken_over_changes_by_no_reply_what_is_not_its_own() {
    let stage = Stage::start().await;
    let site = Site::taken_over(&stage.hub, &"plant7".parse().unwrap());
    let attacker = connect(BusConfig::service(site.server.url(), "attacker")).await;
    let (fetch, patience) = ("muster.fetch.desired.plant7.press-4", Duration::from_secs(1));
    let own = async || attacker.request(fetch, Default::default(), patience).await.ok();
    until("the site's own documents", own, Option::is_some).await.unwrap();
    let before = stage.streams();
    let all = attempts(&stage, &stage.actor(Role::Device)).concat();
    let mut raw = Raw::anonymous(site.server.port()).unwrap();
    for batch in pairs(all).chunks(BATCH) {
        raw.publish_all(batch);
        stage.wait();
    }
    // Across the leaf node the answer to a request tells that all before it was handled.
    until("the site's own documents again", own, Option::is_some).await.unwrap();
    let own = ["UPLINK", "PRESENCE"].map(|stream| (Account::Hub, stream.to_owned(), Aspect::Messages));
    assert_eq!(stage.changes(&before), own.into());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_knows_who_asks_and_a_forged_header_changes_nothing() {
    let stage = Stage::start().await;
    let operator = stage.actor(Role::Operator).key();
    let forged = json!({ "acc": "A", "user": operator, "name_tag": "operator", "issuer_key": "A" });
    for (role, subject) in [
        (Role::Viewer, "muster.query.fleet"),
        (Role::Subscriber, "muster.publisher.status"),
        (Role::Planner, "muster.publisher.release"),
        (Role::Planner, "muster.publisher.decide"),
        (Role::Operator, "muster.ingest.quarantine.0"),
    ] {
        stage.asked.lock().unwrap().clear();
        let actor = stage.actor(role);
        let mut raw = stage.raw(&actor);
        raw.subscribe(&format!("{}.*", actor.inbox()), 1);
        let header = format!("Nats-Request-Info: {forged}");
        raw.publish_with(subject, &format!("{}.1", actor.inbox()), &header, "{}");
        let asked = async || stage.asked.lock().unwrap().clone();
        let asked = until("a request", asked, |asked: &Vec<Requester>| !asked.is_empty()).await;
        let name = role.as_str().to_owned();
        assert_eq!(asked, [Requester::User { key: actor.key(), name, role: Some(role) }]);
    }
}

/// This includes a gateway: a name that it has not signed is no note.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_on_behalf_of_another_is_refused_whoever_sends_it() {
    let stage = Stage::start().await;
    let header = format!("{ON_BEHALF_OF}: {}", stage.actor(Role::Viewer).key());
    let mut tried = 0;
    for role in [Role::Viewer, Role::Planner, Role::Gateway, Role::Subscriber, Role::Operator] {
        let actor = stage.actor(role);
        let mut raw = stage.raw(&actor);
        let reply = format!("{}.1", actor.inbox());
        raw.subscribe(&reply, 1);
        let may = |subject: &&str| actor.rights.publish.iter().any(|right| covers(right, subject));
        for subject in stage::ENDPOINTS.concat().into_iter().filter(may) {
            let answer = raw.ask_with(subject, &reply, &header, "{}");
            assert!(answer.contains("badRequest") && answer.contains(ON_BEHALF_OF), "{subject}: {answer}");
            tried += 1;
        }
    }
    assert_eq!((tried, stage.asked.lock().unwrap().len()), (26, 0), "no service heard of it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_asks_for_a_person_by_its_own_note_alone() {
    const SUBJECT: &str = "muster.publisher.decide";
    let stage = Stage::start().await;
    let text = std::fs::read_to_string(stage.hub.creds(Role::Gateway)).unwrap();
    let gateway = KeyPair::from_seed(creds::seed(&text).unwrap()).unwrap();
    let person = OnBehalfOf::new("UANNA", "anna", "operator");
    let note = on_behalf::sign(&gateway, &person, SUBJECT, b"{}").unwrap();
    let ask = |role, subject: &str, note: &str, payload: &str| {
        let actor = stage.actor(role);
        let mut raw = stage.raw(&actor);
        let reply = format!("{}.1", actor.inbox());
        raw.subscribe(&reply, 1);
        raw.ask_with(subject, &reply, &format!("{ON_BEHALF_OF}: {note}"), payload)
    };
    let other = on_behalf::sign(&KeyPair::new_user(), &person, SUBJECT, b"{}").unwrap();
    let planner = OnBehalfOf::new("UANNA", "anna", "planner");
    let planner = on_behalf::sign(&gateway, &planner, SUBJECT, b"{}").unwrap();
    for (role, subject, note, payload) in [
        (Role::Operator, SUBJECT, note.as_str(), "{}"),
        (Role::Planner, SUBJECT, &note, "{}"),
        (Role::Gateway, SUBJECT, &other, "{}"),
        (Role::Gateway, SUBJECT, &planner, "{}"),
        (Role::Gateway, SUBJECT, &note, "{ }"),
        (Role::Gateway, "muster.publisher.release", &note, "{}"),
    ] {
        let answer = ask(role, subject, note, payload);
        assert!(
            answer.contains("badRequest") && answer.contains(ON_BEHALF_OF),
            "{role:?} {subject}: {answer}"
        );
    }
    assert!(stage.asked.lock().unwrap().is_empty(), "no service heard of it");
    assert!(ask(Role::Gateway, SUBJECT, &note, "{}").contains("an answer"));
    let (key, name) = (gateway.public_key(), "gateway".to_owned());
    let asked = stage.asked.lock().unwrap().clone();
    assert_eq!(asked, [Requester::Represented { gateway: key, name, person }]);
}

/// The premise of everything here: without it the other tests could not fail.
#[tokio::test(flavor = "multi_thread")]
async fn inside_hub_a_reply_deletes_a_stream_so_only_services_are_there() {
    let stage = Stage::start().await;
    let mut raw = stage.raw(&stage.actor(Role::Ingest));
    raw.publish("$JS.API.DIRECT.GET.LEDGER.nothing.there", "$JS.API.STREAM.DELETE.LEDGER", "");
    let ledger = async || stage.ingest.stream_state("LEDGER").await.is_ok();
    until("LEDGER is gone", ledger, |is_there| !is_there).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mirror_that_was_deleted_or_lost_its_origin_is_made_again() {
    let stage = Stage::start().await;
    let holds = |account| stage.hub.streams()[&(account, "LEDGER".to_owned())].holds.clone();
    let is_whole = |account| {
        let holds = holds(account);
        (holds["messages"].clone(), holds["last_seq"].clone())
    };
    stage.raw(&stage.actor(Role::Keeper)).publish("$JS.API.STREAM.DELETE.LEDGER", "", "");
    stage.hub.mirror().await;
    assert_eq!(is_whole(Account::Readers), is_whole(Account::Hub));
    let mut raw = stage.raw(&stage.actor(Role::Ingest));
    raw.publish("$JS.API.DIRECT.GET.LEDGER.nothing.there", "$JS.API.STREAM.DELETE.LEDGER", "");
    let ledger = async || stage.ingest.stream_state("LEDGER").await.is_ok();
    until("LEDGER is gone", ledger, |is_there| !is_there).await;
    soon("LEDGER again", stage.ingest.converge()).await.unwrap();
    let fact = Outgoing::new("muster.status.plant7.press-4.web", "after");
    stage.ingest.publish(fact).await.unwrap();
    stage.hub.mirror().await;
    let mirror = async || (is_whole(Account::Readers), is_whole(Account::Hub));
    until("the mirror of the new LEDGER", mirror, |(mirror, origin)| mirror == origin).await;
}
