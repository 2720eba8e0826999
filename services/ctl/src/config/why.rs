//! Arguments of `muster why`: a deployment or a rollout.

use clap::{Args, Subcommand};
use muster_contract::query::PAGE_MAX;
use muster_contract::{DeploymentId, SiteId};

use super::device_arg::DeviceArg;
use super::history::PointArgs;

pub(super) const WHY_EXAMPLES: &str = "\
Without the devices that are named the verdict would be another; without any other device it would be the same. Of each
device the facts are named that make its standing: where LEDGER holds them, and which report (epoch/number) it was.

Examples:
  muster why web                         the devices that make the verdict of web
  muster why web --device plant7/press-4 why it stands as it does there
  muster why web --at 2026-11-20T10:00:00Z         why it had the verdict that it had then
  muster why web --format json | jq '.standings[].facts'
  muster why rollout web                 what the rollout of web waits for: which wave, which bound, which devices";

/// The other things that `muster why` explains.
#[derive(Debug, Subcommand)]
pub enum WhyAbout {
    /// Why a rollout stands where it does: the wave, the bound, the numbers, the devices
    Rollout {
        /// The deployment
        deployment: DeploymentId,
    },
}

/// `muster why`
#[derive(Debug, Args)]
pub struct WhyArgs {
    /// Something else than a deployment.
    #[command(subcommand)]
    pub about: Option<WhyAbout>,
    /// The deployment; one that is called `rollout` after `--`
    #[arg(required = true)]
    pub deployment: Option<DeploymentId>,
    /// Its standing on one device instead, as SITE/DEVICE, or its name alone where one site has it
    #[arg(long, conflicts_with_all = ["site", "after", "limit"])]
    pub device: Option<DeviceArg>,
    /// Only devices of a site
    #[arg(long)]
    pub site: Option<SiteId>,
    /// Devices shown at most
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=PAGE_MAX as i64))]
    pub limit: u16,
    /// Only devices after this one: how the answer before it ended
    #[arg(long, value_name = "SITE/DEVICE")]
    pub after: Option<String>,
    /// When.
    #[command(flatten)]
    pub point: PointArgs,
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::super::{Cli, Command};
    use super::*;

    #[test]
    fn a_rollout_and_approvals_stand_beside_deployments_of_any_name() {
        let parsed = |line: &str| Cli::try_parse_from(line.split(' ')).map(|cli| cli.command);
        let about_rollout = |command| match command {
            Command::Why(WhyArgs { about: Some(WhyAbout::Rollout { deployment }), .. }) => {
                deployment.to_string()
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(about_rollout(parsed("muster why rollout web").unwrap()), "web");
        for (line, name) in [("muster why web", "web"), ("muster why -- rollout", "rollout")] {
            let deployment = parsed(line).unwrap().deployment_mut().map(|id| id.to_string());
            assert_eq!(deployment.as_deref(), Some(name), "{line}");
        }
        for line in ["muster why", "muster why rollout", "muster why rollout web --device a/b"] {
            assert!(parsed(line).is_err(), "{line}");
        }
        let Command::Watch(watch) = parsed("muster watch approvals").unwrap() else { panic!() };
        assert!(watch.about.is_some() && watch.deployment.is_none());
        let Command::Watch(watch) = parsed("muster watch -- approvals").unwrap() else { panic!() };
        assert!(watch.about.is_none() && watch.deployment.is_some());
    }
}
