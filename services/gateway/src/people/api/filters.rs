//! Query parameters of the read routes: the flags of `muster`, each with the field of the question that it sets.

use super::params::{Kind, Param, param};

/// The point in time of a question.
pub(crate) const WHEN: &[Param] = &[
    param("at", Kind::Time, "As known at this time"),
    param("atSeq", Kind::Number, "As known with this fact of LEDGER"),
    param("eventTime", Kind::Time, "The state at this time by the devices' clocks, as known now"),
    Param { name: "about", field: "eventTime", kind: Kind::Time, about: "Former name of eventTime" },
];
/// The time for which rollouts are asked.
pub(crate) const ROLLOUTS_AT: &[Param] = &[param(
    "at",
    Kind::Time,
    "As they stood at this time: by the decisions up to then, and what LEDGER held",
)];
/// The part of a list.
pub(crate) const PAGES: &[Param] = &[
    param("limit", Kind::Number, "Most rows of an answer, from 1 to 1000"),
    param(
        "cursor",
        Kind::Text,
        "The next page: from the Link header of the page before; valid for 10 minutes",
    ),
];
/// The row that a part of a list follows.
pub(crate) const AFTER: &[Param] = &[param("after", Kind::Text, "Rows after this one")];
/// Filter by sites.
pub(crate) const SITES: &[Param] = &[param("site", Kind::List, "Only this site; may be repeated")];
/// Filter by one site.
pub(crate) const SITE: &[Param] = &[param("site", Kind::Text, "Only this site")];
/// The depth of an answer.
pub(crate) const OUTPUT: &[Param] = &[param("output", Kind::Text, "summary, brief, all or detail")];
/// Filters of deployments.
pub(crate) const DEPLOYMENTS: &[Param] = &[
    param("verdict", Kind::Words, "Only deployments with one of these verdicts, such as failing,overdue"),
    param("error", Kind::List, "Only with an error of this code; may be repeated"),
];
/// Filters of devices.
pub(crate) const DEVICES: &[Param] = &[
    param("device", Kind::Text, "Only devices of this name"),
    param("freshness", Kind::Words, "fresh, stale, never"),
    param("error", Kind::List, "Only with an error of this code; may be repeated"),
    param("version", Kind::List, "Only with this version of the agent; may be repeated"),
    param("notRunning", Kind::Text, "Only targets of this deployment that have not installed it"),
    param(
        "bySilence",
        Kind::Flag,
        "Only stale and never heard devices, the longest silence first; the only other filter is site",
    ),
];
/// Filters of status.
pub(crate) const STATUS: &[Param] = &[
    Param { name: "deployment", field: "id", kind: Kind::Text, about: "The deployment" },
    param("app", Kind::List, "Only of this application; may be repeated"),
    param("device", Kind::List, "Only on this device, as SITE/DEVICE; may be repeated"),
    param("component", Kind::List, "Only this component; may be repeated"),
    Param { name: "axis", field: "status", kind: Kind::Text, about: "deployed or ready" },
    param("generation", Kind::Number, "As of this generation of the only device named"),
];
/// The extent of a ResourceGroup.
pub(crate) const RESOURCE_GROUP: &[Param] = &[
    param("device", Kind::List, "Only on this device, as SITE/DEVICE: its components; may be repeated"),
    param("aggregate", Kind::Flag, "Counts alone, whatever the size of the fleet"),
    param(
        "budget",
        Kind::Number,
        "Bytes the document may have, 2048 to 1048576 (default); it says what it leaves out",
    ),
];
/// Filters of targets.
pub(crate) const ROWS: &[Param] = &[
    param("standing", Kind::Words, "Only targets of these standings, such as failed,outdated"),
    param("freshness", Kind::Words, "Only on devices that are fresh, stale or never heard"),
    param("error", Kind::List, "Only with an error of this code; may be repeated"),
];
/// The subject of an explanation.
pub(crate) const WHY: &[Param] = &[
    Param { name: "deployment", field: "id", kind: Kind::Text, about: "The deployment" },
    param("device", Kind::Text, "Its standing on this device instead, as SITE/DEVICE"),
];
/// The points of a comparison.
pub(crate) const DIFF: &[Param] = &[
    Param { name: "deployment", field: "id", kind: Kind::Text, about: "The deployment" },
    param("from", Kind::Point, "The earlier point: a time, how long ago, or a sequence of LEDGER"),
    param("to", Kind::Point, "The later point; the present if left out"),
];
/// Filters of changes.
pub(crate) const CHANGES: &[Param] = &[
    Param { name: "deployment", field: "id", kind: Kind::Text, about: "Only this deployment" },
    Param { name: "since", field: "from", kind: Kind::Point, about: "Only changes after this point" },
    Param { name: "until", field: "to", kind: Kind::Point, about: "Only changes up to this point" },
];
/// Filter by a deployment.
pub(crate) const OF_DEPLOYMENT: &[Param] =
    &[Param { name: "deployment", field: "id", kind: Kind::Text, about: "Only this deployment" }];
/// Filters of rejected reports.
pub(crate) const SELECT: &[Param] = &[
    param("device", Kind::Text, "Only of this device, as SITE/DEVICE"),
    param("code", Kind::Text, "Only those rejected for a reason, such as unreadable, notSent or oldEpoch"),
    param("since", Kind::Time, "Only those received at this time or later"),
    param("until", Kind::Time, "Only those received before this time"),
];
/// The part of the list of rejected reports.
pub(crate) const QUARANTINE: &[Param] = &[
    param("limit", Kind::Number, "How many of the newest, from 1 to 1000"),
    param("settled", Kind::Flag, "Also the verdicts on earlier ones"),
];
/// Filters of plans.
pub(crate) const PLANS: &[Param] = &[
    param("name", Kind::List, "Only the plan of this name; may be repeated"),
    param("serviceName", Kind::List, "Only of this service; may be repeated"),
    param("payloadName", Kind::List, "Only with this payload; may be repeated"),
    param("state", Kind::List, "active, inactive or deleted; may be repeated"),
];
/// Filters of changes of PLANS.
pub(crate) const PLAN_CHANGES: &[Param] = &[
    param(
        "subject",
        Kind::List,
        "Only of this subject of PLANS, such as muster.plan.web or muster.instance.web.*; may be repeated",
    ),
    param("after", Kind::Number, "Changes after this sequence of PLANS: readTo of an earlier answer"),
];
/// Filters of instances.
pub(crate) const INSTANCES: &[Param] = &[
    param("plan", Kind::List, "Only of this plan; may be repeated"),
    param("name", Kind::List, "Only of this name or display name; may be repeated"),
    Param {
        name: "deploymentId",
        field: "revision",
        kind: Kind::List,
        about: "Only of this deployment of their plan; may be repeated",
    },
    param("node", Kind::Devices, "Only on this node, as SITE/DEVICE; may be repeated"),
    param("includeDeleted", Kind::Flag, "Deleted ones as well: the newest 256 of each plan"),
];
/// Filters of operations.
pub(crate) const OPERATIONS: &[Param] = &[
    param("plan", Kind::List, "Only of this plan; may be repeated"),
    param("instance", Kind::List, "Only of this instance, by name or display name; may be repeated"),
    param("type", Kind::List, "CREATE, UPDATE, DELETE, STOP, RESTART or RELOCATE; may be repeated"),
    param("state", Kind::List, "Such as PENDING_APPROVAL; may be repeated"),
];
/// Filters of nodes.
pub(crate) const NODES: &[Param] = &[
    param("cluster", Kind::List, "Only of this cluster; may be repeated"),
    param("updateDomain", Kind::List, "Only of this update domain; may be repeated"),
    Param {
        name: "state",
        field: "nodeState",
        kind: Kind::List,
        about: "Only in this state, such as allocated; may be repeated",
    },
    param("remainingCoresGte", Kind::Number, "Only with so many free cores at least"),
    param("remainingMemoryGte", Kind::Number, "Only with so much free memory at least"),
    Param {
        name: "payloadNamesIn",
        field: "payloadName",
        kind: Kind::Words,
        about: "Only nodes that run one of these payloads, separated by commas",
    },
    Param {
        name: "payloadNamesNotIn",
        field: "payloadNameNotIn",
        kind: Kind::Words,
        about: "Only nodes that run none of these payloads, separated by commas",
    },
    param("includeDeleted", Kind::Flag, "Deleted ones as well"),
];
/// Filters of capabilities.
pub(crate) const CAPABILITIES: &[Param] = &[param("type", Kind::List, "Only of this type; may be repeated")];
