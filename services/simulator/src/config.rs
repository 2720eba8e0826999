//! The simulator's settings. Fixed tempo and limits are constants where they are used.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use muster_contract::DeviceKey;
use muster_service::config::{Common, Problems};
use muster_service::version::VERSION;

use crate::demo::MARKER;

/// What is logged if nothing else is asked for.
pub const LOG_DEFAULT: &str = "info";
/// Sites of a fleet that is large enough for them.
const SITES_DEFAULT: u64 = 4;
/// The NATS server to start if no other is named.
const NATS_SERVER_DEFAULT: &str = ".tools/nats-server";
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
    /// Devices, at most 200, each an agent of its own behind a link of its own
    #[arg(long, env = "MUSTER_DEVICES", default_value = "20")]
    devices: String,
    /// Sites over which the devices are spread, at most as many [default: 4, or the number of devices if that is less]
    #[arg(long, env = "MUSTER_SITES")]
    sites: Option<String>,
    /// Run so many seconds, at least 20, and then say how it went; until Ctrl-C if left out
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
    #[arg(long, env = "MUSTER_NATS_SERVER", value_name = "FILE", default_value = NATS_SERVER_DEFAULT)]
    nats_server: PathBuf,
    /// How to write the log on standard error: text or json
    #[arg(long, env = "MUSTER_LOG_FORMAT", value_name = "FORMAT", default_value = "text")]
    log_format: String,
    /// What to log: error, warn, info, debug or trace, or per module; beside a picture only errors if left out
    #[arg(long, env = "MUSTER_LOG", value_name = "FILTER", default_value = LOG_DEFAULT)]
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
        let sites_max = devices.unwrap_or(DEVICES_MAX);
        let sites = problems.optional("--sites", args.sites.as_deref(), |problems, flag, text| {
            problems.number(flag, text, 1..=sites_max)
        });
        let length = problems.optional("--seconds", args.seconds.as_deref(), |problems, flag, text| {
            problems.number(flag, text, SECONDS_MIN..=SECONDS_MAX).map(Duration::from_secs)
        });
        let given = problems.optional("--seed", args.seed.as_deref(), |problems, flag, text| {
            problems.number(flag, text, 0..=u64::MAX)
        });
        let log_format = problems.parse("--log-format", &args.log_format);
        // The demo's server is its own; what it listens on is known only when it is started.
        let nats_url = problems.parse("--nats-url", "nats://127.0.0.1");
        check_places(&mut problems, &args);
        problems.finish(|| {
            Some(Config {
                devices: usize::try_from(devices?).ok()?,
                sites: usize::try_from(sites?.unwrap_or(SITES_DEFAULT.min(sites_max))).ok()?,
                length: length?,
                seed: given?.unwrap_or(seed),
                json: args.json,
                dir: args.dir,
                programs: args.bin_dir.unwrap_or(programs),
                nats_server: args.nats_server,
                common: Common {
                    nats_url: nats_url?,
                    creds: None,
                    http_addr: None,
                    log_format: log_format?,
                    log_filter: args.log,
                },
            })
        })
    }
}

/// Refuses what was named and is not there. What is only where it is by default is looked for when it is needed.
fn check_places(problems: &mut Problems, args: &DemoArgs) {
    let named_dir = args.bin_dir.as_ref().filter(|dir| !dir.is_dir());
    if let Some(dir) = named_dir {
        problems.refuse("--bin-dir", dir.display(), "must be a directory with Muster's programs");
    }
    if args.nats_server != Path::new(NATS_SERVER_DEFAULT) {
        problems.file("--nats-server", &args.nats_server.display().to_string());
    }
    let occupied = std::fs::read_dir(&args.dir).is_ok_and(|mut entries| entries.next().is_some());
    if occupied && !args.dir.join(MARKER).is_file() {
        let rule = "is not empty and was not made by a demo: it would be emptied; name another";
        problems.refuse("--dir", args.dir.display(), rule);
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
    fn a_small_fleet_has_no_more_sites_than_devices() {
        assert_eq!(check(&["--devices=2"]).unwrap().sites, 2);
        assert_eq!(check(&["--devices=2", "--sites=1"]).unwrap().sites, 1);
        let shown = check(&["--devices=2", "--sites=3"]).unwrap_err().to_string();
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
        let shown = check(&bad).unwrap_err().to_string();
        for flag in bad {
            assert!(shown.contains(flag), "{flag} is missing: {shown}");
        }
    }

    #[test]
    fn the_help_says_the_limits() {
        use clap::CommandFactory as _;
        let mut command = Cli::command();
        let demo = command.find_subcommand_mut("demo").unwrap();
        let help = demo.render_long_help().to_string();
        for limit in [format!("at most {DEVICES_MAX}"), format!("at least {SECONDS_MIN}")] {
            assert!(help.contains(&limit), "{limit} is missing: {help}");
        }
    }
}
