//! The settings of `muster-simulator chaos`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use muster_contract::DeviceKey;
use muster_service::config::{Common, Problems};

use super::log::LogArgs;
use super::run::{self, DEVICES_MAX, RunLocation, RunLocationArgs};

/// Shortest trial in which everything has a chance to happen.
const SECONDS_MIN: u64 = 10;
/// Fewest agents: one with real processes, one on a small disk, one of neither.
const AGENTS_MIN: u64 = 4;
/// Fewest sites: one of real processes, one of simulated ones.
const SITES_MIN: u64 = 2;
/// One agent in so many runs real processes, up to [`PROCESS_AGENTS_MAX`]; the others pretend.
const PROCESS_AGENTS_ONE_IN: usize = 8;
/// The most agents with real processes.
const PROCESS_AGENTS_MAX: usize = 6;
/// One agent in so many has a small disk, up to [`SMALL_DISKS_MAX`].
const SMALL_DISKS_ONE_IN: usize = 6;
/// The most agents with a small disk.
const SMALL_DISKS_MAX: usize = 8;

/// Shown below the help.
pub(super) const EXAMPLES: &str = "\
The hub is secured with accounts, credentials and TLS. Two ingests and two rollups run, one of each as a hot standby; the
agents of the first site run real processes, of which some end again and again and some never start.

For as long as --seconds says: kill -9 of agents, services, nats-server and workloads, freezes (SIGSTOP), links that are
cut, closed, stalled, half open, throttled or late, disks that are full, commits that are bad, removed and put elsewhere.
A person deploys a plan again and again, approves, rejects, moves and stops. Then everything is healed, and must come to rest with nothing lost, repeated or wrong. An operator's credentials check
that: `muster audit`, a recount of LEDGER, a rebuild of every view, and what every device runs.

Examples:
  muster-simulator chaos                               20 agents for a minute
  muster-simulator chaos --seconds 600 --agents 200    what `make chaos` does
  muster-simulator chaos --seed 7 --json               the same schedule again; closes with one JSON object

The seed repeats the schedule of faults and commits; the machine decides how the processes interleave.

Exit codes: 0 no violation (or Ctrl-C); 1 a violation, or a process ended by itself; 2 a setting cannot be used.";

/// `chaos`, as typed.
#[derive(Debug, Args)]
pub(crate) struct ChaosArgs {
    /// How long faults go on; healing and the final checks come on top
    #[arg(long, env = "MUSTER_SECONDS", value_name = "N", default_value = "60")]
    seconds: String,
    /// Agents, each behind a link of its own
    #[arg(long, env = "MUSTER_AGENTS", value_name = "N", default_value = "20")]
    agents: String,
    /// Sites over which the agents are spread; the first runs real processes, the others pretend
    #[arg(long, env = "MUSTER_SITES", value_name = "N", default_value = "4")]
    sites: String,
    /// Seed of the schedule; drawn and printed if left out
    #[arg(long, env = "MUSTER_SEED", value_name = "N")]
    seed: Option<String>,
    /// Close with one JSON object on standard output
    #[arg(long, env = "MUSTER_JSON")]
    json: bool,
    /// Directory of the trial, kept afterwards; what an earlier one left in it is removed first
    #[arg(long, env = "MUSTER_DIR", value_name = "DIR", default_value = ".demo")]
    dir: PathBuf,
    #[command(flatten)]
    location: RunLocationArgs,
    #[command(flatten)]
    log: LogArgs,
}

/// The settings, checked.
#[derive(Debug, Clone)]
pub struct ChaosConfig {
    /// How long faults go on.
    pub length: Duration,
    /// Agents.
    pub agents: usize,
    /// Sites.
    pub sites: usize,
    /// Seed of the schedule.
    pub seed: u64,
    /// A program reads the output.
    pub json: bool,
    /// Where.
    pub location: RunLocation,
    /// The settings of every service.
    pub common: Common,
}

impl ChaosArgs {
    pub(super) fn check(self, seed: u64, programs: PathBuf) -> Result<ChaosConfig, Problems> {
        let mut problems = Problems::default();
        let length = run::seconds(&mut problems, &self.seconds, SECONDS_MIN);
        let agents = problems.number("--agents", &self.agents, AGENTS_MIN..=DEVICES_MAX);
        let sites = problems.number("--sites", &self.sites, SITES_MIN..=agents.unwrap_or(DEVICES_MAX) / 2);
        let seed = run::seed(&mut problems, "--seed", self.seed.as_deref(), seed);
        let common = self.log.check(&mut problems);
        let location = self.location.check(&mut problems, self.dir, programs);
        problems.finish(|| {
            Some(ChaosConfig {
                length: length?,
                agents: usize::try_from(agents?).ok()?,
                sites: usize::try_from(sites?).ok()?,
                seed: seed?,
                json: self.json,
                location,
                common: common?,
            })
        })
    }
}

impl ChaosConfig {
    /// The command that plays the very trial again, to be pasted into a shell at the top of the repository.
    pub fn replay(&self) -> String {
        let Self { length, agents, sites, seed, .. } = self;
        let seconds = length.as_secs();
        format!(
            "make chaos CHAOS_SECONDS={seconds} CHAOS_AGENTS={agents} CHAOS_SITES={sites} CHAOS_SEED={seed}"
        )
    }

    /// How many agents run real processes: those of the first site.
    pub(crate) fn process_agents(&self) -> usize {
        (self.agents / PROCESS_AGENTS_ONE_IN).clamp(1, PROCESS_AGENTS_MAX)
    }

    /// The devices: first those of the first site, then the others in turn.
    pub fn device_keys(&self) -> Vec<DeviceKey> {
        let (first, others) = (self.process_agents(), self.sites - 1);
        let of_the_first = (0..first).filter_map(|at| run::device_key(1, at + 1));
        let rest = self.agents - first;
        let others = (0..rest).filter_map(|at| run::device_key(at % others + 2, at / others + 1));
        of_the_first.chain(others).collect()
    }

    /// Which devices have a small disk: every so many, the first of all among them.
    pub(crate) fn small_disks(&self) -> Vec<usize> {
        let wanted = (self.agents / SMALL_DISKS_ONE_IN).clamp(1, SMALL_DISKS_MAX);
        (0..wanted).map(|at| at * self.agents / wanted).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::{Settings, tests::check};
    use super::*;

    fn chaos(words: &[&str]) -> Result<ChaosConfig, Problems> {
        match check(&[&["chaos"], words].concat())? {
            Settings::Chaos(config) => Ok(config),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_agent_has_a_device_of_its_own_and_every_site_has_devices() {
        for (agents, sites) in [("4", "2"), ("20", "4"), ("200", "8"), ("9", "4")] {
            let config = chaos(&["--agents", agents, "--sites", sites]).unwrap();
            let keys: BTreeSet<_> = config.device_keys().into_iter().collect();
            assert_eq!(keys.len(), config.agents);
            let found: BTreeSet<_> = keys.iter().map(|key| key.site.clone()).collect();
            assert_eq!(found.len(), config.sites, "{agents} agents at {sites} sites");
            let disks: BTreeSet<_> = config.small_disks().into_iter().collect();
            assert!(!disks.is_empty() && disks.iter().all(|at| *at < config.agents));
        }
    }

    #[test]
    fn every_bad_setting_is_named_at_once() {
        let shown = chaos(&["--agents=1", "--seconds=1", "--seed=x", "--sites=1"]).unwrap_err().to_string();
        for flag in ["--agents=1", "--seconds=1", "--seed=x", "--sites=1"] {
            assert!(shown.contains(flag), "{shown}");
        }
    }
}
