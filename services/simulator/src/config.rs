//! The simulator's settings. Fixed tempo and limits are constants where they are used.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use muster_contract::DeviceKey;
use muster_service::config::{Common, Problems};
use muster_service::version::VERSION;

/// Most devices of a demo: each is a process of its own.
const DEVICES_MAX: u64 = 200;
/// Shortest run that leaves time for the weather.
const SECONDS_MIN: u64 = 20;
/// Longest run with an end.
const SECONDS_MAX: u64 = 24 * 60 * 60;

const EXAMPLES: &str = "\
Examples:
  muster-simulator demo                      a fleet of 20 devices at 4 sites, until Ctrl-C
  muster-simulator demo --seconds 45 --json  the same for 45 seconds; closes with one JSON object
  muster-simulator demo --seed 7             the same faults every time

Exit codes: 0 everything converged and no report is missing (or Ctrl-C); 1 it did not; 2 a setting cannot be used.";

/// A fleet on flaky links on this machine
#[derive(Debug, Parser)]
#[command(name = "muster-simulator", version = VERSION, after_help = EXAMPLES)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a whole fleet, break its links, and show what is true of it
    #[command(after_help = EXAMPLES)]
    Demo(DemoArgs),
}

#[derive(Debug, Args)]
struct DemoArgs {
    /// Devices, each an agent of its own behind a link of its own
    #[arg(long, env = "MUSTER_DEVICES", default_value = "20")]
    devices: String,
    /// Sites over which the devices are spread
    #[arg(long, env = "MUSTER_SITES", default_value = "4")]
    sites: String,
    /// Run this long and then say how it went; until Ctrl-C if left out
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
    /// Where Muster's programs are; beside this one if left out
    #[arg(long, env = "MUSTER_BIN_DIR", value_name = "DIR")]
    bin_dir: Option<PathBuf>,
    /// The NATS server to start
    #[arg(long, env = "MUSTER_NATS_SERVER", value_name = "FILE", default_value = ".tools/nats-server")]
    nats_server: PathBuf,
    /// How to write the log on standard error: text or json
    #[arg(long, env = "MUSTER_LOG_FORMAT", value_name = "FORMAT", default_value = "text")]
    log_format: String,
    /// What to log: error, warn, info, debug or trace, or per module
    #[arg(long, env = "MUSTER_LOG", value_name = "FILTER", default_value = "info,async_nats=error")]
    log: String,
}

/// The settings, checked.
#[derive(Debug, Clone)]
pub struct Config {
    /// Devices.
    pub devices: usize,
    /// Sites.
    pub sites: usize,
    /// How long to run; until stopped if none.
    pub length: Option<Duration>,
    /// Seed of the faults.
    pub seed: u64,
    /// A program reads the output.
    pub json: bool,
    /// Directory of the fleet.
    pub dir: PathBuf,
    /// Where Muster's programs are.
    pub programs: PathBuf,
    /// The NATS server's program.
    pub nats_server: PathBuf,
    /// What every service has.
    pub common: Common,
}

impl Cli {
    /// The checked settings. `seed` is used where none is given, `programs` likewise.
    ///
    /// # Errors
    /// Every setting that cannot be used.
    pub fn check(self, seed: u64, programs: PathBuf) -> Result<Config, Problems> {
        let Command::Demo(args) = self.command;
        let mut problems = Problems::default();
        let devices = problems.number("--devices", &args.devices, 1..=DEVICES_MAX);
        let sites = problems.number("--sites", &args.sites, 1..=devices.unwrap_or(DEVICES_MAX));
        let length = problems.optional("--seconds", args.seconds.as_deref(), |problems, flag, text| {
            problems.number(flag, text, SECONDS_MIN..=SECONDS_MAX).map(Duration::from_secs)
        });
        let given = problems.optional("--seed", args.seed.as_deref(), |problems, flag, text| {
            problems.number(flag, text, 0..=u64::MAX)
        });
        let log_format = problems.parse("--log-format", &args.log_format);
        // The demo's server is its own; what it listens on is known only when it is started.
        let nats_url = problems.parse("--nats-url", "nats://127.0.0.1");
        problems.finish(|| {
            Some(Config {
                devices: usize::try_from(devices?).ok()?,
                sites: usize::try_from(sites?).ok()?,
                length: length?,
                seed: given?.unwrap_or(seed),
                json: args.json,
                dir: args.dir,
                programs: args.bin_dir.unwrap_or(programs),
                nats_server: args.nats_server,
                common: Common {
                    nats_url: nats_url?,
                    creds: None,
                    tls_ca: None,
                    http_addr: None,
                    log_format: log_format?,
                    log_filter: args.log,
                },
            })
        })
    }
}

impl Config {
    /// `site-1`, `site-2` and so on.
    pub fn site_names(&self) -> Vec<String> {
        (1..=self.sites).map(|site| format!("site-{site}")).collect()
    }

    /// The devices, spread over the sites in turn.
    pub fn device_keys(&self) -> Vec<DeviceKey> {
        (0..self.devices)
            .filter_map(|at| {
                let site = format!("site-{}", at % self.sites + 1).parse().ok()?;
                let device = format!("device-{}", at / self.sites + 1).parse().ok()?;
                Some(DeviceKey { site, device })
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(words: &[&str]) -> Result<Config, Problems> {
        let cli = Cli::try_parse_from([&["muster-simulator", "demo"], words].concat()).unwrap();
        cli.check(7, PathBuf::from("bin"))
    }

    #[test]
    fn the_default_is_twenty_devices_at_four_sites() {
        let config = check(&[]).unwrap();
        let keys = config.device_keys();
        assert_eq!((keys.len(), config.site_names().len(), config.seed), (20, 4, 7));
        let distinct: std::collections::BTreeSet<_> = keys.iter().collect();
        assert_eq!(distinct.len(), 20);
        assert!(config.site_names().iter().all(|site| keys.iter().any(|key| key.site.as_str() == site)));
    }

    #[test]
    fn every_bad_setting_is_named_at_once() {
        let shown =
            check(&["--devices=0", "--seconds=1", "--seed=x", "--log-format=xml"]).unwrap_err().to_string();
        for flag in ["--devices=0", "--seconds=1", "--seed=x", "--log-format=xml"] {
            assert!(shown.contains(flag), "{shown}");
        }
    }
}
