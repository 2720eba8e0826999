//! What each role may publish and subscribe: the one list that servers, tests and documents are made from.
//!
//! A subject may hold `{site}` and `{device}` (of the device it is for) and `{key}` (the user's public key, which is
//! the last token of its inbox). In an account they become the server's templates, which it fills from the user's JWT;
//! for a server with users in its configuration they are filled here.
//!
//! Three rules hold for all roles. Nobody is given `allow_responses`: it would let a caller choose where a service
//! publishes. Services answer in `_INBOX.>`, which is where callers listen and devices do not. And **whoever may create
//! a consumer is trusted with more than reading**: a consumer can have the server deliver what is stored to a subject
//! of its owner's choice. So neither a device nor a viewer may create one.

use muster_contract::DeviceKey;
use muster_contract::limits::MESSAGE_BYTES_MAX;
use serde_json::{Value, json};

/// Bytes of headers beside a document of the largest size.
const HEADER_BYTES_MAX: usize = 16 * 1024;
/// Bytes of one message of a device, headers included.
pub const DEVICE_PAYLOAD_MAX: usize = MESSAGE_BYTES_MAX + HEADER_BYTES_MAX;
/// Subscriptions of a device: replies, live documents, and room for a client that asks in its own way.
const DEVICE_SUBSCRIPTIONS_MAX: i64 = 16;
/// As the server writes "no limit".
const UNLIMITED: i64 = -1;

/// A part somebody plays on the bus.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// One device, and only as itself.
    Device,
    /// `muster-publisher`.
    Publisher,
    /// `muster-ingest`.
    Ingest,
    /// `muster-rollup`.
    Rollup,
    /// A person or program that asks: the query service and the views, nothing else.
    Viewer,
    /// A program that follows LEDGER or the views itself.
    Subscriber,
    /// A person who runs the fleet: everything the `muster` command does on the bus.
    Operator,
}

/// Subjects a user may publish to and subscribe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rights {
    /// May publish to.
    pub publish: Vec<String>,
    /// May subscribe.
    pub subscribe: Vec<String>,
}

/// Streams that every service looks after when it starts.
const LOOK_AFTER_STREAMS: [&str; 12] = [
    "$JS.API.STREAM.INFO.DOWNLINK",
    "$JS.API.STREAM.INFO.UPLINK",
    "$JS.API.STREAM.INFO.PRESENCE",
    "$JS.API.STREAM.INFO.LEDGER",
    "$JS.API.STREAM.INFO.KV_views",
    "$JS.API.STREAM.INFO.NOTICES",
    "$JS.API.STREAM.CREATE.DOWNLINK",
    "$JS.API.STREAM.CREATE.UPLINK",
    "$JS.API.STREAM.CREATE.PRESENCE",
    "$JS.API.STREAM.CREATE.LEDGER",
    "$JS.API.STREAM.CREATE.KV_views",
    "$JS.API.STREAM.CREATE.NOTICES",
];
const READ_DESIRED: [&str; 4] = [
    "$JS.API.CONSUMER.CREATE.DOWNLINK.*.muster.desired.>",
    "$JS.API.CONSUMER.MSG.NEXT.DOWNLINK.*",
    "$JS.API.CONSUMER.DELETE.DOWNLINK.*",
    "$JS.API.DIRECT.GET.DOWNLINK.muster.desired.>",
];
const READ_LEDGER: [&str; 6] = [
    "$JS.API.STREAM.INFO.LEDGER",
    // By sequence; by subject is below.
    "$JS.API.DIRECT.GET.LEDGER",
    // With one filter, and with several.
    "$JS.API.CONSUMER.CREATE.LEDGER.>",
    "$JS.API.CONSUMER.MSG.NEXT.LEDGER.*",
    "$JS.API.CONSUMER.DELETE.LEDGER.*",
    "$JS.API.DIRECT.GET.LEDGER.>",
];
/// What LEDGER remembers of desired states that DOWNLINK has lost, and whether a device was ever heard.
const READ_LEDGER_OF_DESIRED: [&str; 5] = [
    "$JS.API.CONSUMER.CREATE.LEDGER.*.muster.desired.>",
    "$JS.API.CONSUMER.MSG.NEXT.LEDGER.*",
    "$JS.API.CONSUMER.DELETE.LEDGER.*",
    "$JS.API.DIRECT.GET.LEDGER.muster.desired.>",
    "$JS.API.DIRECT.GET.LEDGER.muster.liveness.>",
];
const READ_VIEWS: [&str; 5] = [
    "$JS.API.STREAM.INFO.KV_views",
    "$JS.API.CONSUMER.CREATE.KV_views.*.$KV.views.>",
    "$JS.API.CONSUMER.MSG.NEXT.KV_views.*",
    "$JS.API.CONSUMER.DELETE.KV_views.*",
    "$JS.API.DIRECT.GET.KV_views.$KV.views.>",
];
/// Subscriptions and notices, which only the rollup writes: whoever may write there may also empty the stream.
const KEEP_NOTICES: [&str; 6] = [
    "$JS.API.CONSUMER.CREATE.NOTICES.>",
    "$JS.API.CONSUMER.MSG.NEXT.NOTICES.*",
    "$JS.API.CONSUMER.DELETE.NOTICES.*",
    "$JS.API.DIRECT.GET.NOTICES.>",
    "muster.subscription.*",
    "muster.notice.*",
];
/// Asking for notices, and reading the newest.
const ASK_FOR_NOTICES: [&str; 2] = [NOTIFY_REQUESTS, "$JS.API.DIRECT.GET.NOTICES.muster.notice.*"];
/// Notices as they are stored.
const LIVE_NOTICES: &str = "muster.live.notice.*";
const INGEST_UPLINK: [&str; 7] = [
    "$JS.API.CONSUMER.INFO.UPLINK.*",
    "$JS.API.CONSUMER.LIST.UPLINK",
    "$JS.API.CONSUMER.CREATE.UPLINK.*.muster.report.*.>",
    "$JS.API.CONSUMER.DELETE.UPLINK.*",
    "$JS.API.CONSUMER.MSG.NEXT.UPLINK.*",
    "$JS.API.STREAM.PURGE.UPLINK",
    "$JS.ACK.UPLINK.>",
];
/// The same acknowledgements as newer servers write them: domain and account before the stream.
const INGEST_ACK_NEWER: &str = "$JS.ACK.*.*.UPLINK.>";
const READ_PRESENCE: [&str; 3] = [
    "$JS.API.CONSUMER.CREATE.PRESENCE.*.muster.presence.*.>",
    "$JS.API.CONSUMER.MSG.NEXT.PRESENCE.*",
    "$JS.API.CONSUMER.DELETE.PRESENCE.*",
];
/// Who owns a partition, and what became of a message in quarantine.
const INGEST_RECORDS: [&str; 3] = ["muster.owner.*.*", "muster.verdict.*.*", "muster.ingest.owner.*"];
/// Owners ask each other whether they are alive, and answer for the quarantine.
const INGEST_ANSWERS: [&str; 2] = ["muster.ingest.owner.*", QUARANTINE_REQUESTS];
/// Requests to let a message in after all, or to drop it.
const QUARANTINE_REQUESTS: &str = "muster.ingest.quarantine.*";
const INGEST_FACTS: [&str; 7] = [
    "muster.status.*.*.*",
    "muster.device.*.*",
    "muster.liveness.*.*",
    "muster.deadline.*.*.*",
    "muster.incident.*.*",
    "muster.quarantine.*.*",
    "muster.receipt.*.*",
];
const DEVICE_PUBLISH: [&str; 5] = [
    "muster.report.{site}.{device}",
    "muster.presence.{site}.{device}",
    "$JS.API.DIRECT.GET.DOWNLINK.muster.desired.{site}.{device}",
    "$JS.API.DIRECT.GET.DOWNLINK.muster.receipt.{site}.{device}",
    "$JS.API.DIRECT.GET.DOWNLINK.muster.credential.{site}.{device}",
];
const DEVICE_SUBSCRIBE: [&str; 2] = ["_INBOX_{site}_{device}.>", "muster.live.*.{site}.{device}"];
/// What the hub offers to the devices' account: requests whose answers find back, and what is told to all who listen.
///
/// Devices have an account of their own because a request names the subject of its answer, and the server asks nobody
/// whether the requester may write there. In the hub's account a device could so have its own document stored as
/// another's desired state. From another account the answer comes back to that account, where nothing is stored.
pub(crate) const OFFERED_SERVICES: [&str; 5] = [
    "muster.report.*.*",
    "muster.presence.*.*",
    "$JS.API.DIRECT.GET.DOWNLINK.muster.desired.*.*",
    "$JS.API.DIRECT.GET.DOWNLINK.muster.receipt.*.*",
    "$JS.API.DIRECT.GET.DOWNLINK.muster.credential.*.*",
];
/// See [`OFFERED_SERVICES`].
pub(crate) const OFFERED_STREAMS: [&str; 1] = ["muster.live.*.*.*"];
/// Where whoever is no device gets answers: nobody else may listen there.
const OWN_INBOX: &str = "_INBOX.{key}.>";
/// Where services answer.
const INBOXES: &str = "_INBOX.>";
/// How services are discovered.
const DISCOVERY: [&str; 3] = ["$SRV.PING.>", "$SRV.INFO.>", "$SRV.STATS.>"];
const DISCOVERY_OF_ALL: [&str; 3] = ["$SRV.PING", "$SRV.INFO", "$SRV.STATS"];
const QUERIES: &str = "muster.query.*";
const NOTIFY_REQUESTS: &str = "muster.notify.*";
const PUBLISHER_REQUESTS: &str = "muster.publisher.*";
/// Questions, which change nothing: of the views, and of how far the publisher is with a commit.
const ASK: [&str; 2] = [QUERIES, "muster.publisher.status"];
/// Renewed tokens on their way to devices.
const CREDENTIALS: &str = "muster.credential.*.*";
/// Requests to define a view, or to take it back.
const VIEW_REQUESTS: &str = "muster.view.*";

impl Role {
    /// All of them, the device first.
    pub const ALL: [Self; 7] = [
        Self::Device,
        Self::Publisher,
        Self::Ingest,
        Self::Rollup,
        Self::Viewer,
        Self::Subscriber,
        Self::Operator,
    ];

    /// Its name in files, tags and on the command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Publisher => "publisher",
            Self::Ingest => "ingest",
            Self::Rollup => "rollup",
            Self::Viewer => "viewer",
            Self::Subscriber => "subscriber",
            Self::Operator => "operator",
        }
    }

    /// The role of a name.
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.as_str() == name)
    }

    /// Its rights, with `{site}`, `{device}` and `{key}` to be filled.
    pub fn rights(self) -> Rights {
        let (publish, subscribe): (Vec<&[&str]>, Vec<&[&str]>) = match self {
            Self::Device => (vec![&DEVICE_PUBLISH], vec![&DEVICE_SUBSCRIBE]),
            Self::Publisher => (
                vec![
                    &LOOK_AFTER_STREAMS,
                    &READ_DESIRED,
                    &READ_LEDGER_OF_DESIRED,
                    &READ_PRESENCE,
                    &["muster.desired.*.*", INBOXES],
                ],
                vec![&[OWN_INBOX, PUBLISHER_REQUESTS], &DISCOVERY, &DISCOVERY_OF_ALL],
            ),
            Self::Ingest => (
                vec![
                    &LOOK_AFTER_STREAMS,
                    &READ_DESIRED,
                    &READ_LEDGER,
                    &INGEST_UPLINK,
                    &[INGEST_ACK_NEWER],
                    &READ_PRESENCE,
                    &INGEST_FACTS,
                    &INGEST_RECORDS,
                    &[INBOXES],
                ],
                vec![&[OWN_INBOX], &INGEST_ANSWERS, &DISCOVERY, &DISCOVERY_OF_ALL],
            ),
            Self::Rollup => (
                vec![
                    &LOOK_AFTER_STREAMS,
                    &READ_LEDGER,
                    &READ_VIEWS,
                    &KEEP_NOTICES,
                    &["$KV.views.>", INBOXES],
                ],
                vec![&[OWN_INBOX, QUERIES, NOTIFY_REQUESTS, VIEW_REQUESTS], &DISCOVERY, &DISCOVERY_OF_ALL],
            ),
            Self::Viewer => (
                vec![
                    &ASK,
                    &["$JS.API.DIRECT.GET.KV_views.$KV.views.>"],
                    &ASK_FOR_NOTICES,
                    &DISCOVERY,
                    &DISCOVERY_OF_ALL,
                ],
                vec![&[OWN_INBOX, LIVE_NOTICES]],
            ),
            Self::Subscriber => (
                vec![&ASK, &ASK_FOR_NOTICES, &READ_LEDGER, &READ_VIEWS, &DISCOVERY, &DISCOVERY_OF_ALL],
                vec![&[OWN_INBOX, LIVE_NOTICES]],
            ),
            Self::Operator => (
                vec![
                    &[QUERIES, PUBLISHER_REQUESTS, QUARANTINE_REQUESTS, CREDENTIALS, VIEW_REQUESTS],
                    &ASK_FOR_NOTICES,
                    &READ_LEDGER,
                    &READ_VIEWS,
                    &DISCOVERY,
                    &DISCOVERY_OF_ALL,
                ],
                vec![&[OWN_INBOX, LIVE_NOTICES]],
            ),
        };
        Rights { publish: listed(&publish), subscribe: listed(&subscribe) }
    }

    /// The rights and limits as an account carries them beside the role's signing key.
    pub(crate) fn template(self) -> Value {
        let filled = self.rights().filled(&[
            ("site", "{{tag(site)}}"),
            ("device", "{{tag(device)}}"),
            ("key", "{{subject()}}"),
        ]);
        let (subscriptions, payload) = match self {
            Self::Device => (DEVICE_SUBSCRIPTIONS_MAX, DEVICE_PAYLOAD_MAX as i64),
            _ => (UNLIMITED, UNLIMITED),
        };
        json!({
            "pub": { "allow": filled.publish }, "sub": { "allow": filled.subscribe },
            "subs": subscriptions, "data": UNLIMITED, "payload": payload,
            "allowed_connection_types": ["STANDARD", "WEBSOCKET"],
        })
    }
}

impl Rights {
    /// A device's rights, for a server that keeps its users in its configuration.
    pub fn of_device(key: &DeviceKey) -> Self {
        Role::Device.rights().filled(&[("site", key.site.as_str()), ("device", key.device.as_str())])
    }

    fn filled(self, values: &[(&str, &str)]) -> Self {
        let fill = |subject: String| {
            values
                .iter()
                .fold(subject, |subject, (name, value)| subject.replace(&format!("{{{name}}}"), value))
        };
        Self {
            publish: self.publish.into_iter().map(fill).collect(),
            subscribe: self.subscribe.into_iter().map(fill).collect(),
        }
    }
}

/// The prefix under which a user with a role gets its answers.
pub fn inbox(public_key: &str) -> String {
    format!("_INBOX.{public_key}")
}

fn listed(lists: &[&[&str]]) -> Vec<String> {
    let mut all: Vec<String> = lists.concat().into_iter().map(str::to_owned).collect();
    all.sort_unstable();
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_has_exactly_the_rights_of_the_contract() {
        let rights = Rights::of_device(&"plant7/press-4".parse().unwrap());
        let publish = [
            "$JS.API.DIRECT.GET.DOWNLINK.muster.credential.plant7.press-4",
            "$JS.API.DIRECT.GET.DOWNLINK.muster.desired.plant7.press-4",
            "$JS.API.DIRECT.GET.DOWNLINK.muster.receipt.plant7.press-4",
            "muster.presence.plant7.press-4",
            "muster.report.plant7.press-4",
        ];
        assert_eq!(rights.publish, publish);
        assert_eq!(rights.subscribe, ["_INBOX_plant7_press-4.>", "muster.live.*.plant7.press-4"]);
    }

    #[test]
    fn nobody_may_take_what_would_be_everything() {
        for role in Role::ALL {
            let Rights { publish, subscribe } = role.rights();
            for subject in publish.iter().chain(&subscribe) {
                for all in [">", "*", "$JS.>", "$JS.API.>", "$JS.ACK.>", "$SYS.>", "$KV.>", "muster.>"] {
                    assert_ne!(subject, all, "{role:?}");
                }
            }
            assert!(
                !subscribe.iter().any(|subject| subject == INBOXES),
                "{role:?} reads everybody's answers"
            );
            assert!(role.template().get("resp").is_none(), "{role:?}");
        }
    }

    #[test]
    fn neither_device_nor_viewer_creates_consumers_or_streams() {
        for role in [Role::Device, Role::Viewer] {
            let rights = role.rights();
            let creates = |subject: &&String| subject.contains(".CREATE") || subject.contains("STREAM");
            assert_eq!(rights.publish.iter().find(creates), None, "{role:?}");
        }
    }

    #[test]
    fn only_one_role_writes_each_kind_of_document() {
        for (subject, writer) in [
            ("muster.desired.*.*", Role::Publisher),
            ("muster.credential.*.*", Role::Operator),
            ("muster.receipt.*.*", Role::Ingest),
            ("muster.status.*.*.*", Role::Ingest),
            ("$KV.views.>", Role::Rollup),
            ("muster.notice.*", Role::Rollup),
            ("muster.subscription.*", Role::Rollup),
            ("$JS.API.STREAM.PURGE.UPLINK", Role::Ingest),
        ] {
            let may = |role: &Role| role.rights().publish.iter().any(|right| right == subject);
            assert_eq!(Role::ALL.into_iter().filter(may).collect::<Vec<_>>(), [writer], "{subject}");
        }
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for role in Role::ALL {
            assert_eq!(Role::of(role.as_str()), Some(role));
        }
        assert_eq!(Role::of("root"), None);
    }
}
