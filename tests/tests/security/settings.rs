//! Settings of streams by which a stream writes elsewhere or reads from elsewhere: republish, mirror, sources. The keeper may
//! change the settings of the mirrors and nothing else; a maintainer those of HUB's streams, for an hour; services may
//! only make streams that are missing.

use muster_bus::MIRRORED;
use muster_identity::Role;
use muster_identity::exchange::{Account, HUB_API, MIRROR_DELIVERY};
use muster_tests::monitor::Aspect;
use muster_tests::raw::Raw;
use muster_tests::wait::until;
use serde_json::{Value, json};

use crate::matrix::stage::Stage;
use crate::matrix::subjects::{STREAMS, targets};
use crate::matrix::table::Actor;

/// Facts that are written while a mirror republishes to one subject.
const FACT: &str = "muster.status.plant7.press-4.web";

struct Author {
    raw: Raw,
    reply: String,
}

impl Author {
    fn new(stage: &Stage, actor: &Actor) -> Self {
        let (mut raw, reply) = (stage.raw(actor), format!("{}.1", actor.inbox()));
        raw.subscribe(&reply, 1);
        Self { raw, reply }
    }

    /// The answer to a request with settings.
    fn ask(&mut self, verb: &str, name: &str, settings: &Value) -> String {
        self.raw.ask(&format!("$JS.API.STREAM.{verb}.{name}"), &self.reply, &settings.to_string())
    }
}

/// A mirror may republish to any subject of READERS, and so to HUB's API under the prefix of the mirrors. Facts, and empty
/// messages, change nothing there.
#[tokio::test(flavor = "multi_thread")]
async fn no_republish_of_a_mirror_changes_hub() {
    let stage = Stage::start().await;
    let mut keeper = Author::new(&stage, &stage.actor(Role::Keeper));
    let mut ingest = Author::new(&stage, &stage.actor(Role::Ingest));
    let settings = stage.settings(Account::Readers);
    let before = stage.streams();
    let mut taken = 0;
    // The premise: a mirror does republish, also to an inbox that PEOPLE imports.
    let mut listener = Author::new(&stage, &stage.actor(Role::Subscriber));
    // Empty messages would delete the mirror at READERS' own API, as the keeper may.
    let empty = targets().into_iter().filter(|dest| dest.starts_with(HUB_API)).map(|dest| (dest, true));
    let all = targets().into_iter().chain([listener.reply.clone()]).map(|dest| (dest, false));
    for (dest, headers_only) in all.chain(empty) {
        let mut settings = settings["LEDGER"].clone();
        settings["republish"] = json!({ "src": FACT, "dest": dest, "headers_only": headers_only });
        // Some are refused, as what the API answers to.
        let answer = keeper.ask("UPDATE", "LEDGER", &settings);
        if answer.contains("\"error\"") {
            continue;
        }
        taken += 1;
        let stored = ingest.raw.ask(FACT, &ingest.reply, "a fact");
        assert!(stored.contains("\"seq\""), "{stored}");
        let holds = |account| stage.hub.streams()[&(account, "LEDGER".to_owned())].holds["last_seq"].as_u64();
        let look = async || (holds(Account::Readers), holds(Account::Hub));
        until("the mirror has it", look, |(mirror, origin)| mirror == origin).await;
    }
    assert!(listener.raw.message().contains("a fact"));
    assert!(taken > 50, "the attempt must be one: {taken}");
    let allowed = [
        (Account::Hub, "LEDGER".to_owned(), Aspect::Messages),
        (Account::Readers, "LEDGER".to_owned(), Aspect::Settings),
    ];
    assert_eq!(stage.changes(&before), allowed.into(), "ingest's own facts, and the mirror's settings");
    let facts = stage.streams()[&(Account::Hub, "LEDGER".to_owned())].holds["last_seq"].as_u64();
    let origin = before[&(Account::Hub, "LEDGER".to_owned())].holds["last_seq"].as_u64();
    assert_eq!(facts, origin.map(|last| last + taken), "no republished copy was stored");
}

/// A keeper can read by a mirror or a source what READERS imports, and changes no stream of HUB.
#[tokio::test(flavor = "multi_thread")]
async fn no_mirror_or_source_that_a_keeper_makes_changes_hub() {
    let stage = Stage::start().await;
    let mut keeper = Author::new(&stage, &stage.actor(Role::Keeper));
    let before = stage.streams();
    let delivered = targets()
        .into_iter()
        .filter(|target| target.starts_with("$JS.API.STREAM.") || target.starts_with("hub."));
    let deliver: Vec<String> = delivered.chain([MIRROR_DELIVERY.to_owned()]).collect();
    let mut taken = 0;
    for stream in STREAMS.iter() {
        for deliver in &deliver {
            let source = json!({ "name": stream.name, "external": { "api": HUB_API, "deliver": deliver } });
            for origin in [("mirror", source.clone()), ("sources", json!([source]))] {
                let mut settings = json!({ "name": "LEDGER", "storage": "memory" });
                settings[origin.0] = origin.1;
                keeper.raw.ask("$JS.API.STREAM.DELETE.LEDGER", &keeper.reply, "");
                let answer = keeper.ask("CREATE", "LEDGER", &settings);
                taken += usize::from(!answer.contains("\"error\""));
            }
        }
    }
    assert!(taken >= STREAMS.len(), "the attempt must be one: {taken}");
    stage.hub.mirror().await;
    let changed = stage.changes(&before);
    assert!(changed.iter().all(|(account, ..)| *account == Account::Readers), "{changed:?}");
}

/// The premise: HUB is one domain of trust. A maintainer may have a stream write anywhere in HUB, so only a holder of the
/// keys makes its credentials, for an hour; READERS and PEOPLE are beyond it.
#[tokio::test(flavor = "multi_thread")]
async fn a_maintainer_reaches_hub_by_a_republish_and_no_other_account() {
    let stage = Stage::start().await;
    let mut maintainer = Author::new(&stage, &stage.actor(Role::Maintainer));
    let mut ingest = Author::new(&stage, &stage.actor(Role::Ingest));
    let before = stage.streams();
    let mut settings = stage.settings(Account::Hub)["LEDGER"].clone();
    let mut taken = 0;
    for dest in targets() {
        settings["republish"] = json!({ "src": FACT, "dest": dest });
        // The server refuses what the stream itself would store.
        taken += usize::from(!maintainer.ask("UPDATE", "LEDGER", &settings).contains("\"error\""));
        ingest.raw.ask(FACT, &ingest.reply, "a fact");
    }
    assert!(taken > 50, "the attempt must be one: {taken}");
    let changed = stage.changes(&before);
    for written in [("LEDGER", Aspect::Settings), ("DOWNLINK", Aspect::Messages)] {
        assert!(changed.contains(&(Account::Hub, written.0.to_owned(), written.1)), "{changed:?}");
    }
    assert!(changed.iter().all(|(account, ..)| *account == Account::Hub), "{changed:?}");
}

/// A stream that is there is made by nobody again with other settings.
#[tokio::test(flavor = "multi_thread")]
async fn no_service_gives_a_stream_that_is_there_other_settings() {
    let stage = Stage::start().await;
    let before = stage.streams();
    let settings = stage.settings(Account::Hub);
    let foreign = json!({ "name": "DOWNLINK", "external": { "api": HUB_API, "deliver": MIRROR_DELIVERY } });
    for role in [Role::Publisher, Role::Ingest, Role::Rollup, Role::Scheduler] {
        let mut service = Author::new(&stage, &stage.actor(role));
        for stream in STREAMS.iter() {
            let dests = targets().into_iter().map(|dest| ("republish", json!({ "src": FACT, "dest": dest })));
            for (field, value) in dests.chain([("mirror", foreign.clone()), ("sources", json!([foreign]))]) {
                let mut settings = settings[&stream.name].clone();
                settings[field] = value;
                let answer = service.ask("CREATE", &stream.name, &settings);
                // In use with other settings, a republish that the server takes from nobody, or no right to create the stream.
                let refusals = ["10058", "10052", "10034", "Permissions Violation for Publish"];
                let is_refused = refusals.iter().any(|refusal| answer.contains(refusal));
                assert!(is_refused, "{role:?}: {}: {settings}: {answer}", stream.name);
            }
        }
    }
    assert!(stage.changes(&before).is_empty(), "{:?}", stage.changes(&before));
    assert_eq!(MIRRORED.len(), stage.settings(Account::Readers).len());
}
