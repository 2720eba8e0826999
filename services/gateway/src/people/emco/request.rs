//! The parameters of EMCO's status query, read into a question for the query service. EMCO ignores what it does not know; here
//! an unknown, empty or repeated parameter is refused, as everywhere.

use axum::extract::RawPathParams;
use axum::http::StatusCode;
use muster_client::emco::{Asked, Names, Subject};
use muster_contract::plans::{CompositeApp, check_emco_name};
use muster_contract::query::Output;
use muster_contract::status::{Axis, DevicePath, StatusQuery};
use muster_contract::{DeploymentId, DeviceKey, LabelError, SiteId};
use serde_json::{Value, json};

use super::super::api::params::{Kind, Param, Values, param};
use crate::problem::Problem;

/// The axis: delivery or observation.
const STATUS: Param = param("status", Kind::Text, "deployed or ready; overrides type");
/// How much of the answer.
const OUTPUT: Param = param("output", Kind::Text, "summary, all (default) or detail");
const FILTERS: [Param; 3] = [
    param("app", Kind::List, "Only this application; may be repeated"),
    param("cluster", Kind::List, "Only this device, as SITE+DEVICE with + as %2B; may be repeated"),
    param("resource", Kind::List, "Only the components of this name; may be repeated"),
];
const TYPE: Param =
    param("type", Kind::Text, "rsync (default) or cluster, with the key names that EMCO calls deprecated");
const LISTS: [Param; 3] = [
    param("apps", Kind::Flag, "Names of applications alone"),
    param("clusters", Kind::Flag, "Names of clusters alone, by application"),
    param("resources", Kind::Flag, "Names of resources alone, by application and cluster"),
];
const INSTANCE: Param =
    param("instance", Kind::Text, "An older revision: a commit or request, or its sequence in LEDGER");

/// The parameters of a deployment intent group's status.
pub(crate) const OF_A_GROUP: [Param; 10] =
    [STATUS, TYPE, OUTPUT, INSTANCE, FILTERS[0], FILTERS[1], FILTERS[2], LISTS[0], LISTS[1], LISTS[2]];
/// The parameters of a cluster's status.
pub(crate) const OF_A_CLUSTER: [Param; 5] = [STATUS, TYPE, OUTPUT, FILTERS[0], FILTERS[2]];
/// The parameters of a logical cloud's status: EMCO has `type` there and ignores it.
pub(crate) const OF_A_CLOUD: [Param; 5] = [STATUS, TYPE, OUTPUT, FILTERS[1], FILTERS[2]];
/// The parameters of the notifications of a group.
pub(crate) const GROUP_WATCHED: [Param; 5] = [STATUS, OUTPUT, FILTERS[0], FILTERS[1], FILTERS[2]];
/// The parameters of the notifications of a cluster.
pub(crate) const CLUSTER_WATCHED: [Param; 4] = [STATUS, OUTPUT, FILTERS[0], FILTERS[2]];
/// The parameters of the notifications of a logical cloud.
pub(crate) const CLOUD_WATCHED: [Param; 4] = [STATUS, OUTPUT, FILTERS[1], FILTERS[2]];

/// The address of a question: EMCO calls it the anchor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Anchor {
    /// A deployment or plan, with the other names of its address: they come back as they were given.
    Group { id: DeploymentId, project: String, composite_app: String, version: String },
    /// Everything that runs on a device.
    Cluster(DeviceKey),
    /// Everything that runs at a site, with the name of its project in the address.
    Cloud { site: SiteId, project: String },
}

impl Anchor {
    /// Reads an address.
    ///
    /// # Errors
    /// A name breaks the rules of names.
    pub(super) fn read(path: &RawPathParams) -> Result<Self, Problem> {
        let text = |name: &str| path.iter().find(|(given, _)| *given == name).map(|(_, text)| text);
        if let Some(provider) = text("provider") {
            return Self::cluster(provider, text("cluster").unwrap_or_default());
        }
        if let Some(cloud) = text("cloud") {
            return Self::cloud(text("project").unwrap_or_default(), cloud);
        }
        let [project, app, version, group] =
            ["project", "compositeApp", "version", "group"].map(|name| text(name).unwrap_or_default());
        Self::group([project, app, version], group)
    }

    /// A deployment by its group, with the names of project, composite app and version.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub(super) fn group([project, app, version]: [&str; 3], group: &str) -> Result<Self, Problem> {
        let refuse = |error: LabelError| Problem::field("group", error.to_string());
        Ok(Self::Group {
            id: group.parse().map_err(refuse)?,
            project: checked_name("project", project)?,
            composite_app: checked_name("compositeApp", app)?,
            version: checked_name("version", version)?,
        })
    }

    /// A device by the names of its provider and cluster.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub(super) fn cluster(provider: &str, cluster: &str) -> Result<Self, Problem> {
        let key = format!("{provider}/{cluster}").parse::<DeviceKey>();
        key.map(Self::Cluster).map_err(|error| Problem::field("cluster", error.to_string()))
    }

    /// A site by the name of its logical cloud, with the name of a project.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub(super) fn cloud(project: &str, cloud: &str) -> Result<Self, Problem> {
        let site = cloud.parse().map_err(|error: LabelError| Problem::field("cloud", error.to_string()))?;
        Ok(Self::Cloud { site, project: checked_name("project", project)? })
    }

    /// The subject of an answer.
    pub(super) const fn subject(&self) -> Subject<'_> {
        match self {
            Self::Group { .. } => Subject::Deployment,
            Self::Cluster(key) => Subject::Device(key),
            Self::Cloud { site, .. } => Subject::Site(site),
        }
    }

    /// The parameters of its status.
    const fn parameters(&self) -> &'static [Param] {
        match self {
            Self::Group { .. } => &OF_A_GROUP,
            Self::Cluster(_) => &OF_A_CLUSTER,
            Self::Cloud { .. } => &OF_A_CLOUD,
        }
    }

    /// The parameters of its notifications.
    const fn watched_parameters(&self) -> &'static [Param] {
        match self {
            Self::Group { .. } => &GROUP_WATCHED,
            Self::Cluster(_) => &CLUSTER_WATCHED,
            Self::Cloud { .. } => &CLOUD_WATCHED,
        }
    }

    /// Adds the names of the address to an answer.
    pub(super) fn insert(&self, shape: &mut Value) {
        if let Self::Group { project, .. } | Self::Cloud { project, .. } = self {
            shape["project"] = json!(project);
        }
        if let Self::Group { composite_app, version, .. } = self {
            shape["compositeApp"] = json!(composite_app);
            shape["compositeAppVersion"] = json!(version);
        }
    }

    /// Refuses an address whose names are not those of the plan that it names.
    ///
    /// # Errors
    /// The names that the plan has.
    pub(super) fn check_names(&self, names: &CompositeApp) -> Result<(), Problem> {
        let Self::Group { id, project, composite_app, version } = self else { return Ok(()) };
        if (project, composite_app, version) == (&names.project, &names.name, &names.version) {
            return Ok(());
        }
        let CompositeApp { project, name, version } = names;
        let detail = format!("'{id}' is of project '{project}', composite app '{name}', version '{version}'");
        Err(Problem::new(StatusCode::NOT_FOUND, detail))
    }

    /// The problem of a deployment, device or site that does not exist.
    pub(super) fn absent(&self) -> Problem {
        let detail = match self {
            Self::Group { id, .. } => format!("there is no deployment '{id}'"),
            Self::Cluster(key) => format!("there is no device '{key}'"),
            Self::Cloud { site, .. } => format!("there is no site '{site}'"),
        };
        Problem::new(StatusCode::NOT_FOUND, detail)
    }
}

fn checked_name(field: &str, text: &str) -> Result<String, Problem> {
    check_emco_name(text).map(|()| text.to_owned()).map_err(|rule| Problem::field(field, rule))
}

/// A question.
#[derive(Debug, Clone)]
pub(super) struct StatusRequest {
    /// The question for the query service: always both axes.
    pub(super) query: StatusQuery,
    /// The axis that is shown.
    pub(super) axis: Axis,
    /// Names alone.
    pub(super) names: Option<Names>,
    /// The key names that EMCO calls deprecated.
    pub(super) is_deprecated: bool,
    /// An older revision.
    pub(super) instance: Option<String>,
}

impl StatusRequest {
    /// Reads the parameters of a status.
    ///
    /// # Errors
    /// A parameter or its value is unknown.
    pub(super) fn status(anchor: &Anchor, query: &str) -> Result<Self, Problem> {
        let values = read(query, anchor.parameters())?;
        let status = word(&values, "status", &AXES)?;
        let deprecated = word(&values, "type", &TYPES)?;
        let is_named = |name: &str| values.get(name) == Some("true");
        let names = [("apps", Names::Apps), ("clusters", Names::Targets), ("resources", Names::Components)];
        let names = names.into_iter().find(|(name, _)| is_named(name)).map(|(_, names)| names);
        let output = match names {
            Some(_) => Output::All,
            None => word(&values, "output", &OUTPUTS)?.unwrap_or(Output::All),
        };
        // As at EMCO, a question that names neither gets what `type` gives; a logical cloud has no `type` and is asked for readiness.
        let is_cloud = matches!(anchor, Anchor::Cloud { .. });
        let axis = if is_cloud {
            status.unwrap_or(Axis::Ready)
        } else {
            status.or(deprecated).unwrap_or(Axis::Deployed)
        };
        Ok(Self {
            query: filtered(anchor, &values, output)?,
            axis,
            names,
            is_deprecated: status.is_none() && names.is_none() && !is_cloud,
            instance: values.get("instance").map(str::to_owned),
        })
    }

    /// Reads the parameters of notifications.
    ///
    /// # Errors
    /// A parameter or its value is unknown.
    pub(super) fn notifications(anchor: &Anchor, query: &str) -> Result<Self, Problem> {
        let values = read(query, anchor.watched_parameters())?;
        let output = word(&values, "output", &OUTPUTS[..2])?.unwrap_or(Output::Summary);
        Ok(Self {
            query: filtered(anchor, &values, output)?,
            axis: word(&values, "status", &AXES)?.unwrap_or(Axis::Ready),
            names: None,
            is_deprecated: false,
            instance: None,
        })
    }

    /// The parts of an answer that are shown.
    pub(super) const fn asked(&self) -> Asked {
        Asked { output: self.query.output, axis: Some(self.axis) }
    }

    /// Whether something can exist and not pass.
    pub(super) fn is_filtered(&self) -> bool {
        let StatusQuery { id, app, device, component, site, .. } = &self.query;
        let is_of_devices = (id.is_some() || !site.is_empty()) && !device.is_empty();
        !app.is_empty() || !component.is_empty() || is_of_devices
    }
}

const AXES: [(&str, Axis); 2] = [("deployed", Axis::Deployed), ("ready", Axis::Ready)];
const TYPES: [(&str, Axis); 2] = [("rsync", Axis::Deployed), ("cluster", Axis::Ready)];
const OUTPUTS: [(&str, Output); 3] =
    [("summary", Output::Summary), ("all", Output::All), ("detail", Output::Detail)];

/// Reads a query string; a list parameter such as `apps` needs no value.
fn read(query: &str, known: &[Param]) -> Result<Values, Problem> {
    let is_flag = |name: &str| known.iter().any(|param| param.name == name && param.kind == Kind::Flag);
    let pairs = form_urlencoded::parse(query.as_bytes()).map(|(name, value)| {
        let value = if value.is_empty() && is_flag(&name) { "true".into() } else { value };
        (name.into_owned(), value.into_owned())
    });
    Values::of(pairs, known)
}

fn word<T: Copy>(values: &Values, name: &str, words: &[(&str, T)]) -> Result<Option<T>, Problem> {
    let Some(text) = values.get(name) else { return Ok(None) };
    let found = words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
    let names: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
    found.map(Some).ok_or_else(|| Problem::field(name, format!("must be one of {}", names.join(", "))))
}

fn filtered(anchor: &Anchor, values: &Values, output: Output) -> Result<StatusQuery, Problem> {
    let refuse = |name: &str, text: &str, rule: &str| Problem::field(name, format!("'{text}' {rule}"));
    let device = |text: &str| {
        let key = text.split_once('+').and_then(|(site, device)| format!("{site}/{device}").parse().ok());
        key.map(DevicePath).ok_or_else(|| refuse("cluster", text, "must be SITE+DEVICE, with + as %2B"))
    };
    let component =
        |text: &str| text.parse().map_err(|_| refuse("resource", text, "is no name of a component"));
    let clusters = values.all("cluster").map(device).collect::<Result<_, _>>()?;
    let (id, device, site) = match anchor {
        Anchor::Group { id, .. } => (Some(id.clone()), clusters, Vec::new()),
        Anchor::Cluster(key) => (None, vec![DevicePath(key.clone())], Vec::new()),
        Anchor::Cloud { site, .. } => (None, clusters, vec![site.clone()]),
    };
    let query = StatusQuery {
        id,
        site,
        app: values.all("app").map(str::to_owned).collect(),
        device,
        component: values.all("resource").map(component).collect::<Result<_, _>>()?,
        output,
        ..StatusQuery::default()
    };
    query.makes_sense().map_err(|message| Problem::new(StatusCode::BAD_REQUEST, message))?;
    Ok(query)
}
