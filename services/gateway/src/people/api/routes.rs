//! The read routes as data: address, parameters, service, and the document that answers. The router, the OpenAPI document
//! and its test are made from this table.

use muster_contract::actions::ActionsAnswer;
use muster_contract::changes::ChangesAnswer;
use muster_contract::groups::{GroupsAnswer, LabelsAnswer};
use muster_contract::history::{DiffAnswer, MomentAnswer};
use muster_contract::incident::IncidentsAnswer;
use muster_contract::query::{
    DeploymentAnswer, DeploymentsAnswer, DeviceAnswer, DevicesAnswer, PublisherStatus,
};
use muster_contract::rollout::RolloutRecord;
use muster_contract::status::StatusAnswer;
use muster_contract::view::{FleetView, SiteView};
use muster_contract::why::WhyAnswer;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use super::params::{Kind, Param, param};

/// A read route.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Route {
    /// The address below `/api/v1`; `{name}` is a field of the question.
    pub path: &'static str,
    /// Its meaning.
    pub summary: &'static str,
    /// Its parameters.
    pub params: &'static [&'static [Param]],
    /// Fields of every question of this route.
    pub fixed: &'static [(&'static str, &'static str)],
    /// The service that answers.
    pub source: Source,
    /// The schema of the answer.
    pub answer: fn(&mut SchemaGenerator) -> Schema,
}

/// The service that answers a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// The query service, by one question.
    Query(&'static str),
    /// The publisher's status.
    Publisher,
    /// Held changes and open rollouts.
    Rollouts,
    /// The rollouts of one deployment.
    Rollout,
    /// Decisions about the rollouts of one deployment.
    RolloutHistory,
    /// Rejected reports.
    Quarantine,
    /// The waves that wait for an approval.
    Approvals,
    /// The accounts of devices and the views.
    Audit,
}

impl Route {
    /// All its parameters.
    pub(crate) fn params(&self) -> Vec<Param> {
        self.params.concat()
    }
}

const WHEN: &[Param] = &[
    param("at", Kind::Time, "As known at this time"),
    param("atSeq", Kind::Number, "As known with this fact of LEDGER"),
    param("eventTime", Kind::Time, "The state at this time by the devices' clocks, as known now"),
    Param { name: "about", field: "eventTime", kind: Kind::Time, about: "Former name of eventTime" },
];
const PAGES: &[Param] = &[
    param("limit", Kind::Number, "Most rows of an answer, from 1 to 1000"),
    param(
        "cursor",
        Kind::Text,
        "The next page: from the Link header of the page before; valid for 10 minutes",
    ),
];
const AFTER: &[Param] = &[param("after", Kind::Text, "Rows after this one")];
const SITES: &[Param] = &[param("site", Kind::List, "Only this site; may be repeated")];
const SITE: &[Param] = &[param("site", Kind::Text, "Only this site")];
const OUTPUT: &[Param] = &[param("output", Kind::Text, "summary, brief, all or detail")];

const DEPLOYMENTS: &[Param] = &[
    param("verdict", Kind::Words, "Only deployments with one of these verdicts, such as failing,overdue"),
    param("error", Kind::List, "Only with an error of this code; may be repeated"),
];
const DEVICES: &[Param] = &[
    param("device", Kind::Text, "Only devices of this name"),
    param("freshness", Kind::Words, "fresh, stale, never"),
    param("error", Kind::List, "Only with an error of this code; may be repeated"),
    param("version", Kind::List, "Only with this version of the agent; may be repeated"),
    param("notRunning", Kind::Text, "Only targets of this deployment that have not installed it"),
];
const STATUS: &[Param] = &[
    Param { name: "deployment", field: "id", kind: Kind::Text, about: "The deployment" },
    param("app", Kind::List, "Only of this application; may be repeated"),
    param("device", Kind::List, "Only on this device, as SITE/DEVICE; may be repeated"),
    param("component", Kind::List, "Only this component; may be repeated"),
    Param { name: "axis", field: "status", kind: Kind::Text, about: "deployed or ready" },
    param("generation", Kind::Number, "As of this generation of the only device named"),
];
const ROWS: &[Param] = &[
    param("standing", Kind::Words, "Only targets of these standings, such as failed,outdated"),
    param("freshness", Kind::Words, "Only on devices that are fresh, stale or never heard"),
    param("error", Kind::List, "Only with an error of this code; may be repeated"),
];
const WHY: &[Param] = &[
    Param { name: "deployment", field: "id", kind: Kind::Text, about: "The deployment" },
    param("device", Kind::Text, "Its standing on this device instead, as SITE/DEVICE"),
];
const DIFF: &[Param] = &[
    Param { name: "deployment", field: "id", kind: Kind::Text, about: "The deployment" },
    param("from", Kind::Point, "The earlier point: a time, how long ago, or a sequence of LEDGER"),
    param("to", Kind::Point, "The later point; the present if left out"),
];
const CHANGES: &[Param] = &[
    Param { name: "deployment", field: "id", kind: Kind::Text, about: "Only this deployment" },
    Param { name: "since", field: "from", kind: Kind::Point, about: "Only changes after this point" },
    Param { name: "until", field: "to", kind: Kind::Point, about: "Only changes up to this point" },
];
const OF_DEPLOYMENT: &[Param] =
    &[Param { name: "deployment", field: "id", kind: Kind::Text, about: "Only this deployment" }];
/// Filters of rejected reports.
pub(crate) const SELECT: &[Param] = &[
    param("device", Kind::Text, "Only of this device, as SITE/DEVICE"),
    param("code", Kind::Text, "Only those rejected for a reason, such as unreadable, notSent or oldEpoch"),
    param("since", Kind::Time, "Only those received at this time or later"),
    param("until", Kind::Time, "Only those received before this time"),
];
const QUARANTINE: &[Param] = &[
    param("limit", Kind::Number, "How many of the newest, from 1 to 1000"),
    param("settled", Kind::Flag, "Also the verdicts on earlier ones"),
];

fn of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

fn object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object" })
}

fn objects(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "array", "items": { "type": "object" } })
}

fn history(generator: &mut SchemaGenerator) -> Schema {
    let records = generator.subschema_for::<Vec<RolloutRecord>>();
    json_schema!({ "type": "object", "required": ["deployment", "rollouts"],
        "properties": { "deployment": { "type": "string" }, "rollouts": records } })
}

const fn route(
    path: &'static str,
    source: Source,
    params: &'static [&'static [Param]],
    answer: fn(&mut SchemaGenerator) -> Schema,
    summary: &'static str,
) -> Route {
    Route { path, summary, params, fixed: &[], source, answer }
}

/// All read routes.
pub(crate) const ROUTES: [Route; 24] = [
    route("/fleet", Source::Query("fleet"), &[WHEN], of::<FleetView>, "The fleet as a whole"),
    route(
        "/deployments",
        Source::Query("deployments"),
        &[SITES, DEPLOYMENTS, WHEN, PAGES, AFTER],
        of::<DeploymentsAnswer>,
        "Deployments: verdict, bounds of the truth, counts",
    ),
    route(
        "/deployments/{id}",
        Source::Query("deployment"),
        &[WHEN],
        of::<DeploymentAnswer>,
        "One deployment",
    ),
    Route {
        fixed: &[("output", "brief")],
        ..route(
            "/deployments/{id}/devices",
            Source::Query("status"),
            &[SITES, ROWS, OUTPUT, WHEN, PAGES, AFTER],
            of::<StatusAnswer>,
            "The status of one deployment with a line for each device",
        )
    },
    route(
        "/deployments/{id}/actions",
        Source::Query("actions"),
        &[],
        of::<ActionsAnswer>,
        "The revisions of a deployment",
    ),
    route(
        "/devices",
        Source::Query("devices"),
        &[SITES, DEVICES, WHEN, PAGES, AFTER],
        of::<DevicesAnswer>,
        "Devices: freshness, reports, standings",
    ),
    Route {
        fixed: &[("output", "detail")],
        ..route(
            "/devices/{site}/{device}",
            Source::Query("device"),
            &[OUTPUT, WHEN],
            of::<DeviceAnswer>,
            "One device and everything it shall run",
        )
    },
    route("/sites/{site}", Source::Query("site"), &[WHEN], of::<SiteView>, "One site as a whole"),
    route(
        "/status",
        Source::Query("status"),
        &[STATUS, SITES, ROWS, OUTPUT, WHEN, PAGES, AFTER],
        of::<StatusAnswer>,
        "Status after filters, with both axes",
    ),
    route("/groups", Source::Query("labels"), &[PAGES, AFTER], of::<LabelsAnswer>, "The labels there are"),
    route(
        "/groups/{label}",
        Source::Query("groups"),
        &[OF_DEPLOYMENT, WHEN, PAGES, AFTER],
        of::<GroupsAnswer>,
        "The fleet, or a deployment, by a label of its devices",
    ),
    route("/groups/{label}/{value}", Source::Query("group"), &[WHEN], object, "One group as a whole"),
    route(
        "/incidents",
        Source::Query("incidents"),
        &[],
        of::<IncidentsAnswer>,
        "Incidents of the hub itself",
    ),
    route(
        "/why",
        Source::Query("why"),
        &[WHY, SITE, WHEN, PAGES, AFTER],
        of::<WhyAnswer>,
        "Why a deployment has its verdict: the rule, the devices, the facts",
    ),
    route(
        "/diff",
        Source::Query("diff"),
        &[DIFF, SITE, PAGES, AFTER],
        of::<DiffAnswer>,
        "How a deployment differs between two points",
    ),
    route(
        "/changes",
        Source::Query("changes"),
        &[CHANGES, SITES, PAGES],
        of::<ChangesAnswer>,
        "Every change between two points, with the fact that caused it",
    ),
    route(
        "/moment",
        Source::Query("moment"),
        &[SITE, WHEN],
        of::<MomentAnswer>,
        "The fact that a time stands for",
    ),
    route("/publisher", Source::Publisher, &[], of::<PublisherStatus>, "The publisher and its sources"),
    route("/rollouts", Source::Rollouts, &[], object, "Changes that wait for a release, and open rollouts"),
    route(
        "/rollouts/{id}",
        Source::Rollout,
        &[],
        objects,
        "The rollouts of a deployment: waves, counts, next step",
    ),
    route(
        "/rollouts/{id}/history",
        Source::RolloutHistory,
        &[],
        history,
        "Every decision about the rollouts of a deployment",
    ),
    route(
        "/quarantine",
        Source::Quarantine,
        &[SELECT, QUARANTINE],
        object,
        "Rejected reports, and why the hub rejected them",
    ),
    route("/approvals", Source::Approvals, &[], objects, "The waves that wait for an approval"),
    route(
        "/audit",
        Source::Audit,
        &[SITE],
        object,
        "Whether every report is accounted for, and every view is right; one audit at a time",
    ),
];
