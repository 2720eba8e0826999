//! `muster devices`: which of them.

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum};
use muster_contract::query::Query;
use muster_contract::view::Freshness;
use muster_contract::{DeploymentId, SiteId};

use super::history::PointArgs;

pub(super) const DEVICES_EXAMPLES: &str = "\
Examples:
  muster devices                         every device, also those that are retired
  muster devices --freshness stale --freshness never
                                         those of whom nothing is heard: silent for longer than the lease, or always
  muster devices --by-silence            the same in the order of silence: never heard first, then the longest silence
  muster devices --error E-DISK          those that report this error
  muster devices --not-running web       those that should run web and have not installed it
  muster devices --version 0.1.0 --site plant7
  muster devices --site plant7 --freshness stale --format json | jq '.devices[].lastHeardAt'
  muster devices --freshness stale --at 2026-11-20T10:00:00Z      who was silent then, as known then

Exit code 0 also where no device passes the filters; 1 where a name is unknown.";

/// `muster devices`
#[derive(Debug, Args)]
pub struct DevicesArgs {
    /// Only the devices of a site; may be repeated
    #[arg(long)]
    site: Vec<SiteId>,
    /// Only devices that are heard so, and not retired; may be repeated
    #[arg(long, value_enum)]
    freshness: Vec<Heard>,
    /// Only devices with an error of this code, and not retired; may be repeated
    #[arg(long, value_name = "CODE", value_parser = NonEmptyStringValueParser::new())]
    error: Vec<String>,
    /// Only devices with this version of the agent, and not retired; may be repeated
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    version: Vec<String>,
    /// Only devices that should run this deployment and have not installed it by their last report
    #[arg(long, value_name = "DEPLOYMENT")]
    pub(super) not_running: Option<DeploymentId>,
    /// Only stale and never heard devices, in the order of silence: never heard first, then the longest silence
    #[arg(long, conflicts_with_all = ["freshness", "error", "version", "not_running"])]
    by_silence: bool,
    /// When.
    #[command(flatten)]
    pub point: PointArgs,
}

/// Whether a device is heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Heard {
    /// Within the lease
    Fresh,
    /// Once, and not within the lease
    Stale,
    /// Never
    Never,
}

impl DevicesArgs {
    /// The question for the query service.
    pub fn query(&self) -> Query {
        Query {
            site: self.site.iter().cloned().collect(),
            freshness: self.freshness.iter().map(|heard| (*heard).into()).collect(),
            error: self.error.iter().cloned().collect(),
            version: self.version.iter().cloned().collect(),
            not_running: self.not_running.clone(),
            by_silence: self.by_silence,
            point: self.point.into(),
            ..Query::default()
        }
    }
}

impl From<Heard> for Freshness {
    fn from(heard: Heard) -> Self {
        match heard {
            Heard::Fresh => Self::Fresh,
            Heard::Stale => Self::Stale,
            Heard::Never => Self::Never,
        }
    }
}
