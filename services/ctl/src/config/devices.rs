//! `muster devices`: which of them.

use std::collections::BTreeSet;

use clap::{Args, ValueEnum};
use muster_contract::SiteId;
use muster_contract::view::Freshness;

use super::PointArgs;

pub(super) const DEVICES_EXAMPLES: &str = "\
Examples:
  muster devices                         every device, also those that are retired
  muster devices --freshness stale --freshness never
                                         those of whom nothing is heard: silent for longer than the lease, or always
  muster devices --site plant7 --freshness stale --format json | jq '.devices[].lastHeardAt'
  muster devices --freshness stale --at 2026-11-20T10:00:00Z      who was silent then, as known then

Exit code 0 also where no device passes the filters; 1 where the site is unknown.";

/// `muster devices`
#[derive(Debug, Args)]
pub struct DevicesArgs {
    /// Only the devices of a site
    #[arg(long)]
    pub site: Option<SiteId>,
    /// Only devices that are heard so, and not retired; may be repeated
    #[arg(long, value_enum)]
    freshness: Vec<Heard>,
    /// When.
    #[command(flatten)]
    pub point: PointArgs,
}

/// Whether a device is heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Heard {
    /// Within the lease
    Fresh,
    /// Once, and not within the lease
    Stale,
    /// Never
    Never,
}

impl DevicesArgs {
    /// The freshness to filter by; none for all devices.
    pub fn freshness(&self) -> BTreeSet<Freshness> {
        self.freshness.iter().map(|heard| (*heard).into()).collect()
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
