//! The settings of `muster-simulator demo`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use muster_contract::DeviceKey;
use muster_service::config::{Common, Problems};

use super::log::LogArgs;
use super::run::{self, DEVICES_MAX, RunLocation, RunLocationArgs};

/// Shortest run that leaves time for link faults.
const SECONDS_MIN: u64 = 20;

/// Shortest run with an end that has time for rollouts.
const SECONDS_WITH_ROLLOUTS: u64 = 180;

/// Sites of a fleet that is large enough for them.
const SITES_DEFAULT: u64 = 4;

/// Shown below the help.
pub(super) const EXAMPLES: &str = "\
Examples:
  muster-simulator demo                      a fleet of 20 devices at 4 sites, until Ctrl-C
  muster-simulator demo --seconds 45 --json  the same for 45 seconds; closes with one JSON object
  muster-simulator demo --seed 7             the same faults every time

Exit codes: 0 everything converged and no report is missing (or Ctrl-C); 1 it did not; 2 a setting cannot be used.";

/// `demo`, as typed.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Devices, at most 1000, each an agent of its own behind a link of its own
    #[arg(long, env = "MUSTER_DEVICES", default_value = "20")]
    devices: String,
    /// Sites over which the devices are spread, at most as many [default: 4, or the number of devices if that is less]
    #[arg(long, env = "MUSTER_SITES")]
    sites: Option<String>,
    /// Run so many seconds, at least 20, and then say how it went; until Ctrl-C if left out. A run of at least 180 seconds,
    /// or without an end, also releases in waves
    #[arg(long, env = "MUSTER_SECONDS", value_name = "N")]
    seconds: Option<String>,
    /// Seed of the faults; drawn and printed if left out
    #[arg(long, env = "MUSTER_SEED", value_name = "N")]
    seed: Option<String>,
    /// Close with one JSON object on standard output instead of showing the fleet
    #[arg(long, env = "MUSTER_JSON")]
    json: bool,
    /// Directory of the fleet; what an earlier demo left in it is removed first
    #[arg(long, env = "MUSTER_DIR", value_name = "DIR", default_value = ".demo")]
    dir: PathBuf,
    #[command(flatten)]
    location: RunLocationArgs,
    #[command(flatten)]
    log: LogArgs,
}

/// The settings, checked.
#[derive(Debug, Clone)]
pub struct DemoConfig {
    /// Devices.
    pub devices: usize,
    /// Sites.
    pub sites: usize,
    /// How long to run; until stopped if none.
    pub length: Option<Duration>,
    /// The pace of the releases in waves; every release goes out at once if none.
    pub rollouts: Option<RolloutPace>,
    /// Seed of the faults.
    pub seed: u64,
    /// A program reads the output.
    pub json: bool,
    /// Where.
    pub location: RunLocation,
    /// The settings of every service.
    pub common: Common,
}

/// The pace of a demo that releases in waves.
#[derive(Debug, Clone, Copy)]
pub struct RolloutPace {
    /// Time between the end of a release and the next commit.
    pub pause: Duration,
    /// The soak time of the waves.
    pub soak: Duration,
    /// Time between two rounds of the planner.
    pub plan_every: Duration,
    /// Releases after which the faults end; with the run if none.
    pub releases: Option<u32>,
}

impl Default for RolloutPace {
    fn default() -> Self {
        Self {
            pause: Duration::from_secs(8),
            soak: Duration::from_secs(5),
            plan_every: Duration::from_millis(500),
            releases: None,
        }
    }
}

impl DemoArgs {
    pub(super) fn check(self, seed: u64, programs: PathBuf) -> Result<DemoConfig, Problems> {
        let mut problems = Problems::default();
        let devices = problems.number("--devices", &self.devices, 1..=DEVICES_MAX);
        let sites_max = devices.unwrap_or(DEVICES_MAX);
        let sites = problems.optional("--sites", self.sites.as_deref(), |problems, flag, text| {
            problems.number(flag, text, 1..=sites_max)
        });
        let length = problems.optional("--seconds", self.seconds.as_deref(), |problems, _, text| {
            run::seconds(problems, text, SECONDS_MIN)
        });
        let seed = run::seed(&mut problems, "--seed", self.seed.as_deref(), seed);
        let common = self.log.check(&mut problems);
        let location = self.location.check(&mut problems, self.dir, programs);
        problems.finish(|| {
            let length = length?;
            let has_time = length.is_none_or(|length| length >= Duration::from_secs(SECONDS_WITH_ROLLOUTS));
            Some(DemoConfig {
                devices: usize::try_from(devices?).ok()?,
                sites: usize::try_from(sites?.unwrap_or(SITES_DEFAULT.min(sites_max))).ok()?,
                length,
                rollouts: has_time.then(RolloutPace::default),
                seed: seed?,
                json: self.json,
                location,
                common: common?,
            })
        })
    }
}

impl DemoConfig {
    /// The names of the sites.
    pub(crate) fn site_names(&self) -> Vec<String> {
        run::site_names(self.sites)
    }

    /// The devices, spread over the sites in turn.
    pub fn device_keys(&self) -> Vec<DeviceKey> {
        let key = |at| run::device_key(at % self.sites + 1, at / self.sites + 1);
        (0..self.devices).filter_map(key).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Settings, tests::check};
    use super::*;

    fn demo(words: &[&str]) -> Result<DemoConfig, Problems> {
        match check(&[&["demo"], words].concat())? {
            Settings::Demo(config) => Ok(config),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_default_is_twenty_devices_at_four_sites() {
        let config = demo(&[]).unwrap();
        let keys = config.device_keys();
        assert_eq!((keys.len(), config.site_names().len(), config.seed), (20, 4, 7));
        let distinct: std::collections::BTreeSet<_> = keys.iter().collect();
        assert_eq!(distinct.len(), 20);
        assert!(config.site_names().iter().all(|site| keys.iter().any(|key| key.site.as_str() == site)));
    }

    #[test]
    fn a_run_releases_in_waves_if_it_has_time_for_them() {
        for (words, has_rollouts) in [
            (&[][..], true),
            (&["--seconds=180"], true),
            (&["--seconds=179"], false),
            (&["--seconds=45"], false),
        ] {
            assert_eq!(demo(words).unwrap().rollouts.is_some(), has_rollouts, "{words:?}");
        }
    }

    #[test]
    fn a_small_fleet_has_no_more_sites_than_devices() {
        assert_eq!(demo(&["--devices=2"]).unwrap().sites, 2);
        assert_eq!(demo(&["--devices=2", "--sites=1"]).unwrap().sites, 1);
        let shown = demo(&["--devices=2", "--sites=3"]).unwrap_err().to_string();
        assert!(shown.contains("--sites=3") && shown.contains("from 1 to 2"), "{shown}");
    }

    #[test]
    fn every_bad_setting_is_named_at_once() {
        let bad = [
            "--devices=0",
            "--seconds=1",
            "--seed=x",
            "--log-format=xml",
            "--bin-dir=/nope",
            "--nats-server=/nope",
            "--dir=/",
        ];
        let shown = demo(&bad).unwrap_err().to_string();
        for flag in bad {
            assert!(shown.contains(flag), "{flag} is missing: {shown}");
        }
    }

    #[test]
    fn the_help_says_the_limits() {
        use clap::CommandFactory as _;
        let mut command = super::super::Cli::command();
        let help = command.find_subcommand_mut("demo").unwrap().render_long_help().to_string();
        for limit in [
            format!("at most {DEVICES_MAX}"),
            format!("at least {SECONDS_MIN}"),
            format!("at least {SECONDS_WITH_ROLLOUTS}"),
        ] {
            assert!(help.contains(&limit), "{limit} is missing: {help}");
        }
    }
}
