//! The attempts of the matrix: every verb of JetStream's API for every stream of the topology, a subject of each pattern
//! that any role may use or any account offers, and every subject that a stream stores or republishes to. All of it is made from the
//! topology and the lists of rights, so a new stream or right is tried without being added here. It tries nothing itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use muster_bus::topology::described;
use muster_identity::Role;
use muster_identity::claims::{pusher_rights, watcher_rights};
use muster_identity::exchange::OFFERS;
use serde_json::{Value, json};

/// Verbs of JetStream's API about an account or a server.
const OF_ACCOUNT: [&str; 8] = [
    "INFO",
    "STREAM.NAMES",
    "STREAM.LIST",
    "STREAM.CREATE.MINE",
    "ACCOUNT.PURGE.X",
    "ACCOUNT.STREAM.MOVE.X.LEDGER",
    "META.LEADER.STEPDOWN",
    "SERVER.REMOVE",
];
/// Verbs about a stream, whose name follows.
const OF_STREAM: [&str; 15] = [
    "STREAM.INFO",
    "STREAM.CREATE",
    "STREAM.UPDATE",
    "STREAM.DELETE",
    "STREAM.PURGE",
    "STREAM.SNAPSHOT",
    "STREAM.RESTORE",
    "STREAM.LEADER.STEPDOWN",
    "STREAM.PEER.REMOVE",
    "STREAM.MSG.GET",
    "STREAM.MSG.DELETE",
    "DIRECT.GET",
    "CONSUMER.LIST",
    "CONSUMER.NAMES",
    "CONSUMER.CREATE",
];
/// Verbs about a consumer, whose stream and name follow.
const OF_CONSUMER: [&str; 9] = [
    "CONSUMER.CREATE",
    "CONSUMER.DURABLE.CREATE",
    "CONSUMER.INFO",
    "CONSUMER.DELETE",
    "CONSUMER.PAUSE",
    "CONSUMER.UNPIN",
    "CONSUMER.RESET",
    "CONSUMER.LEADER.STEPDOWN",
    "CONSUMER.MSG.NEXT",
];
/// The consumer that is made, asked and deleted.
pub(crate) const CONSUMER: &str = "mine";
/// Longer than any test: nanoseconds for which a consumer that nobody reads from stays.
pub(crate) const STAYS_NANOSECONDS: u64 = 600_000_000_000;

/// A stream of the topology.
pub(crate) struct Described {
    pub(crate) name: String,
    /// The subjects that it stores.
    pub(crate) subjects: Vec<String>,
    /// The stream and filter of each of its sources.
    pub(crate) sources: Vec<(String, String)>,
    /// Patterns of what it stores, and of its consumers' filters.
    filters: BTreeSet<String>,
    /// Where it republishes to.
    republished: Option<String>,
}

/// Streams of HUB, as the topology has them.
pub(crate) static STREAMS: LazyLock<Vec<Described>> = LazyLock::new(|| {
    let topology = described();
    let consumers = topology["consumers"].as_array().unwrap();
    let streams = topology["streams"].as_array().unwrap();
    streams.iter().map(|stream| stream_of(stream, consumers)).collect()
});

fn stream_of(stream: &Value, consumers: &[Value]) -> Described {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let subjects: Vec<String> = stream["subjects"].as_array().unwrap().iter().map(text).collect();
    let sources = stream["sources"].as_array().into_iter().flatten();
    let sources: Vec<_> =
        sources.map(|source| (text(&source["name"]), text(&source["filter_subject"]))).collect();
    let mut filters: BTreeSet<String> = match stream["subject_transform"]["dest"].as_str() {
        Some(stored) => [pattern_of(stored)].into(),
        None => subjects.iter().cloned().collect(),
    };
    filters.extend(sources.iter().map(|(_, filter)| filter.clone()));
    let own = consumers.iter().filter(|consumer| consumer["stream"] == stream["name"]);
    filters
        .extend(own.filter_map(|consumer| consumer["config"]["filter_subject"].as_str().map(str::to_owned)));
    let republished = stream["republish"]["dest"].as_str().map(pattern_of);
    Described { name: text(&stream["name"]), subjects, sources, filters, republished }
}

/// A subject with the server's templates, as a pattern.
fn pattern_of(template: &str) -> String {
    let token = |token: &str| if token.contains("{{") { "*".to_owned() } else { token.to_owned() };
    template.split('.').map(token).collect::<Vec<_>>().join(".")
}

/// Requests of JetStream's API, each with a payload that it takes where it needs one. `settings` are those of the streams in
/// the account where they are made, by name.
pub(crate) fn api_subjects(settings: &BTreeMap<String, Value>) -> Vec<(String, String)> {
    let mut all: Vec<_> = OF_ACCOUNT.iter().map(|verb| (format!("$JS.API.{verb}"), String::new())).collect();
    for stream in STREAMS.iter() {
        let Described { name, filters, .. } = stream;
        for verb in OF_STREAM {
            let subject = format!("$JS.API.{verb}.{name}");
            all.extend(stream_payloads(verb, name, settings).into_iter().map(|body| (subject.clone(), body)));
        }
        for verb in OF_CONSUMER {
            let body = if verb.ends_with("CREATE") { pull_consumer(name, None) } else { String::new() };
            all.push((format!("$JS.API.{verb}.{name}.{CONSUMER}"), body));
        }
        for filter in filters {
            let subject = format!("$JS.API.CONSUMER.CREATE.{name}.{CONSUMER}.{filter}");
            all.push((subject, pull_consumer(name, Some(filter))));
            all.push((format!("$JS.API.DIRECT.GET.{name}.{}", example(filter, "press-5")), String::new()));
        }
        all.push((format!("$JS.API.CONSUMER.DELETE.{name}.ingest-0"), String::new()));
        all.push((format!("$JS.API.DIRECT.GET.{name}.nothing.there"), String::new()));
        all.push((format!("$JS.ACK.{name}.{CONSUMER}.1.1.1.1.0"), String::new()));
        all.push((format!("$JS.ACK._.hash.{name}.{CONSUMER}.1.1.1.1.0"), String::new()));
        all.push((format!("$JS.FC.{name}.{CONSUMER}.x"), String::new()));
    }
    all
}

fn stream_payloads(verb: &str, name: &str, settings: &BTreeMap<String, Value>) -> Vec<String> {
    let config = settings.get(name).cloned().unwrap_or_else(|| json!({ "name": name }));
    let with = |field: &str, value: Value| {
        let mut config = config.clone();
        config[field] = value;
        config.to_string()
    };
    match verb {
        "STREAM.CREATE" => vec![
            json!({ "name": name, "subjects": ["foreign.>"], "max_msgs": 1 }).to_string(),
            with(
                "republish",
                json!({ "src": "muster.status.a.b.c", "dest": "$JS.API.STREAM.DELETE.LEDGER" }),
            ),
        ],
        "STREAM.UPDATE" => vec![with("description", json!("changed"))],
        "STREAM.MSG.GET" | "STREAM.MSG.DELETE" => vec![json!({ "seq": 1 }).to_string()],
        "STREAM.SNAPSHOT" => vec![json!({ "deliver_subject": "foreign" }).to_string()],
        "DIRECT.GET" => {
            vec![json!({ "seq": 1 }).to_string(), json!({ "last_by_subj": "nothing.there" }).to_string()]
        }
        "CONSUMER.CREATE" => {
            let config = json!({ "ack_policy": "explicit", "inactive_threshold": STAYS_NANOSECONDS });
            vec![json!({ "stream_name": name, "config": config }).to_string()]
        }
        _ => vec![String::new()],
    }
}

/// The request for a consumer that stays and delivers nothing unasked.
pub(crate) fn pull_consumer(stream: &str, filter: Option<&str>) -> String {
    let mut config = json!({ "name": CONSUMER, "durable_name": CONSUMER, "ack_policy": "explicit" });
    if let Some(filter) = filter {
        config["filter_subject"] = json!(filter);
    }
    json!({ "stream_name": stream, "config": config }).to_string()
}

/// Patterns that any role may use, any account offers, or any stream stores or republishes to.
pub(crate) fn patterns() -> BTreeSet<String> {
    let mut patterns: BTreeSet<String> = OFFERS.iter().map(|offer| offer.subject.to_owned()).collect();
    patterns.extend(OFFERS.iter().filter_map(|offer| offer.local.map(str::to_owned)));
    for stream in STREAMS.iter() {
        patterns.extend(stream.subjects.iter().chain(&stream.filters).chain(&stream.republished).cloned());
    }
    let rights = Role::ALL.map(Role::rights).into_iter();
    for rights in rights.chain([pusher_rights("{key}"), watcher_rights("{key}")]) {
        patterns.extend(rights.publish.into_iter().chain(rights.subscribe));
    }
    patterns
}

/// Subjects of each pattern, of two devices, and each pattern without a name to be filled as it is: a wildcard in a
/// subject that is published stands for nothing, and must be no way around a right.
pub(crate) fn own_subjects() -> BTreeSet<String> {
    let patterns = patterns();
    let examples: BTreeSet<_> = patterns
        .iter()
        .flat_map(|pattern| ["press-4", "press-5"].map(|device| example(pattern, device)))
        .collect();
    let as_they_are = patterns.into_iter().filter(|pattern| !pattern.contains('{'));
    examples.into_iter().chain(as_they_are).collect()
}

/// A subject of a pattern: of a device of plant7 where it may be one's.
fn example(pattern: &str, device: &str) -> String {
    let subject = pattern.replace("{site}", "plant7").replace("{key}", "somebody");
    let subject = subject.replacen(".*.*", &format!(".plant7.{device}"), 1).replace("{device}", device);
    subject.replace(['*', '>'], CONSUMER)
}

/// Subjects at which an answer, a delivery or a republished message would do harm if it got there: all subjects that are
/// tried, for every user, and the subjects of others.
pub(crate) fn targets() -> BTreeSet<String> {
    let foreign = ["_INBOX.somebody.x", "_INBOX_plant7_press-5.x", "_R_.abc.def", "mirror.readers.x"];
    let api = api_subjects(&BTreeMap::new()).into_iter().map(|(subject, _)| subject);
    let all = api.chain(own_subjects()).chain(foreign.map(str::to_owned));
    all.filter(|subject| !subject.split('.').any(|token| matches!(token, "*" | ">"))).collect()
}

/// Whether a subject is one of a pattern's.
pub(crate) fn covers(pattern: &str, subject: &str) -> bool {
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

/// Whether some subject is one of both patterns.
pub(crate) fn overlap(one: &str, other: &str) -> bool {
    let (mut one, mut other) = (one.split('.'), other.split('.'));
    loop {
        match (one.next(), other.next()) {
            (None, None) => return true,
            (Some(">"), Some(_)) | (Some(_), Some(">")) => return true,
            (Some(a), Some(b)) if a == b || a == "*" || b == "*" => {}
            _ => return false,
        }
    }
}
