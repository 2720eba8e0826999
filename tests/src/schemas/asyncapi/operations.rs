//! Operations: who sends and who receives on each channel, by the roles of the contract.

use serde_json::{Map, Value, json};

use super::channels;
use super::channels::plans;

/// The action of a role on a channel.
#[derive(Clone, Copy)]
enum Action {
    Send,
    Receive,
}
use Action::{Receive, Send};

/// Role, action and channels. A role that is not listed with a channel has no right to it.
const ROLES: [(&str, Action, &[&str]); 42] = [
    ("device", Send, &["report", "presence"]),
    ("device", Receive, &["desired", "receipt", "credential", "live"]),
    ("publisher", Send, &["desired", "rollout"]),
    (
        "publisher",
        Receive,
        &[
            "desired",
            "rollout",
            "publisherApply",
            "publisherDecide",
            "publisherRelease",
            "publisherRemove",
            "publisherRetire",
            "publisherStatus",
            "publisherTargets",
        ],
    ),
    ("ingest", Receive, &["reportStored", "presenceStored"]),
    ("ingest", Send, &["receipt"]),
    (
        "ingest",
        Send,
        &[
            "status",
            "device",
            "liveness",
            "deadline",
            "incident",
            "incidentOfHub",
            "quarantine",
            "quarantineOfNobody",
            "verdict",
            "verdictOfNobody",
            "owner",
            "hub",
        ],
    ),
    (
        "rollup",
        Receive,
        &[
            "desired",
            "status",
            "device",
            "liveness",
            "deadline",
            "incident",
            "incidentOfHub",
            "quarantine",
            "quarantineOfNobody",
            "verdict",
            "verdictOfNobody",
            "hub",
            "hearing",
        ],
    ),
    ("ingest", Receive, &["ingestQuarantine", "ingestIncident"]),
    ("ingest", Send, &["rejected", "rejectedOfNobody"]),
    ("publisher", Send, &["ingestIncident"]),
    ("rollup", Send, &["ingestIncident"]),
    ("renewer", Send, &["ingestIncident"]),
    ("rollup", Send, &["hearing"]),
    // These read one hub's LEDGER, like its actions.
    ("rollup", Receive, &["queryIncidents"]),
    ("viewer", Send, &["queryIncidents"]),
    ("operator", Send, &["ingestQuarantine"]),
    ("operator", Send, &["credential"]),
    ("renewer", Send, &["credential"]),
    ("rollup", Send, &["deploymentView", "siteView", "fleetView"]),
    ("rollup", Send, &["subscription", "notice"]),
    ("rollup", Receive, &["subscription", "notice"]),
    ("rollup", Receive, &QUERIES),
    // These are of one hub's LEDGER: no federation answers.
    ("rollup", Receive, &["queryActions", "queryTimeline"]),
    ("rollup", Receive, &NOTIFY),
    (
        "viewer",
        Receive,
        &[
            "desired",
            "status",
            "device",
            "liveness",
            "deadline",
            "incident",
            "incidentOfHub",
            "quarantine",
            "quarantineOfNobody",
            "verdict",
            "verdictOfNobody",
            "hub",
            "hearing",
        ],
    ),
    ("viewer", Receive, &["deploymentView", "siteView", "fleetView"]),
    ("viewer", Send, &QUERIES),
    ("viewer", Send, &["queryActions", "queryTimeline"]),
    ("viewer", Send, &NOTIFY),
    ("viewer", Send, &["publisherStatus", "publisherTargets"]),
    ("planner", Send, &["publisherStatus", "publisherTargets", "publisherRelease", "publisherDecide"]),
    ("planner", Send, &["check"]),
    ("checker", Receive, &["check"]),
    (
        "gateway",
        Send,
        &["publisherStatus", "publisherTargets", "publisherRelease", "publisherDecide", "ingestQuarantine"],
    ),
    ("gateway", Send, &QUERIES),
    ("gateway", Send, &["queryActions", "queryTimeline"]),
    ("rollup", Receive, &WEBHOOKS),
    ("gateway", Send, &WEBHOOKS),
    ("operator", Send, &WEBHOOKS),
    ("viewer", Receive, &["notice", "liveNotice"]),
    (
        "operator",
        Send,
        &[
            "publisherApply",
            "publisherDecide",
            "publisherRelease",
            "publisherRemove",
            "publisherRetire",
            "publisherStatus",
            "publisherTargets",
        ],
    ),
];

const QUERIES: [&str; 13] = [
    "queryDeployment",
    "queryDeployments",
    "queryDevice",
    "queryDevices",
    "querySite",
    "queryFleet",
    "queryWhy",
    "queryStatus",
    "queryMoment",
    "queryDigests",
    "queryDiff",
    "queryChanges",
    "queryVerify",
];

const NOTIFY: [&str; 6] =
    ["notifySubscribe", "notifyConfirm", "notifyUnsubscribe", "notifyList", "notifyMissed", "notifyContent"];
const WEBHOOKS: [&str; 5] = [
    "notifyWebhookRegister",
    "notifyWebhookList",
    "notifyWebhookRemove",
    "notifyWebhookDue",
    "notifyWebhookResult",
];
/// Groups and views that people define.
const GROUPS: [(&str, Action, &[&str]); 6] = [
    ("rollup", Send, &["groupView", "definition", "definedView"]),
    ("rollup", Receive, &["definition", "viewApply", "viewRemove"]),
    ("rollup", Receive, &GROUP_QUERIES),
    ("viewer", Receive, &["groupView", "definition", "definedView"]),
    ("viewer", Send, &GROUP_QUERIES),
    ("operator", Send, &["viewApply", "viewRemove"]),
];

/// Hubs and their federation.
const FEDERATION: [(&str, Action, &[&str]); 9] = [
    ("rollup", Receive, &["queryParts"]),
    ("viewer", Send, &["queryParts", "queryHubs"]),
    ("viewer", Receive, &["hubList"]),
    ("federation", Send, &["deploymentView", "siteView", "fleetView", "groupView", "hubList"]),
    ("federation", Receive, &["queryHubs"]),
    ("federation", Receive, &QUERIES),
    ("federation", Receive, &GROUP_QUERIES),
    // The federation asks hubs for their parts, and forwards these.
    ("federation", Send, &["queryParts"]),
    ("federation", Send, &QUERIES),
];

const FEDERATION_REPLIES: [(&str, &str); 2] = [("queryParts", "PartsAnswer"), ("queryHubs", "HubList")];

const GROUP_QUERIES: [&str; 5] = ["queryLabels", "queryGroups", "queryGroup", "queryViews", "queryView"];

const GROUP_REPLIES: [(&str, &str); 7] = [
    ("queryLabels", "LabelsAnswer"),
    ("queryGroups", "GroupsAnswer"),
    ("queryGroup", "GroupView"),
    ("queryViews", "ViewsAnswer"),
    ("queryView", "DefinedView"),
    ("viewApply", "ViewAnswer"),
    ("viewRemove", "ViewAnswer"),
];

/// The answer to a request, by its channel.
const REPLIES: [(&str, &str); 39] = [
    ("check", "CheckAnswer"),
    ("check", "HookAnswer"),
    ("ingestIncident", "IncidentAnswer"),
    ("queryIncidents", "IncidentsAnswer"),
    ("ingestQuarantine", "QuarantineAnswer"),
    ("queryDeployment", "DeploymentAnswer"),
    ("queryDeployments", "DeploymentsAnswer"),
    ("queryDevice", "DeviceAnswer"),
    ("queryDevices", "DevicesAnswer"),
    ("querySite", "SiteView"),
    ("queryFleet", "FleetView"),
    ("queryWhy", "WhyAnswer"),
    ("queryStatus", "StatusAnswer"),
    ("queryActions", "ActionsAnswer"),
    ("queryTimeline", "TimelineAnswer"),
    ("queryMoment", "MomentAnswer"),
    ("queryDigests", "DigestsAnswer"),
    ("queryDiff", "DiffAnswer"),
    ("queryChanges", "ChangesAnswer"),
    ("queryVerify", "VerifyAnswer"),
    ("notifySubscribe", "SubscriptionAnswer"),
    ("notifyConfirm", "SubscriptionAnswer"),
    ("notifyUnsubscribe", "SubscriptionAnswer"),
    ("notifyList", "SubscriptionsAnswer"),
    ("notifyMissed", "MissedAnswer"),
    ("notifyContent", "NoticeContent"),
    ("notifyWebhookRegister", "SubscriptionAnswer"),
    ("notifyWebhookList", "WebhooksAnswer"),
    ("notifyWebhookRemove", "SubscriptionAnswer"),
    ("notifyWebhookDue", "WebhookDueAnswer"),
    ("notifyWebhookResult", "WebhookLine"),
    ("notifyWebhookRevoke", "WebhookRevokeAnswer"),
    ("publisherApply", "PublishAnswer"),
    ("publisherRemove", "PublishAnswer"),
    ("publisherRetire", "PublishAnswer"),
    ("publisherStatus", "PublisherStatus"),
    ("publisherTargets", "TargetsAnswer"),
    ("publisherRelease", "ReleaseAnswer"),
    ("publisherDecide", "DecideAnswer"),
];

/// All operations by name: `device.send.report`.
pub(super) fn all() -> Map<String, Value> {
    ROLES
        .iter()
        .chain(&GROUPS)
        .chain(&FEDERATION)
        .flat_map(|(role, action, names)| names.iter().map(move |name| operation(role, *action, name)))
        .chain(of_plans())
        .collect()
}

/// The operations of each role on plans.
fn of_plans() -> Vec<(String, Value)> {
    let (reads, verdicts, changes) = (&plans::READS[..], &plans::VERDICTS[..], &plans::CHANGES[..]);
    let asked = [
        ("scheduler", Receive, [reads, verdicts, changes].concat()),
        ("viewer", Send, reads.to_vec()),
        ("approver", Send, [reads, verdicts].concat()),
        ("operator", Send, [reads, verdicts, changes].concat()),
    ];
    let asked = asked.into_iter().flat_map(|(role, action, requests)| {
        requests.into_iter().map(move |(name, _)| operation(role, action, name))
    });
    let kept = [Send, Receive].into_iter();
    let kept = kept.flat_map(|action| plans::DOCUMENTS.map(|name| operation("scheduler", action, name)));
    asked.chain(kept).collect()
}

/// The answers to a request about plans.
fn reply_of_plans(name: &str) -> Option<Vec<&'static str>> {
    let mut all = plans::READS.iter().chain(&plans::VERDICTS).chain(&plans::CHANGES);
    let (_, answer) = all.find(|(request, _)| *request == name)?;
    let answers: &[&str] = if *answer == "Node" { &["Node", "Cluster", "Capability"] } else { &[answer] };
    Some([answers, &["PlannerErrorReply"]].concat())
}

fn operation(role: &str, action: Action, name: &str) -> (String, Value) {
    let channel = channels::list().into_iter().find(|channel| channel.name == name);
    let channel = channel.unwrap_or_else(|| panic!("there is no channel {name}"));
    let action = match action {
        Send => "send",
        Receive => "receive",
    };
    let mut value = json!({
        "action": action,
        "channel": { "$ref": format!("#/channels/{name}") },
        "messages": messages(name, channel.messages),
        "x-muster-role": role,
    });
    let replies = REPLIES.iter().chain(&GROUP_REPLIES).chain(&FEDERATION_REPLIES);
    let mut answers: Vec<_> =
        replies.filter(|(request, _)| *request == name).map(|(_, answer)| *answer).collect();
    if !answers.is_empty() {
        answers.push("ErrorReply");
        value["reply"] = json!({
            "channel": { "$ref": "#/channels/answers" },
            "messages": messages("answers", &answers),
        });
    }
    if let Some(answers) = reply_of_plans(name) {
        value["reply"] = json!({
            "channel": { "$ref": "#/channels/answers" },
            "messages": messages("answers", &answers),
        });
    }
    (format!("{role}.{action}.{name}"), value)
}

fn messages(channel: &str, names: &[&str]) -> Vec<Value> {
    names.iter().map(|name| json!({ "$ref": format!("#/channels/{channel}/messages/{name}") })).collect()
}
