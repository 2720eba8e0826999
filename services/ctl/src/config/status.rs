//! `muster status`: which deployment, which part of it, how much, and as what.

use std::num::NonZeroU64;

use clap::builder::{NonEmptyStringValueParser, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use muster_client::emco::Subject;
use muster_client::resource_group::read::BUDGET_LEAST;
use muster_contract::query::{Output, PAGE_MAX, Query};
use muster_contract::status::{Axis, DevicePath, StatusQuery};
use muster_contract::view::{Standing, Verdict};
use muster_contract::{ComponentName, DeploymentId, Generation, LabelKey, SiteId};

use super::device_arg::DeviceArg;
use super::devices::Heard;
use super::format::Format;
use super::history::PointArgs;

pub(super) const STATUS_EXAMPLES: &str = "\
Values of one filter are alternatives (--site a --site b), several filters must all hold. Counts are of what passes.
An answer of several pages says the sequence of the first; later ones and counts may know more. With --at-seq all are of one.

Examples:
  muster status                          every deployment, the worst first
  muster status --site plant7 --site plant8
                                         those at the sites, counted and judged there alone
  muster status --verdict failing,overdue
  muster status --error E-DISK           those with a device that reports this error
  muster status web                      verdict, bounds, counts and errors of one
  muster status web --group-by region    one deployment by a label of its devices
  muster status web --output brief       a line for each device
  muster status web --output all         and its components
  muster status web --output detail      and what shall run, each manifest once
  muster status web --standing failed    the devices on which it failed
  muster status web --freshness stale --error E-DISK
  muster status web --site plant7        what was delivered to the site, and what of it is ready
  muster status web --component db --axis ready --output summary
  muster status --device plant7/press-4  every deployment of a device
  muster status web --device plant7/press-4 --generation 7
                                         what is held of an older generation of the device
  muster status web --instance 3f2a91c   an older revision, as it stood when the next one took its place
  muster status web --list components    names only
  muster status web --format emco        the JSON that EMCO's status query gives
  muster status my-plan --format emco    the same of a plan, with its history
  muster status web --format emco --type rsync
                                         with the key names it had before
  muster status web --device plant7/press-4 --format resourcegroup
                                         kpt's ResourceGroup of the deployment on a device, as YAML
  muster status web --format resourcegroup --aggregate --budget 4096
                                         of the whole fleet, counts alone, within so many bytes
  muster status web --at 2026-11-20T10:00:00Z      as known then; any filter may stand beside it
  muster status web --event-time 2026-11-20T10:00:00Z   what is known of that moment by now

Exit code 0 also where nothing passes the filters; 1 where a name is unknown.";

/// Flags that a table of groups does not support.
const GROUPED_WITHOUT: [&str; 16] = [
    "site",
    "verdict",
    "standing",
    "freshness",
    "error",
    "device",
    "app",
    "component",
    "axis",
    "deprecated_type",
    "output",
    "limit",
    "after",
    "list",
    "aggregate",
    "budget",
];

/// `muster status`
#[derive(Debug, Default, Args)]
pub struct StatusArgs {
    /// The deployment; a list of all of them if left out
    pub deployment: Option<DeploymentId>,
    /// Only at this site; may be repeated
    #[arg(long)]
    pub site: Vec<SiteId>,
    /// Only on this device, as SITE/DEVICE, or its name alone where one site has it; may be repeated
    #[arg(long)]
    pub device: Vec<DeviceArg>,
    /// List only deployments with one of these verdicts, such as failing,overdue
    #[arg(long, value_delimiter = ',', value_parser = verdict_parser())]
    pub verdict: Vec<Verdict>,
    /// Only targets of one of these standings, such as failed,outdated
    #[arg(long, value_delimiter = ',', value_parser = standing_parser())]
    pub standing: Vec<Standing>,
    /// Only on devices that are heard so; may be repeated
    #[arg(long, value_enum)]
    pub freshness: Vec<Heard>,
    /// Only with an error of this code: targets, or deployments in the list of them; may be repeated
    #[arg(long, value_name = "CODE", value_parser = NonEmptyStringValueParser::new())]
    pub error: Vec<String>,
    /// Only of this application; may be repeated
    #[arg(long, value_name = "APPLICATION")]
    pub app: Vec<String>,
    /// Only this component; may be repeated
    #[arg(long)]
    pub component: Vec<ComponentName>,
    /// Only what was delivered, or only what is observed
    #[arg(long, value_enum)]
    pub axis: Option<AxisWord>,
    /// With --format emco: the key names that EMCO calls deprecated
    #[arg(long = "type", value_enum, conflicts_with_all = ["axis", "list"])]
    pub deprecated_type: Option<DeprecatedType>,
    /// How much of it [default: summary of a deployment; all with a filter]
    #[arg(long, value_enum)]
    pub output: Option<Depth>,
    /// As of this generation of the device, which must be the only one named
    #[arg(long, requires = "device")]
    pub generation: Option<NonZeroU64>,
    /// An older revision of the deployment, as it stood when the next one took its place: a commit or request, or its
    /// sequence in LEDGER, as `states` of --format emco tells them, of one hub
    #[arg(long, value_name = "REVISION", requires = "deployment", value_parser = NonEmptyStringValueParser::new(),
        conflicts_with_all = ["generation", "at", "at_seq", "event_time"])]
    pub instance: Option<String>,
    /// Targets shown at most; counts are of all of them
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=PAGE_MAX as i64))]
    pub limit: Option<u16>,
    /// Only targets after this one: how the answer before it ended
    #[arg(long, value_name = "SITE/DEVICE[/DEPLOYMENT]")]
    pub after: Option<String>,
    /// By a label of the devices, such as region
    #[arg(long, value_name = "LABEL", conflicts_with_all = GROUPED_WITHOUT)]
    pub group_by: Option<LabelKey>,
    /// Names only
    #[arg(long, value_enum, conflicts_with_all = ["axis", "output"])]
    pub list: Option<Names>,
    /// With --format resourcegroup: counts alone, whatever the size of the fleet
    #[arg(long, requires = "deployment", visible_alias = "aggregate-only")]
    pub aggregate: bool,
    /// With --format resourcegroup: bytes the document may have; it says what it leaves out
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(BUDGET_LEAST as i64..))]
    pub budget: Option<u32>,
    /// When.
    #[command(flatten)]
    pub point: PointArgs,
}

/// How an answer is shown on the command line: for people, for programs, or as another system has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Show {
    /// For people
    Table,
    /// For programs: the contract's documents as they are
    Json,
    /// `muster status` as EMCO's status query gives it (JSON)
    Emco,
    /// `muster status` as kpt's ResourceGroup (YAML)
    Resourcegroup,
    /// The same as JSON
    ResourcegroupJson,
}

/// Formats of other systems.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Export {
    /// EMCO's status query.
    Emco,
    /// kpt's ResourceGroup, as YAML.
    ResourceGroup,
    /// The same as JSON.
    ResourceGroupJson,
}

impl Show {
    /// The format of Muster's own that every command has, and the format of another system if one was requested.
    pub const fn split(self) -> (Format, Option<Export>) {
        match self {
            Self::Table => (Format::Table, None),
            Self::Json => (Format::Json, None),
            Self::Emco => (Format::Json, Some(Export::Emco)),
            Self::Resourcegroup => (Format::Json, Some(Export::ResourceGroup)),
            Self::ResourcegroupJson => (Format::Json, Some(Export::ResourceGroupJson)),
        }
    }
}

/// One of the two axes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AxisWord {
    /// The published desired state, and how far devices have accepted it
    Deployed,
    /// The observed state
    Ready,
}

/// EMCO's older words for the two axes, which its query takes as `type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DeprecatedType {
    /// As --axis deployed, with the old names
    Rsync,
    /// As --axis ready, with the old names
    Cluster,
}

/// The kind of names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Names {
    /// Applications
    Apps,
    /// Devices
    Targets,
    /// Components
    Components,
}

impl From<Names> for muster_client::emco::Names {
    fn from(names: Names) -> Self {
        match names {
            Names::Apps => Self::Apps,
            Names::Targets => Self::Targets,
            Names::Components => Self::Components,
        }
    }
}

/// How much of a deployment is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Depth {
    /// Counts alone
    Summary,
    /// And a line for each target
    Brief,
    /// And its components
    All,
    /// And what shall run
    Detail,
}

impl From<Depth> for Output {
    fn from(depth: Depth) -> Self {
        match depth {
            Depth::Summary => Self::Summary,
            Depth::Brief => Self::Brief,
            Depth::All => Self::All,
            Depth::Detail => Self::Detail,
        }
    }
}

impl StatusArgs {
    /// Whether every flag says something beside the others, and beside the format. What would be passed over is refused.
    ///
    /// # Errors
    /// The two that do not go together.
    pub fn check(&self, export: Option<Export>) -> Result<(), String> {
        let is_group = matches!(export, Some(Export::ResourceGroup | Export::ResourceGroupJson));
        let is_summary = self.output == Some(Depth::Summary);
        let (limit, after) = (self.limit.is_some(), self.after.is_some());
        if !is_group && (self.aggregate || self.budget.is_some()) {
            return Err("--aggregate and --budget belong to --format resourcegroup".to_owned());
        }
        if self.deprecated_type.is_some() && export != Some(Export::Emco) {
            return Err("--type belongs to --format emco; --axis is the same for every other".to_owned());
        }
        let is_list = self.deployment.is_none() && self.is_of_views() && export.is_none();
        if !self.verdict.is_empty() && !is_list {
            return Err(
                "--verdict belongs to the list of deployments: only --site, --error and points of the past go with it"
                    .to_owned(),
            );
        }
        if self.output.is_some() && self.deployment.is_none() && self.is_of_views() {
            return Err(
                "--output belongs to a DEPLOYMENT or a filter (--app, --component, --device, --standing, --freshness)".to_owned()
            );
        }
        for (is_there, flag, beside) in [
            (export.is_some() && self.group_by.is_some(), "--group-by", "--format emco or resourcegroup"),
            (is_group && self.list.is_some(), "--list", "--format resourcegroup"),
            (is_group && self.axis.is_some(), "--axis", "--format resourcegroup"),
            (is_group && limit, "--limit", "--format resourcegroup, which has --budget"),
            (is_group && after, "--after", "--format resourcegroup, which begins with the first target"),
            (is_group && self.output.is_some(), "--output", "--format resourcegroup, which has --aggregate"),
            (is_summary && limit, "--limit", "--output summary, which has no lines"),
            (is_summary && after, "--after", "--output summary, which has no lines"),
        ] {
            if is_there {
                return Err(format!("{flag} has no meaning with {beside}"));
            }
        }
        Ok(())
    }

    /// True where the views answer: no filter but those of the list of deployments, no lines, and nothing else is asked for.
    pub(crate) fn is_of_views(&self) -> bool {
        let has_lines = self.output.is_some_and(|depth| depth != Depth::Summary);
        let is_part = !self.site.is_empty() || !self.error.is_empty() || has_lines;
        let more =
            self.axis().is_some() || self.limit.is_some() || self.after.is_some() || self.list.is_some();
        self.is_of_all_rows() && !(is_part && self.deployment.is_some()) && !more
    }

    /// True where only some targets or components pass.
    pub fn is_filtered(&self) -> bool {
        !self.site.is_empty() || !self.error.is_empty() || !self.is_of_all_rows()
    }

    /// The subject in EMCO's shape: a device or site as a whole, whatever runs there, or else deployments.
    pub fn subject(&self) -> Subject<'_> {
        match (self.device.as_slice(), self.site.as_slice()) {
            _ if self.deployment.is_some() => Subject::Deployment,
            ([device], _) => device.key().map_or(Subject::Deployment, Subject::Device),
            ([], [site]) => Subject::Site(site),
            _ => Subject::Deployment,
        }
    }

    /// True where at most filters are named that the list of deployments has as well.
    fn is_of_all_rows(&self) -> bool {
        let is_of_any = self.app.is_empty() && self.device.is_empty() && self.component.is_empty();
        is_of_any && self.standing.is_empty() && self.freshness.is_empty()
    }

    /// The one axis that is asked for, in whichever word.
    fn axis(&self) -> Option<Axis> {
        match (self.axis, self.deprecated_type) {
            (Some(AxisWord::Deployed), _) | (None, Some(DeprecatedType::Rsync)) => Some(Axis::Deployed),
            (Some(AxisWord::Ready), _) | (None, Some(DeprecatedType::Cluster)) => Some(Axis::Ready),
            (None, None) => None,
        }
    }

    /// The question for the list of deployments.
    pub(crate) fn list_query(&self) -> Query {
        Query {
            site: self.site.iter().cloned().collect(),
            verdict: self.verdict.iter().copied().collect(),
            error: self.error.iter().cloned().collect(),
            point: self.point.into(),
            ..Query::default()
        }
    }

    /// The question for the query service.
    pub fn query(&self) -> StatusQuery {
        StatusQuery {
            id: self.deployment.clone(),
            app: self.app.clone(),
            site: self.site.clone(),
            device: self.device.iter().filter_map(DeviceArg::key).cloned().map(DevicePath).collect(),
            component: self.component.clone(),
            standing: self.standing.iter().copied().collect(),
            freshness: self.freshness.iter().map(|heard| (*heard).into()).collect(),
            error: self.error.iter().cloned().collect(),
            status: self.axis(),
            output: self.output.unwrap_or(Depth::All).into(),
            generation: self.generation.and_then(|number| Generation::new(number.get())),
            limit: None,
            after: self.after.clone(),
            point: self.point.into(),
        }
    }
}

/// Reads a verdict by its word.
pub(super) fn verdict_parser() -> impl TypedValueParser<Value = Verdict> {
    let words = PossibleValuesParser::new(Verdict::ALL.map(Verdict::as_str));
    // Every possible word is one of a verdict.
    words.map(|word| Verdict::ALL.into_iter().find(|it| it.as_str() == word).unwrap_or(Verdict::Empty))
}

fn standing_parser() -> impl TypedValueParser<Value = Standing> {
    let words = PossibleValuesParser::new(Standing::ALL.map(Standing::as_str));
    // Every possible word is one of a standing.
    words.map(|word| Standing::ALL.into_iter().find(|it| it.as_str() == word).unwrap_or(Standing::Waiting))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_filter_alone_makes_what_passes_a_part() {
        let none = StatusArgs::default;
        assert!(!none().is_filtered() && none().is_of_views());
        let at_a_site = StatusArgs { site: vec!["plant7".parse().unwrap()], ..none() };
        assert!(at_a_site.is_filtered() && at_a_site.is_of_views(), "the list of a site is a view's");
        for filtered in [
            StatusArgs { device: vec!["plant7/press-4".parse().unwrap()], ..none() },
            StatusArgs { app: vec!["shop".to_owned()], ..none() },
            StatusArgs { component: vec!["db".parse().unwrap()], ..none() },
            StatusArgs { standing: vec![Standing::Failed], ..none() },
            StatusArgs { freshness: vec![Heard::Stale], ..none() },
            StatusArgs { deployment: Some("web".parse().unwrap()), error: vec!["E1".to_owned()], ..none() },
        ] {
            assert!(filtered.is_filtered() && !filtered.is_of_views(), "{filtered:?}");
        }
    }

    #[test]
    fn lines_come_from_the_targets_and_a_summary_from_the_view() {
        let of = |output| {
            let deployment = Some("web".parse().unwrap());
            StatusArgs { deployment, output, ..StatusArgs::default() }.is_of_views()
        };
        assert!(of(None) && of(Some(Depth::Summary)));
        assert!(![Depth::Brief, Depth::All, Depth::Detail].map(Some).into_iter().any(of));
    }

    #[test]
    fn q04_the_old_word_for_an_axis_asks_for_that_axis_alone() {
        let asked = |deprecated_type, axis| {
            StatusArgs { deprecated_type, axis, ..StatusArgs::default() }.query().status
        };
        assert_eq!(asked(Some(DeprecatedType::Rsync), None), Some(Axis::Deployed));
        assert_eq!(asked(Some(DeprecatedType::Cluster), None), Some(Axis::Ready));
        assert_eq!(asked(None, Some(AxisWord::Ready)), Some(Axis::Ready));
        assert_eq!(asked(None, None), None);
    }
}
