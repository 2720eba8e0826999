//! The command line of `muster groups` and `muster view`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use muster_contract::{DeploymentId, LabelKey, LabelValue, ViewName};

pub(super) const GROUPS_EXAMPLES: &str = "\
Labels come from labels.yaml in the folders of the Git repository. What a device says of itself groups nothing.

Examples:
  muster groups                          the labels there are, and how many devices have each
  muster groups region                   the fleet by region
  muster groups region --deployment web  one deployment by region; the same as `muster status web --group-by region`
  muster groups region north             one group as a whole";

pub(super) const VIEW_EXAMPLES: &str = "\
A definition says what to select, how to group it and what to count:
  apiVersion: muster/v1
  kind: ViewDefinition
  name: trouble-by-ring
  select:                    # all must hold; of several values any; left out: everything
    labels: {region: [north, south]}
    sites: [plant7]
    freshness: [fresh]       # fresh, stale, never
    deployments: [web]
    standings: [failed]      # waiting, outdated, pending, installing, installed, removing, removed, failed
    verdicts: [failing]      # the verdict that a standing would give alone
  groupBy: label:ring        # site, deployment, component, label:<label>
  count: standings           # standings, devices, components

Examples:
  muster view apply -f trouble-by-ring.yaml
  muster view list
  muster view show trouble-by-ring
  muster view remove trouble-by-ring";

/// `muster groups`
#[derive(Debug, Args)]
pub struct GroupsArgs {
    /// The label; a list of all labels if left out
    pub label: Option<LabelKey>,
    /// One group as a whole
    #[arg(conflicts_with = "deployment")]
    pub value: Option<LabelValue>,
    /// Only the standings of a deployment
    #[arg(long, requires = "label")]
    pub deployment: Option<DeploymentId>,
}

/// `muster view`
#[derive(Debug, Subcommand)]
pub enum ViewCommand {
    /// Define a view, or define it anew
    Apply {
        /// The definition (YAML or JSON); `-` is standard input
        #[arg(short, long, value_name = "FILE")]
        file: PathBuf,
    },
    /// The views that are defined
    List,
    /// Shows the counts of a view
    Show {
        /// The view
        name: ViewName,
    },
    /// Take a definition back; its view goes with it
    Remove {
        /// The view
        name: ViewName,
    },
}
