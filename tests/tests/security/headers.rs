//! Headers with which a person could make a stream do more than store a message: each is tried on every subject that a
//! person may publish to, and the server's answer to each is known.

use muster_identity::Role;
use muster_identity::exchange::Account;
use muster_tests::monitor::Aspect;
use muster_tests::raw::Raw;

use crate::matrix::stage::Stage;
use crate::matrix::subjects::{api_subjects, covers, own_subjects, targets};
use crate::matrix::table::Actor;

/// A subject of tokens that an operator renews, in a stream that keeps several messages of a subject.
const TAKEN: &str = "muster.credential.plant7.press-5";
/// A subject of clients of the HTTP API, in the only other stream that people may publish to.
const TAKEN_CLIENT: &str = "$KV.http_devices.0a";
/// A subject of the first stream that an operator may not write.
const FOREIGN: &str = "muster.desired.plant7.press-5";
/// Headers, and the code with which the stream refuses each of them.
const REFUSED: [(&str, &str); 15] = [
    ("Nats-Rollup: all", "10111"),
    ("Nats-Rollup: sub", "10111"),
    ("Nats-TTL: 1s", "10166"),
    ("Nats-TTL: never", "10166"),
    ("Nats-Incr: +1", "10168"),
    ("Nats-Batch-Id: x\r\nNats-Batch-Sequence: 1", "10174"),
    ("Nats-Batch-Id: x\r\nNats-Batch-Sequence: 1\r\nNats-Batch-Commit: 1", "10174"),
    (
        "Nats-Schedule: @at 2030-01-01T00:00:00Z\r\nNats-Schedule-Target: muster.desired.plant7.press-5",
        "10188",
    ),
    ("Nats-Schedule: @every 1s\r\nNats-Schedule-Target: muster.credential.plant7.press-4", "10188"),
    ("Nats-Stream-Source: LEDGER 1 > > muster.desired.plant7.press-5", "10227"),
    ("Nats-Expected-Stream: LEDGER", "10060"),
    ("Nats-Expected-Last-Sequence: 999", "10071"),
    ("Nats-Expected-Last-Msg-Id: x", "10070"),
    ("Nats-Expected-Last-Subject-Sequence: 999", "10071"),
    (
        "Nats-Expected-Last-Subject-Sequence: 0\r\nNats-Expected-Last-Subject-Sequence-Subject: muster.desired.plant7.press-4",
        "10071",
    ),
];
/// Headers that the server does not act on here: the message is stored as any other.
const STORED: [&str; 3] = ["Nats-Marker-Reason: Purge", "Nats-Sequence: 1", "KV-Operation: PURGE"];

fn connected(stage: &Stage, role: Role) -> (Actor, Raw, String) {
    let actor = stage.actor(role);
    let mut raw = stage.raw(&actor);
    let reply = format!("{}.1", actor.inbox());
    raw.subscribe(&reply, 1);
    (actor, raw, reply)
}

#[tokio::test(flavor = "multi_thread")]
async fn no_header_of_a_person_empties_a_stream_or_sets_a_life_span() {
    let stage = Stage::start().await;
    let (_, mut raw, reply) = connected(&stage, Role::Operator);
    let before = stage.streams();
    for (header, code) in REFUSED {
        let answer = raw.ask_with(TAKEN, &reply, header, "{}");
        assert!(answer.contains(&format!("\"err_code\":{code}")), "{header}: {answer}");
        // An expectation about a subject that the other stream does not have is right there.
        if !header.contains("muster.desired") {
            let answer = raw.ask_with(TAKEN_CLIENT, &reply, header, "{}");
            assert!(answer.contains(&format!("\"err_code\":{code}")), "{header} of a client: {answer}");
        }
        assert!(stage.changes(&before).is_empty(), "{header}");
    }
    for header in STORED {
        let bounds = || {
            let holds = stage.streams()[&(Account::Hub, "DOWNLINK".to_owned())].holds.clone();
            ["first_seq", "last_seq"].map(|field| holds[field].as_u64().unwrap())
        };
        let [first, last] = bounds();
        let answer = raw.ask_with(TAKEN, &reply, header, "{}");
        assert!(!answer.contains("err_code"), "{header}: {answer}");
        assert_eq!(bounds(), [first, last + 1], "{header}");
    }
}

/// Whatever else a person may publish reaches no stream, whichever header it has.
#[tokio::test(flavor = "multi_thread")]
async fn no_header_of_a_person_changes_a_stream_by_another_subject() {
    let stage = Stage::start().await;
    for role in [Role::Viewer, Role::Subscriber, Role::Operator] {
        let (actor, mut raw, _) = connected(&stage, role);
        let before = stage.streams();
        let tried: Vec<_> = permitted(&stage, &actor);
        assert!(tried.len() > 10, "{}: {tried:?}", actor.name);
        for subject in &tried {
            for header in REFUSED.into_iter().map(|(header, _)| header).chain(STORED) {
                raw.publish_with(subject, "", header, "");
            }
        }
        assert!(stage.changes(&before).is_empty(), "{}: {:?}", actor.name, stage.changes(&before));
    }
}

/// The subjects that an actor may publish besides [`TAKEN`], [`TAKEN_CLIENT`] and the requests that make or delete consumers of a mirror.
fn permitted(stage: &Stage, actor: &Actor) -> Vec<String> {
    let all = api_subjects(&stage.settings(Account::Hub)).into_iter().map(|(subject, _)| subject);
    let all = all.chain(own_subjects()).filter(|subject| {
        let makes = ["CONSUMER.CREATE", "CONSUMER.DELETE", "DURABLE.CREATE"];
        let taken = ["muster.credential.>", "$KV.http_devices.*"];
        !taken.iter().any(|pattern| covers(pattern, subject))
            && !makes.iter().any(|verb| subject.contains(verb))
    });
    let may = |subject: &String| actor.rights.publish.iter().any(|right| covers(right, subject));
    all.filter(may).collect()
}

/// A trace tells a subject of the sender's choice how a message was routed. The server lets a sender choose only where it
/// may publish itself, and an operator may publish at one subject of a stream.
#[tokio::test(flavor = "multi_thread")]
async fn a_trace_goes_only_where_its_sender_may_publish() {
    let stage = Stage::start().await;
    for role in [Role::Viewer, Role::Subscriber, Role::Operator] {
        let (actor, mut raw, _) = connected(&stage, role);
        let subject = if role == Role::Operator { TAKEN } else { "muster.query.fleet" };
        let before = stage.streams();
        let foreign = targets()
            .into_iter()
            .filter(|target| !actor.rights.publish.iter().any(|right| covers(right, target)));
        let mut tried = 0;
        for target in foreign {
            for only in ["", "\r\nNats-Trace-Only: true"] {
                let said = raw.publish_with(subject, "", &format!("Nats-Trace-Dest: {target}{only}"), "{}");
                let is_refused = said.iter().any(|line| line.contains("Permissions Violation"));
                assert!(is_refused, "{}: {target}: {said:?}", actor.name);
                tried += 1;
            }
        }
        assert!(tried > 100, "{tried}");
        assert!(stage.changes(&before).is_empty(), "{}: {:?}", actor.name, stage.changes(&before));
    }
    let (actor, mut raw, reply) = connected(&stage, Role::Operator);
    let before = stage.streams();
    let own = format!("Nats-Trace-Dest: {reply}\r\nNats-Trace-Only: true");
    let said = raw.publish_with(TAKEN, &reply, &own, "{}");
    assert!(said.iter().any(|line| line.contains("Permissions Violation")), "{}: {said:?}", actor.name);
    let to_itself = format!("Nats-Trace-Dest: {TAKEN}\r\nNats-Trace-Only: true");
    raw.publish_with(TAKEN, &reply, &to_itself, "{}");
    let allowed = (Account::Hub, "DOWNLINK".to_owned(), Aspect::Messages);
    let changed = stage.changes(&before);
    assert!(changed.iter().all(|change| *change == allowed), "{changed:?}");
    let reader = &stage.ingest;
    let foreign = reader.last("DOWNLINK", FOREIGN).await.unwrap().unwrap();
    assert_eq!(&foreign.payload[..], b"stored", "nobody's document was replaced");
}
