//! The subjects that each role may publish to and subscribe, within its own account. It lists subjects and decides
//! nothing else: accounts and what crosses between them are in [`exchange`](crate::exchange).
//!
//! A subject may hold `{site}` and `{device}` (of the device it is for) and `{key}` (the user's public key, which is the
//! last token of its inbox). In an account they become the server's templates, which it fills from the user's JWT; for a
//! server with users in its configuration they are filled here.
//!
//! Rules for all roles: nobody is given `allow_responses`, which would let a requester choose where a service publishes.
//! Services answer to `_R_.>`, which nats-server alone makes for requests from other accounts; ingest, which other services
//! ask, also to `_INBOX.>` of its own account. No role may delete a stream but the keeper, and it reaches only the mirrors.

use crate::roles::Role;

/// Subjects a user may publish to and subscribe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rights {
    /// May publish to.
    pub publish: Vec<String>,
    /// May subscribe.
    pub subscribe: Vec<String>,
}

/// Streams that every service creates at its start if they are missing.
const CONVERGE_STREAMS: [&str; 12] = [
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
/// Changing the shape of streams that are there.
const UPDATE_STREAMS: [&str; 12] = [
    "$JS.API.STREAM.INFO.DOWNLINK",
    "$JS.API.STREAM.INFO.UPLINK",
    "$JS.API.STREAM.INFO.PRESENCE",
    "$JS.API.STREAM.INFO.LEDGER",
    "$JS.API.STREAM.INFO.KV_views",
    "$JS.API.STREAM.INFO.NOTICES",
    "$JS.API.STREAM.UPDATE.DOWNLINK",
    "$JS.API.STREAM.UPDATE.UPLINK",
    "$JS.API.STREAM.UPDATE.PRESENCE",
    "$JS.API.STREAM.UPDATE.LEDGER",
    "$JS.API.STREAM.UPDATE.KV_views",
    "$JS.API.STREAM.UPDATE.NOTICES",
];
const READ_DESIRED: [&str; 4] = [
    "$JS.API.CONSUMER.CREATE.DOWNLINK.*.muster.desired.>",
    "$JS.API.CONSUMER.MSG.NEXT.DOWNLINK.*",
    "$JS.API.CONSUMER.DELETE.DOWNLINK.*",
    "$JS.API.DIRECT.GET.DOWNLINK.muster.desired.>",
];
/// Verifying the receipts that ingest writes.
const READ_RECEIPTS: &str = "$JS.API.CONSUMER.CREATE.DOWNLINK.*.muster.receipt.>";
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
/// Desired states that DOWNLINK has lost and LEDGER still holds, and whether a device was ever heard.
const READ_LEDGER_OF_DESIRED: [&str; 6] = [
    // By sequence: how old LEDGER's oldest half is.
    "$JS.API.DIRECT.GET.LEDGER",
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
/// Subscriptions and notices, which only the rollup writes.
const KEEP_NOTICES: [&str; 6] = [
    "$JS.API.CONSUMER.CREATE.NOTICES.>",
    "$JS.API.CONSUMER.MSG.NEXT.NOTICES.*",
    "$JS.API.CONSUMER.DELETE.NOTICES.*",
    "$JS.API.DIRECT.GET.NOTICES.>",
    "muster.subscription.*",
    "muster.notice.*",
];
/// What NATS clients call to read LEDGER and the bucket `views`: on the mirrors, through PEOPLE's imports.
const READ_MIRRORS: [&str; 25] = [
    "$JS.API.INFO",
    "$JS.API.STREAM.NAMES",
    "$JS.API.STREAM.LIST",
    "$JS.API.STREAM.INFO.LEDGER",
    "$JS.API.STREAM.INFO.KV_views",
    "$JS.API.STREAM.MSG.GET.LEDGER",
    "$JS.API.STREAM.MSG.GET.KV_views",
    "$JS.API.DIRECT.GET.LEDGER",
    "$JS.API.DIRECT.GET.LEDGER.>",
    "$JS.API.DIRECT.GET.KV_views",
    "$JS.API.DIRECT.GET.KV_views.>",
    "$JS.API.CONSUMER.CREATE.LEDGER",
    "$JS.API.CONSUMER.CREATE.LEDGER.>",
    "$JS.API.CONSUMER.CREATE.KV_views",
    "$JS.API.CONSUMER.CREATE.KV_views.>",
    "$JS.API.CONSUMER.DURABLE.CREATE.LEDGER.*",
    "$JS.API.CONSUMER.INFO.LEDGER.*",
    "$JS.API.CONSUMER.INFO.KV_views.*",
    "$JS.API.CONSUMER.DELETE.LEDGER.*",
    "$JS.API.CONSUMER.DELETE.KV_views.*",
    "$JS.API.CONSUMER.MSG.NEXT.LEDGER.*",
    "$JS.API.CONSUMER.MSG.NEXT.KV_views.*",
    "$JS.ACK.LEDGER.>",
    "$JS.ACK.*.*.LEDGER.>",
    "$JS.FC.>",
];
/// Looking after the mirrors in READERS, and comparing them with what HUB holds.
const KEEP_MIRRORS: [&str; 14] = [
    "$JS.API.STREAM.INFO.LEDGER",
    "$JS.API.STREAM.INFO.KV_views",
    "$JS.API.STREAM.CREATE.LEDGER",
    "$JS.API.STREAM.CREATE.KV_views",
    "$JS.API.STREAM.UPDATE.LEDGER",
    "$JS.API.STREAM.UPDATE.KV_views",
    "$JS.API.STREAM.DELETE.LEDGER",
    "$JS.API.STREAM.DELETE.KV_views",
    "$JS.API.CONSUMER.LIST.LEDGER",
    "$JS.API.CONSUMER.LIST.KV_views",
    "$JS.API.CONSUMER.DELETE.LEDGER.*",
    "$JS.API.CONSUMER.DELETE.KV_views.*",
    "hub.api.STREAM.INFO.LEDGER",
    "hub.api.STREAM.INFO.KV_views",
];
/// Asking for notices, and reading the newest.
const ASK_FOR_NOTICES: [&str; 2] = [NOTIFY_REQUESTS, "$JS.API.DIRECT.GET.NOTICES.muster.notice.*"];
/// Notices as they are stored.
const LIVE_NOTICES: &str = "muster.live.notice.*";
const INGEST_UPLINK: [&str; 8] = [
    "$JS.API.CONSUMER.INFO.UPLINK.*",
    "$JS.API.CONSUMER.LIST.UPLINK",
    "$JS.API.CONSUMER.CREATE.UPLINK.*.muster.report.*.>",
    "$JS.API.CONSUMER.DELETE.UPLINK.*",
    "$JS.API.CONSUMER.MSG.NEXT.UPLINK.*",
    "$JS.API.STREAM.PURGE.UPLINK",
    "$JS.ACK.UPLINK.>",
    // The same acknowledgements as newer servers write them: domain and account before the stream.
    "$JS.ACK.*.*.UPLINK.>",
];
const READ_PRESENCE: [&str; 3] = [
    "$JS.API.CONSUMER.CREATE.PRESENCE.*.muster.presence.*.>",
    "$JS.API.CONSUMER.MSG.NEXT.PRESENCE.*",
    "$JS.API.CONSUMER.DELETE.PRESENCE.*",
];
/// Who owns a partition, and what an operator decided about a message in quarantine.
const INGEST_RECORDS: [&str; 3] = ["muster.owner.*.*", "muster.verdict.*.*", "muster.ingest.owner.*"];
/// Owners ask each other whether they are alive, and answer for the quarantine.
const INGEST_ANSWERS: [&str; 3] = ["muster.ingest.owner.*", QUARANTINE_REQUESTS, INCIDENT_REQUESTS];
/// Services report incidents to ingest, which alone records them.
const INCIDENT_REQUESTS: &str = "muster.ingest.incident";
/// Requests to requeue or drop a message in quarantine.
const QUARANTINE_REQUESTS: &str = "muster.ingest.quarantine.*";
const INGEST_FACTS: [&str; 8] = [
    "muster.status.*.*.*",
    "muster.device.*.*",
    "muster.liveness.*.*",
    "muster.deadline.*.*.*",
    "muster.incident.*.*",
    "muster.quarantine.*.*",
    "muster.receipt.*.*",
    "muster.hub.*",
];
const DEVICE_PUBLISH: [&str; 5] = [
    "muster.report.{site}.{device}",
    "muster.presence.{site}.{device}",
    "$JS.API.DIRECT.GET.DOWNLINK.muster.desired.{site}.{device}",
    "$JS.API.DIRECT.GET.DOWNLINK.muster.receipt.{site}.{device}",
    "$JS.API.DIRECT.GET.DOWNLINK.muster.credential.{site}.{device}",
];
const DEVICE_SUBSCRIBE: [&str; 2] = ["_INBOX_{site}_{device}.>", "muster.live.*.{site}.{device}"];
/// Where a user that is no device gets answers; no other user may subscribe there.
const OWN_INBOX: &str = "_INBOX.{key}.>";
/// Where services answer requests from other accounts.
const ANSWERS: &str = "_R_.>";
/// Where ingest answers requests of its own account. A service that may write there can also forge the server's answers to
/// other services, so no other may.
const ANSWERS_WITHIN_HUB: &str = "_INBOX.>";
/// How services are discovered.
const DISCOVERY: [&str; 6] =
    ["$SRV.PING", "$SRV.PING.>", "$SRV.INFO", "$SRV.INFO.>", "$SRV.STATS", "$SRV.STATS.>"];
const QUERIES: &str = "muster.query.*";
const NOTIFY_REQUESTS: &str = "muster.notify.*";
const PUBLISHER_REQUESTS: &str = "muster.publisher.*";
/// Questions, which change nothing: about the views, and about the publisher's progress.
const ASK: [&str; 2] = [QUERIES, "muster.publisher.status"];
/// Renewed tokens for devices.
const CREDENTIALS: &str = "muster.credential.*.*";
/// Whether the hub listens to a partition: the rollup alone says so.
const HEARING_FACTS: &str = "muster.hearing.*";
/// Requests to define a view, or to remove a definition.
const VIEW_REQUESTS: &str = "muster.view.*";

impl Role {
    /// Its rights, with `{site}`, `{device}` and `{key}` to be filled.
    pub fn rights(self) -> Rights {
        let (publish, subscribe): (Vec<&[&str]>, Vec<&[&str]>) = match self {
            Self::Device => (vec![&DEVICE_PUBLISH], vec![&DEVICE_SUBSCRIBE]),
            Self::Publisher => (
                vec![
                    &CONVERGE_STREAMS,
                    &READ_DESIRED,
                    &READ_LEDGER_OF_DESIRED,
                    &READ_PRESENCE,
                    &["muster.desired.*.*", INCIDENT_REQUESTS, ANSWERS],
                ],
                vec![&[OWN_INBOX, PUBLISHER_REQUESTS], &DISCOVERY],
            ),
            Self::Ingest => (
                vec![
                    &CONVERGE_STREAMS,
                    &READ_DESIRED,
                    &READ_LEDGER,
                    &INGEST_UPLINK,
                    &READ_PRESENCE,
                    &INGEST_FACTS,
                    &INGEST_RECORDS,
                    &[READ_RECEIPTS, ANSWERS, ANSWERS_WITHIN_HUB],
                ],
                vec![&[OWN_INBOX], &INGEST_ANSWERS, &DISCOVERY],
            ),
            Self::Rollup => (
                vec![
                    &CONVERGE_STREAMS,
                    &READ_LEDGER,
                    &READ_VIEWS,
                    &KEEP_NOTICES,
                    &["$KV.views.>", INCIDENT_REQUESTS, HEARING_FACTS, ANSWERS],
                ],
                vec![&[OWN_INBOX, QUERIES, NOTIFY_REQUESTS, VIEW_REQUESTS], &DISCOVERY],
            ),
            Self::Renewer => (vec![&[CREDENTIALS, INCIDENT_REQUESTS]], vec![&[OWN_INBOX]]),
            Self::Keeper => (vec![&KEEP_MIRRORS], vec![&[OWN_INBOX]]),
            Self::Maintainer => (vec![&UPDATE_STREAMS], vec![&[OWN_INBOX]]),
            Self::Viewer => (
                vec![&ASK, &["$JS.API.DIRECT.GET.KV_views.$KV.views.>"], &ASK_FOR_NOTICES, &DISCOVERY],
                vec![&[OWN_INBOX, LIVE_NOTICES]],
            ),
            Self::Subscriber => {
                (vec![&ASK, &ASK_FOR_NOTICES, &READ_MIRRORS, &DISCOVERY], vec![&[OWN_INBOX, LIVE_NOTICES]])
            }
            Self::Operator => (
                vec![
                    &[QUERIES, PUBLISHER_REQUESTS, QUARANTINE_REQUESTS, CREDENTIALS, VIEW_REQUESTS],
                    &ASK_FOR_NOTICES,
                    &READ_MIRRORS,
                    &DISCOVERY,
                ],
                vec![&[OWN_INBOX, LIVE_NOTICES]],
            ),
        };
        Rights { publish: listed(&publish), subscribe: listed(&subscribe) }
    }
}

impl Rights {
    pub(crate) fn filled(self, values: &[(&str, &str)]) -> Self {
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

fn listed(lists: &[&[&str]]) -> Vec<String> {
    let mut all: Vec<String> = lists.concat().into_iter().map(str::to_owned).collect();
    all.sort_unstable();
    all.dedup();
    all
}
