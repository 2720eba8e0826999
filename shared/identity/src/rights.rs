//! The subjects that each role may publish to and subscribe to within its own account. [`exchange`](crate::exchange) has
//! the accounts and the subjects that they share.
//!
//! A subject may contain `{site}` and `{device}` (of the device) and `{key}` (the user's public key, the last token of its
//! inbox). In an account they become the server's templates, which it fills from the user's JWT; for a server with users in
//! its configuration they are filled here.
//!
//! Rules for all roles: none but a checker has `allow_responses`, which would let a requester choose where a service publishes.
//! Questions reach a checker from another account alone, so nats-server chooses its reply subject. Services
//! answer to `_R_.>`, which only nats-server makes, for requests from other accounts; ingest also answers to `_INBOX.>` of
//! its own account, for requests of other services. Only the keeper may delete a stream, and it reaches only the mirrors.

use muster_contract::DeviceKey;

use crate::roles::Role;

/// The subjects of a user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rights {
    /// Subjects that it may publish to.
    pub publish: Vec<String>,
    /// Subjects that it may subscribe to.
    pub subscribe: Vec<String>,
}

/// Streams that every service creates at its start if they are missing.
const CONVERGE_STREAMS: [&str; 18] = [
    "$JS.API.STREAM.INFO.DOWNLINK",
    "$JS.API.STREAM.INFO.UPLINK",
    "$JS.API.STREAM.INFO.PRESENCE",
    "$JS.API.STREAM.INFO.LEDGER",
    "$JS.API.STREAM.INFO.KV_views",
    "$JS.API.STREAM.INFO.NOTICES",
    "$JS.API.STREAM.INFO.QUARANTINE",
    "$JS.API.STREAM.INFO.KV_http_devices",
    "$JS.API.STREAM.INFO.OBJ_packages",
    "$JS.API.STREAM.CREATE.DOWNLINK",
    "$JS.API.STREAM.CREATE.UPLINK",
    "$JS.API.STREAM.CREATE.PRESENCE",
    "$JS.API.STREAM.CREATE.LEDGER",
    "$JS.API.STREAM.CREATE.KV_views",
    "$JS.API.STREAM.CREATE.NOTICES",
    "$JS.API.STREAM.CREATE.QUARANTINE",
    "$JS.API.STREAM.CREATE.KV_http_devices",
    "$JS.API.STREAM.CREATE.OBJ_packages",
];
/// PLANS, which only the scheduler creates, reads and writes.
const KEEP_PLANS: [&str; 8] = [
    "$JS.API.STREAM.INFO.PLANS",
    "$JS.API.STREAM.CREATE.PLANS",
    "$JS.API.CONSUMER.CREATE.PLANS.>",
    "$JS.API.CONSUMER.MSG.NEXT.PLANS.*",
    "$JS.API.CONSUMER.DELETE.PLANS.*",
    "muster.plan.*",
    "muster.instance.*.*",
    "muster.inventory.>",
];
/// Updating existing streams.
const UPDATE_STREAMS: [&str; 20] = [
    "$JS.API.STREAM.INFO.DOWNLINK",
    "$JS.API.STREAM.INFO.UPLINK",
    "$JS.API.STREAM.INFO.PRESENCE",
    "$JS.API.STREAM.INFO.LEDGER",
    "$JS.API.STREAM.INFO.KV_views",
    "$JS.API.STREAM.INFO.NOTICES",
    "$JS.API.STREAM.INFO.QUARANTINE",
    "$JS.API.STREAM.INFO.KV_http_devices",
    "$JS.API.STREAM.INFO.OBJ_packages",
    "$JS.API.STREAM.INFO.PLANS",
    "$JS.API.STREAM.UPDATE.DOWNLINK",
    "$JS.API.STREAM.UPDATE.UPLINK",
    "$JS.API.STREAM.UPDATE.PRESENCE",
    "$JS.API.STREAM.UPDATE.LEDGER",
    "$JS.API.STREAM.UPDATE.KV_views",
    "$JS.API.STREAM.UPDATE.NOTICES",
    "$JS.API.STREAM.UPDATE.QUARANTINE",
    "$JS.API.STREAM.UPDATE.KV_http_devices",
    "$JS.API.STREAM.UPDATE.OBJ_packages",
    "$JS.API.STREAM.UPDATE.PLANS",
];
/// Copying streams out of a server and into one that lacks them, for `muster backup` and `muster restore --from`.
const COPY_STREAMS: [&str; 18] = [
    "$JS.API.STREAM.SNAPSHOT.DOWNLINK",
    "$JS.API.STREAM.SNAPSHOT.LEDGER",
    "$JS.API.STREAM.SNAPSHOT.KV_views",
    "$JS.API.STREAM.SNAPSHOT.NOTICES",
    "$JS.API.STREAM.SNAPSHOT.QUARANTINE",
    "$JS.API.STREAM.SNAPSHOT.KV_http_devices",
    "$JS.API.STREAM.SNAPSHOT.PLANS",
    "$JS.API.STREAM.SNAPSHOT.OBJ_packages",
    "$JS.SNAPSHOT.ACK.>",
    "$JS.API.STREAM.RESTORE.DOWNLINK",
    "$JS.API.STREAM.RESTORE.LEDGER",
    "$JS.API.STREAM.RESTORE.KV_views",
    "$JS.API.STREAM.RESTORE.NOTICES",
    "$JS.API.STREAM.RESTORE.QUARANTINE",
    "$JS.API.STREAM.RESTORE.KV_http_devices",
    "$JS.API.STREAM.RESTORE.PLANS",
    "$JS.API.STREAM.RESTORE.OBJ_packages",
    "$JS.SNAPSHOT.RESTORE.>",
];
const READ_DESIRED: [&str; 4] = [
    "$JS.API.CONSUMER.CREATE.DOWNLINK.*.muster.desired.>",
    "$JS.API.CONSUMER.MSG.NEXT.DOWNLINK.*",
    "$JS.API.CONSUMER.DELETE.DOWNLINK.*",
    "$JS.API.DIRECT.GET.DOWNLINK.muster.desired.>",
];
/// Decisions about rollouts, which only the publisher stores.
const KEEP_ROLLOUTS: [&str; 3] = [
    "$JS.API.CONSUMER.CREATE.DOWNLINK.*.muster.rollout.*",
    "$JS.API.DIRECT.GET.DOWNLINK.muster.rollout.*",
    "muster.rollout.*",
];
/// Reading the stored receipts, which ingest compares with its own.
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
/// Reading desired states that DOWNLINK has lost and LEDGER still holds, and liveness facts of devices.
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
/// The API that NATS clients call to read LEDGER and the bucket `views` on the mirrors, through PEOPLE's imports.
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
/// Keeping the mirrors in READERS, and comparing them with the streams of HUB.
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
/// Requesting notices, and reading the newest.
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
/// Rejected reports: only ingest stores, reads and removes them.
const KEEP_QUARANTINE: [&str; 3] =
    ["muster.rejected.*.*", "$JS.API.DIRECT.GET.QUARANTINE", "$JS.API.STREAM.MSG.DELETE.QUARANTINE"];
const READ_PRESENCE: [&str; 3] = [
    "$JS.API.CONSUMER.CREATE.PRESENCE.*.muster.presence.*.>",
    "$JS.API.CONSUMER.MSG.NEXT.PRESENCE.*",
    "$JS.API.CONSUMER.DELETE.PRESENCE.*",
];
/// Owners of partitions, decisions of operators about messages in quarantine, and requests to the owner of a partition.
const INGEST_RECORDS: [&str; 3] = ["muster.owner.*.*", "muster.verdict.*.*", "muster.ingest.owner.*"];
/// Requests that ingest answers: of other replicas whether an owner lives, about the quarantine, and incidents.
const INGEST_ANSWERS: [&str; 3] = ["muster.ingest.owner.*", QUARANTINE_REQUESTS, INCIDENT_REQUESTS];
/// Requests of services that ingest records an incident.
const INCIDENT_REQUESTS: &str = "muster.ingest.incident";
/// Requests to list, show, requeue or drop rejected reports.
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
const DEVICE_PUBLISH: [&str; 6] = [
    "muster.report.{site}.{device}",
    "muster.presence.{site}.{device}",
    "$JS.API.DIRECT.GET.DOWNLINK.muster.desired.{site}.{device}",
    "$JS.API.DIRECT.GET.DOWNLINK.muster.receipt.{site}.{device}",
    "$JS.API.DIRECT.GET.DOWNLINK.muster.credential.{site}.{device}",
    READ_PACKAGES,
];
/// Reading the bucket `packages` by sequence, also for a list of packages. Rights cannot depend on the packages that a desired
/// state names: the server reads no documents.
const READ_PACKAGES: &str = "$JS.API.DIRECT.GET.OBJ_packages";
/// Writing packages, and reading them for a list.
const KEEP_PACKAGES: [&str; 3] = ["$O.packages.C.*", "$O.packages.M.*", READ_PACKAGES];
const DEVICE_SUBSCRIBE: [&str; 2] = ["_INBOX_{site}_{device}.>", "muster.live.*.{site}.{device}"];
/// Reports, heartbeats and numbers of the devices of a gateway's sites that speak HTTP.
const MARGO_PUBLISH: [&str; 6] = [
    "muster.report.{site}.*",
    "muster.presence.{site}.*",
    "$JS.API.DIRECT.GET.DOWNLINK.muster.desired.{site}.*",
    "$JS.API.DIRECT.GET.DOWNLINK.muster.receipt.{site}.*",
    "$KV.http_devices.{site}.*",
    // Also reads accepted clients, which it may not write.
    "$JS.API.DIRECT.GET.KV_http_devices.$KV.http_devices.>",
];
/// Accepting, revoking and listing clients that speak HTTP. A list reads by sequence, because a key is a digest.
const KEEP_HTTP_CLIENTS: [&str; 2] = ["$KV.http_devices.*", "$JS.API.DIRECT.GET.KV_http_devices"];
/// The inbox of a user that is no device; no other user may subscribe to it.
const OWN_INBOX: &str = "_INBOX.{key}.>";
/// Replies of services to other accounts.
const ANSWERS: &str = "_R_.>";
/// Replies of ingest within its own account. This right also allows forging the server's replies to other services, so
/// only ingest has it.
const ANSWERS_WITHIN_HUB: &str = "_INBOX.>";
/// Discovery of services.
const DISCOVERY: [&str; 6] =
    ["$SRV.PING", "$SRV.PING.>", "$SRV.INFO", "$SRV.INFO.>", "$SRV.STATS", "$SRV.STATS.>"];
const QUERIES: &str = "muster.query.*";
const NOTIFY_REQUESTS: &str = "muster.notify.*";
const PUBLISHER_REQUESTS: &str = "muster.publisher.*";
/// Requests to the planner.
const PLANS_REQUESTS: &str = "muster.planner.*";
/// Requests to the planner that change nothing.
const READ_PLANS: [&str; 7] = [
    "muster.planner.plan-get",
    "muster.planner.plan-list",
    "muster.planner.plan-explain",
    "muster.planner.instance-list",
    "muster.planner.operation-list",
    "muster.planner.inventory-list",
    "muster.planner.change-list",
];
/// Approving operations, deployments of plans and waves, and rejecting operations and waves, directly or through a gateway. The publisher
/// refuses other decisions of an approver.
const APPROVE: [&str; 4] = [
    "muster.planner.operation-approve",
    "muster.planner.operation-reject",
    "muster.planner.plan-approve",
    "muster.publisher.decide",
];
/// Requests of a gateway on behalf of people.
const ASK_FOR_PEOPLE: [&str; 6] = [
    PUBLISHER_REQUESTS,
    PLANS_REQUESTS,
    QUARANTINE_REQUESTS,
    VIEW_REQUESTS,
    "muster.notify.list",
    "muster.notify.unsubscribe",
];
/// Requests of a gateway about webhooks: on behalf of operators, for deliveries, and about revoked owners.
const WEBHOOK_REQUESTS: [&str; 6] = [
    "muster.notify.webhook-register",
    "muster.notify.webhook-list",
    "muster.notify.webhook-remove",
    "muster.notify.webhook-due",
    "muster.notify.webhook-result",
    "muster.notify.webhook-revoke",
];
/// Requests that change nothing: queries of views, and the publisher's progress and targets.
const READ_ONLY_REQUESTS: [&str; 3] = [QUERIES, "muster.publisher.status", "muster.publisher.targets"];
/// Requests of a planner: the publisher's progress and targets, releases of held changes, decisions about rollouts, and the
/// deployments of instances.
const PLANNER_REQUESTS: [&str; 6] = [
    "muster.publisher.apply",
    "muster.publisher.remove",
    "muster.publisher.status",
    "muster.publisher.targets",
    "muster.publisher.release",
    "muster.publisher.decide",
];
/// Questions of checks and of hooks of plans, which the planner asks and checkers answer.
const CHECK_QUESTIONS: &str = "muster.check.>";
/// Following LEDGER from its first message.
const READ_LEDGER_MIRROR: [&str; 4] = [
    "$JS.API.STREAM.INFO.LEDGER",
    "$JS.API.CONSUMER.CREATE.LEDGER.>",
    "$JS.API.CONSUMER.MSG.NEXT.LEDGER.*",
    "$JS.API.CONSUMER.DELETE.LEDGER.*",
];
/// Renewed tokens for devices.
const CREDENTIALS: &str = "muster.credential.*.*";
/// Facts about whether the hub hears a partition, which only the rollup publishes.
const HEARING_FACTS: &str = "muster.hearing.*";
/// Requests to define a view, or to remove a definition.
const VIEW_REQUESTS: &str = "muster.view.*";

impl Role {
    /// Its rights, with the variables `{site}`, `{device}` and `{key}`.
    pub fn rights(self) -> Rights {
        let (publish, subscribe): (Vec<&[&str]>, Vec<&[&str]>) = match self {
            Self::Device => (vec![&DEVICE_PUBLISH], vec![&DEVICE_SUBSCRIBE]),
            Self::Margo => (vec![&MARGO_PUBLISH], vec![&[OWN_INBOX]]),
            Self::Publisher => (
                vec![
                    &CONVERGE_STREAMS,
                    &READ_DESIRED,
                    &KEEP_ROLLOUTS,
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
                    &KEEP_QUARANTINE,
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
            Self::Maintainer => (vec![&UPDATE_STREAMS, &COPY_STREAMS], vec![&[OWN_INBOX]]),
            Self::Planner => {
                (vec![&PLANNER_REQUESTS, &READ_LEDGER_MIRROR, &[CHECK_QUESTIONS]], vec![&[OWN_INBOX]])
            }
            Self::Scheduler => {
                (vec![&KEEP_PLANS, &[ANSWERS]], vec![&[OWN_INBOX, PLANS_REQUESTS], &DISCOVERY])
            }
            Self::Gateway => (self.asked_by_people(), vec![&[OWN_INBOX]]),
            Self::Packager => (vec![&KEEP_PACKAGES], vec![&[OWN_INBOX]]),
            // Nothing arrives in its inbox, because it may send no request; clients subscribe to theirs as they connect.
            Self::Checker => (Vec::new(), vec![&[OWN_INBOX, CHECK_QUESTIONS]]),
            Self::Viewer | Self::Approver | Self::Subscriber | Self::Operator => {
                (self.asked_by_people(), vec![&[OWN_INBOX, LIVE_NOTICES]])
            }
        };
        Rights { publish: listed(&publish), subscribe: listed(&subscribe) }
    }

    /// The subjects that a role of people publishes to; those of a gateway as well, which asks for them.
    fn asked_by_people(self) -> Vec<&'static [&'static str]> {
        let views: &[&str] = &["$JS.API.DIRECT.GET.KV_views.$KV.views.>"];
        match self {
            Self::Gateway => {
                vec![&READ_ONLY_REQUESTS, &ASK_FOR_PEOPLE, &WEBHOOK_REQUESTS, &READ_MIRRORS, &[READ_PACKAGES]]
            }
            Self::Viewer => vec![&READ_ONLY_REQUESTS, &READ_PLANS, views, &ASK_FOR_NOTICES, &DISCOVERY],
            Self::Approver => {
                vec![&READ_ONLY_REQUESTS, &READ_PLANS, &APPROVE, views, &ASK_FOR_NOTICES, &DISCOVERY]
            }
            Self::Subscriber => {
                vec![&READ_ONLY_REQUESTS, &READ_PLANS, &ASK_FOR_NOTICES, &READ_MIRRORS, &DISCOVERY]
            }
            Self::Operator => vec![
                &[
                    QUERIES,
                    PUBLISHER_REQUESTS,
                    PLANS_REQUESTS,
                    QUARANTINE_REQUESTS,
                    CREDENTIALS,
                    VIEW_REQUESTS,
                    READ_PACKAGES,
                ],
                &KEEP_HTTP_CLIENTS,
                &ASK_FOR_NOTICES,
                &READ_MIRRORS,
                &DISCOVERY,
            ],
            _ => Vec::new(),
        }
    }

    /// Whether it may answer each message that it receives with a reply subject: once, and for as long as the planner waits.
    pub const fn answers_questions(self) -> bool {
        matches!(self, Self::Checker)
    }

    /// Whether people of the role may approve and reject waves and operations.
    pub const fn may_approve(self) -> bool {
        matches!(self, Self::Approver | Self::Operator)
    }

    /// Whether a gateway may request a change on a subject on behalf of people of the role.
    pub fn may_change(self, subject: &str) -> bool {
        self == Self::Operator || self.may_approve() && APPROVE.contains(&subject)
    }
}

impl Rights {
    /// A device's rights, for a server that keeps its users in its configuration.
    pub fn of_device(key: &DeviceKey) -> Self {
        Role::Device.rights().filled(&[("site", key.site.as_str()), ("device", key.device.as_str())])
    }

    /// The rights with values for their variables.
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
