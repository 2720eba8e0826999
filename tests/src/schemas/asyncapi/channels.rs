//! Channels: one for each kind of subject. The addresses are the contract's, with its identifiers as parameters.

mod federation;
mod groups;
mod incidents;
mod notices;
pub(super) mod plans;
mod publisher;

use muster_bus::topology::VIEWS_STREAM;
use muster_contract::subjects::{self, LedgerSubject, ViewKey, stream};
use muster_contract::{DeploymentId, DeviceKey};
use serde_json::{Map, Value, json};

/// A kind of subject.
pub(super) struct Channel {
    /// Its name in the file.
    pub(super) name: &'static str,
    /// The subject, with `{site}`, `{device}` and `{deployment}`.
    pub(super) address: String,
    /// The documents it carries.
    pub(super) messages: &'static [&'static str],
    /// The stream that holds it.
    stream: Option<&'static str>,
    about: &'static str,
}

/// All channels by name.
pub(super) fn all() -> Map<String, Value> {
    let named = list().into_iter().map(|channel| (channel.name.to_owned(), channel.value()));
    named.chain([("answers".to_owned(), answers())]).collect()
}

pub(super) fn list() -> Vec<Channel> {
    let parts = [
        downlink(),
        uplink(),
        quarantine(),
        ledger(),
        incidents::list(),
        views(),
        questions(),
        questions_about_the_past(),
        groups::list(),
        federation::list(),
        notices::all(),
        publisher::list(),
        plans::list(),
        requests(),
    ];
    parts.into_iter().flatten().collect()
}

// Identifiers that no address contains otherwise; they become the parameters.
const SITE: &str = "x-site-x";
const DEVICE: &str = "x-device-x";
const DEPLOYMENT: &str = "x-deployment-x";

fn key() -> DeviceKey {
    let label = "these are labels";
    DeviceKey { site: SITE.parse().expect(label), device: DEVICE.parse().expect(label) }
}

fn deployment() -> DeploymentId {
    DEPLOYMENT.parse().expect("this is a label")
}

fn with_parameters(subject: &str) -> String {
    subject.replace(SITE, "{site}").replace(DEVICE, "{device}").replace(DEPLOYMENT, "{deployment}")
}

impl Channel {
    fn new(
        name: &'static str,
        subject: &str,
        stream: Option<&'static str>,
        messages: &'static [&'static str],
        about: &'static str,
    ) -> Self {
        Self { name, address: with_parameters(subject), messages, stream, about }
    }

    fn value(&self) -> Value {
        let mut value = json!({
            "address": self.address,
            "description": self.about,
            "messages": references(self.messages, "#/components/messages"),
        });
        let parameters: Map<_, _> = parameters(&self.address)
            .map(|name| (name.to_owned(), json!({ "$ref": format!("#/components/parameters/{name}") })))
            .collect();
        if !parameters.is_empty() {
            value["parameters"] = parameters.into();
        }
        if let Some(stream) = self.stream {
            value["x-muster-stream"] = stream.into();
        }
        value
    }
}

fn parameters(address: &str) -> impl Iterator<Item = &str> {
    address.split('{').skip(1).filter_map(|rest| rest.split_once('}').map(|(name, _)| name))
}

pub(super) fn references(messages: &[&str], at: &str) -> Map<String, Value> {
    messages.iter().map(|name| ((*name).to_owned(), json!({ "$ref": format!("{at}/{name}") }))).collect()
}

fn downlink() -> Vec<Channel> {
    let live = subjects::live(&key()).replace('*', "{document}");
    vec![
        Channel::new(
            "desired",
            &subjects::desired(&key()),
            Some(stream::DOWNLINK),
            &["DesiredState"],
            "The desired state of one device. The newest message holds: read it by direct get, follow it on `live`. \
             LEDGER sources it.",
        ),
        Channel::new(
            "receipt",
            &subjects::receipt(&key()),
            Some(stream::DOWNLINK),
            &["Receipt"],
            "The receipt for a device's reports. Read it by direct get, follow it on `live`.",
        ),
        Channel::new(
            "credential",
            &subjects::credential(&key()),
            Some(stream::DOWNLINK),
            &["Credential"],
            "A device's renewed JWT. Read it by direct get, follow it on `live`.",
        ),
        Channel::new(
            "rollout",
            "muster.rollout.{deployment}-{file}",
            Some(stream::DOWNLINK),
            &["RolloutDecisions"],
            "The decisions about the rollouts of a deployment. Others read them in the answer of `muster.publisher.targets`.",
        ),
        Channel::new(
            "live",
            &live,
            None,
            &["DesiredState", "Receipt", "Credential"],
            "DOWNLINK's messages republished as they are stored: core NATS, at most once, a hint to look. The header \
             `Nats-Subject` names the original subject.",
        ),
    ]
}

fn quarantine() -> Vec<Channel> {
    let held = Some(stream::QUARANTINE);
    vec![
        Channel::new(
            "rejected",
            &subjects::rejected(Some(&key())),
            held,
            &["RejectedReport"],
            "Reports that ingest rejected, whole: stored before their numbers are accounted for, removed after a verdict.",
        ),
        Channel::new(
            "rejectedOfNobody",
            &subjects::rejected(None),
            held,
            &["RejectedReport"],
            "The same, where the sender's name is no identifier.",
        ),
    ]
}

fn uplink() -> Vec<Channel> {
    let stored = subjects::report_partition(0).replace(".0.>", ".{partition}.{site}.{device}");
    vec![
        Channel::new(
            "report",
            &subjects::report(&key()),
            None,
            &["StatusReport", "CapabilitiesReport", "ReportBatch"],
            "Where a device publishes its reports, and nobody else. The bus stores it under `reportStored`.",
        ),
        Channel::new(
            "reportStored",
            &stored,
            Some(stream::UPLINK),
            &["StatusReport", "CapabilitiesReport", "ReportBatch"],
            "Reports by partition, as UPLINK holds them until ingest has them in LEDGER.",
        ),
        Channel::new(
            "presence",
            &subjects::presence(&key()),
            None,
            &["Heartbeat"],
            "Where a device's heart beats. The bus stores it under `presenceStored`.",
        ),
        Channel::new(
            "presenceStored",
            &subjects::presence_partition(0).replace(".0.>", ".{partition}.{site}.{device}"),
            Some(stream::PRESENCE),
            &["Heartbeat"],
            "The newest heartbeat of each device, in memory.",
        ),
    ]
}

fn fact(
    name: &'static str,
    subject: &LedgerSubject,
    message: &'static [&'static str],
    about: &'static str,
) -> Channel {
    Channel::new(name, &subject.to_string(), Some(stream::LEDGER), message, about)
}

/// A fact about no device: its subject ends with a partition.
fn of_partition(
    name: &'static str,
    subject: &LedgerSubject,
    message: &'static [&'static str],
    about: &'static str,
) -> Channel {
    let subject = subject.to_string().replace(".0", ".{partition}");
    Channel::new(name, &subject, Some(stream::LEDGER), message, about)
}

fn ledger() -> Vec<Channel> {
    vec![
        fact(
            "status",
            &LedgerSubject::Status(key(), deployment()),
            &["StatusFact"],
            "The state of a deployment on a device.",
        ),
        fact("device", &LedgerSubject::Device(key()), &["DeviceFact"], "Capabilities of a device."),
        fact(
            "liveness",
            &LedgerSubject::Liveness(key()),
            &["LivenessFact"],
            "Whether the hub hears a device.",
        ),
        fact(
            "deadline",
            &LedgerSubject::Deadline(key(), deployment()),
            &["DeadlineFact"],
            "A missed deadline.",
        ),
        fact(
            "quarantine",
            &LedgerSubject::Quarantine(Some(key())),
            &["QuarantineFact"],
            "A rejected report, with the reason.",
        ),
        fact(
            "quarantineOfNobody",
            &LedgerSubject::Quarantine(None),
            &["QuarantineFact"],
            "The same, where the sender's name is no identifier.",
        ),
        fact(
            "verdict",
            &LedgerSubject::Verdict(Some(key())),
            &["QuarantineVerdict"],
            "The decision on a message in quarantine. It changes no account.",
        ),
        fact(
            "verdictOfNobody",
            &LedgerSubject::Verdict(None),
            &["QuarantineVerdict"],
            "The same, where the sender's name is no identifier.",
        ),
        Channel::new(
            "owner",
            &LedgerSubject::Owner { partition: 0, fence: 0 }
                .to_string()
                .replace(".0.0", ".{partition}.{fence}"),
            Some(stream::LEDGER),
            &["Ownership"],
            "Which ingest writes the facts of a partition's devices. About no device: readers pass it over.",
        ),
        of_partition(
            "hub",
            &LedgerSubject::Hub(0),
            &["PulseFact"],
            "The pulse of the partition's owner, with a time to live. Views pass it over.",
        ),
        of_partition(
            "hearing",
            &LedgerSubject::Hearing(0),
            &["HearingFact"],
            "Whether the hub listens to the partition's devices. Where it does not, none of them is fresh.",
        ),
    ]
}

fn views() -> Vec<Channel> {
    let bucket = format!("$KV.{}", stream::VIEWS_BUCKET);
    let held = Some(VIEWS_STREAM);
    let site = SITE.parse().expect("this is a label");
    vec![
        Channel::new(
            "deploymentView",
            &format!("{bucket}.{}", ViewKey::Deployment(deployment())),
            held,
            &["DeploymentView"],
            "Key `deployment.<id>` of the bucket `views`: the newest view of a deployment.",
        ),
        Channel::new(
            "siteView",
            &format!("{bucket}.{}", ViewKey::Site(site)),
            held,
            &["SiteView"],
            "Key `site.<site>` of the bucket `views`: the newest view of a site.",
        ),
        Channel::new(
            "fleetView",
            &format!("{bucket}.{}", ViewKey::Fleet),
            held,
            &["FleetView"],
            "Key `fleet` of the bucket `views`: the newest view of everything.",
        ),
    ]
}

fn request(
    name: &'static str,
    prefix: &str,
    verb: &str,
    message: &'static [&'static str],
    about: &'static str,
) -> Channel {
    Channel::new(name, &format!("{prefix}.{verb}"), None, message, about)
}

fn questions() -> Vec<Channel> {
    let query = subjects::QUERY_PREFIX;
    vec![
        request("queryDeployment", query, "deployment", &["Query"], "One deployment, by `id`."),
        request("queryDeployments", query, "deployments", &["Query"], "All deployments, page by page."),
        request("queryDevice", query, "device", &["Query"], "One device, by `site` and `device`."),
        request(
            "queryDevices",
            query,
            "devices",
            &["Query"],
            "All devices, or those of a `site` or of some `freshness`, page by page.",
        ),
        request("querySite", query, "site", &["Query"], "The view of one `site`."),
        request("queryFleet", query, "fleet", &["Query"], "The view of everything."),
        request(
            "queryIncidents",
            query,
            "incidents",
            &["Query"],
            "Incidents of the hub itself in the last 24 hours, the newest of each type.",
        ),
        request(
            "queryWhy",
            query,
            "why",
            &["Query"],
            "Why a deployment, by `id`, has its verdict, or its standing on one `device` of a `site`.",
        ),
        request(
            "queryStatus",
            query,
            "status",
            &["StatusQuery"],
            "Status after filters: what was delivered beside what is observed, and kstatus, page by page.",
        ),
        request(
            "queryActions",
            query,
            "actions",
            &["Query"],
            "The actions on a deployment, by `id`: each published revision, and removal from everywhere. LEDGER is \
             read for it; `notReady` says how far that is: ask again.",
        ),
        request(
            "queryTimeline",
            query,
            "timeline",
            &["Query"],
            "How the counts of the fleet, or of a deployment by `id`, have changed.",
        ),
    ]
}

fn questions_about_the_past() -> Vec<Channel> {
    let query = subjects::QUERY_PREFIX;
    vec![
        request(
            "queryMoment",
            query,
            "moment",
            &["Query"],
            "The resolution of a point of the past: the fact that a time stands for, and its certainty. It waits while the point \
             is rebuilt; `notReady` says how far that is: ask again.",
        ),
        request(
            "queryDigests",
            query,
            "digests",
            &["Query"],
            "The digests of all views as of a point, page by page, to be compared with anybody else's.",
        ),
        request("queryDiff", query, "diff", &["DiffQuery"], "How a deployment differs between two points."),
        request(
            "queryChanges",
            query,
            "changes",
            &["ChangesQuery"],
            "Every change of standings and verdicts between two points, in order, each with its fact, page by page.",
        ),
        request(
            "queryVerify",
            query,
            "verify",
            &["Query"],
            "Whether a rebuild from LEDGER says the same as what runs.",
        ),
    ]
}

fn requests() -> Vec<Channel> {
    vec![
        Channel::new(
            "ingestIncident",
            subjects::REQUEST_INCIDENT,
            None,
            &["IncidentRequest"],
            "A service of the hub has seen something that a person should know; ingest answers once LEDGER has it. Each type has \
             a rate limit.",
        ),
        Channel::new(
            "check",
            "muster.check.{check}",
            None,
            &["CheckRequest", "HookRequest"],
            "The planner asks a check of a wave, or a hook of a plan. A service that knows the answer subscribes to the subject that \
             `rollout.yaml` or the plan names; no answer is inconclusive. On a hub with rights it has the role checker.",
        ),
        Channel::new(
            "ingestQuarantine",
            &subjects::judge_quarantine(0).replace(".0", ".{partition}"),
            None,
            &["QuarantineRequest"],
            "To list, show, requeue or drop rejected reports; the owner of the device's partition answers once LEDGER has what \
             follows.",
        ),
    ]
}

/// Replies go to the inbox that the request names.
fn answers() -> Value {
    json!({
        "address": null,
        "description": "The reply inbox of a request.",
        "messages": references(&[&ANSWERS[..], &groups::ANSWERS, &federation::ANSWERS, &plans::ANSWERS].concat(), "#/components/messages"),
    })
}

const ANSWERS: [&str; 34] = [
    "CheckAnswer",
    "HookAnswer",
    "IncidentAnswer",
    "IncidentsAnswer",
    "QuarantineAnswer",
    "DeploymentAnswer",
    "DeploymentsAnswer",
    "DeviceAnswer",
    "DevicesAnswer",
    "SiteView",
    "FleetView",
    "WhyAnswer",
    "StatusAnswer",
    "ActionsAnswer",
    "TimelineAnswer",
    "MomentAnswer",
    "DigestsAnswer",
    "DiffAnswer",
    "ChangesAnswer",
    "VerifyAnswer",
    "SubscriptionAnswer",
    "SubscriptionsAnswer",
    "MissedAnswer",
    "NoticeContent",
    "WebhooksAnswer",
    "WebhookDueAnswer",
    "WebhookLine",
    "WebhookRevokeAnswer",
    "PublishAnswer",
    "PublisherStatus",
    "TargetsAnswer",
    "ReleaseAnswer",
    "DecideAnswer",
    "ErrorReply",
];
