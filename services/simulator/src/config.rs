//! The simulator's settings: one command for each program. Fixed timings and limits are constants of the code that uses them.

pub mod chaos;
pub mod cut;
pub mod demo;
pub mod lab;
pub mod link_proxy;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use muster_contract::DeviceKey;
use muster_service::config::{Common, Problems};
use muster_service::version::VERSION;

use self::chaos::ChaosArgs;
use self::cut::CutArgs;
use self::demo::DemoArgs;
use self::lab::LabCommand;
use self::link_proxy::LinkArgs;

/// Marks the directory of a run, which the next run may empty; locked during the run.
pub(crate) const MARKER: &str = ".muster-demo";
/// The default log filter.
pub const LOG_DEFAULT: &str = "info";
/// The NATS server to start if no other is named.
const NATS_SERVER_DEFAULT: &str = ".tools/nats-server";

/// Most devices of a run: each is a process of its own.
pub const DEVICES_MAX: u64 = 1000;
/// Longest run with an end.
pub const SECONDS_MAX: u64 = 24 * 60 * 60;

/// A fleet on flaky links on this machine
#[derive(Debug, Parser)]
#[command(name = "muster-simulator", version = VERSION, after_help = demo::EXAMPLES)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a whole fleet, break its links, and show what is true of it
    #[command(after_help = demo::EXAMPLES)]
    Demo(DemoArgs),
    /// Kill, freeze, cut off and fill up everything by a seed; heal; nothing may be lost, repeated or wrong
    #[command(after_help = chaos::EXAMPLES)]
    Chaos(ChaosArgs),
    /// One faulty link between clients and a server, as a process of its own
    #[command(after_help = link_proxy::EXAMPLES)]
    Link(LinkArgs),
    /// Cut the line of one client of a running link, until it is mended
    #[command(after_help = cut::EXAMPLES)]
    Cut(CutArgs),
    /// Mend the line of one client of a running link
    #[command(after_help = cut::EXAMPLES)]
    Mend(CutArgs),
    /// A fleet in containers: what it needs to start, and the enrolment of its devices
    #[command(subcommand, after_help = lab::EXAMPLES)]
    Lab(LabCommand),
}

/// The settings of the command that was given, checked.
#[derive(Debug, Clone)]
pub enum Settings {
    /// `demo`
    Demo(demo::DemoConfig),
    /// `chaos`
    Chaos(chaos::ChaosConfig),
    /// `link`
    Link(link_proxy::LinkProxyConfig),
    /// `cut` or `mend`
    Cut(cut::CutConfig),
    /// `lab prepare`
    Prepare(lab::Prepare),
    /// `lab admit`
    Admit(lab::Admit),
}

/// Where a run takes place.
#[derive(Debug, Clone)]
pub struct RunLocation {
    /// Directory of the run.
    pub dir: PathBuf,
    /// Where Muster's programs are.
    pub programs: PathBuf,
    /// The NATS server's program.
    pub nats_server: PathBuf,
}

/// Where a run takes place, as typed.
#[derive(Debug, Args)]
pub struct RunLocationArgs {
    /// Where Muster's programs are; beside this one if left out
    #[arg(long, env = "MUSTER_BIN_DIR", value_name = "DIR")]
    bin_dir: Option<PathBuf>,
    /// The NATS server to start
    #[arg(long, env = "MUSTER_NATS_SERVER", value_name = "FILE", default_value = NATS_SERVER_DEFAULT)]
    nats_server: PathBuf,
}

/// How the log is written, as typed.
#[derive(Debug, Args)]
pub struct LogArgs {
    /// How to write the log on standard error: text or json
    #[arg(long, env = "MUSTER_LOG_FORMAT", value_name = "FORMAT", default_value = "text")]
    log_format: String,
    /// Log filter: error, warn, info, debug or trace, or per module; if omitted beside a screen, only errors
    #[arg(long, env = "MUSTER_LOG", value_name = "FILTER", default_value = LOG_DEFAULT)]
    log: String,
}

impl Cli {
    /// The checked settings. `seed` is used where none is given, `programs` likewise.
    ///
    /// # Errors
    /// Every setting that cannot be used.
    pub fn check(self, seed: u64, programs: PathBuf) -> Result<Settings, Problems> {
        match self.command {
            Command::Demo(args) => args.check(seed, programs).map(Settings::Demo),
            Command::Chaos(args) => args.check(seed, programs).map(Settings::Chaos),
            Command::Link(args) => args.check(seed).map(Settings::Link),
            Command::Cut(args) => args.check(true).map(Settings::Cut),
            Command::Mend(args) => args.check(false).map(Settings::Cut),
            Command::Lab(LabCommand::Prepare(args)) => args.check().map(Settings::Prepare),
            Command::Lab(LabCommand::Admit(args)) => args.check().map(Settings::Admit),
        }
    }
}

impl Settings {
    /// The settings of every service.
    pub const fn common(&self) -> &Common {
        match self {
            Self::Demo(config) => &config.common,
            Self::Chaos(config) => &config.common,
            Self::Link(config) => &config.common,
            Self::Cut(config) => &config.common,
            Self::Prepare(config) => &config.common,
            Self::Admit(config) => &config.common,
        }
    }
}

impl RunLocationArgs {
    /// Refuses what was named and is not there. What is only where it is by default is looked for when it is needed.
    fn check(self, problems: &mut Problems, dir: PathBuf, programs: PathBuf) -> RunLocation {
        if let Some(dir) = self.bin_dir.as_ref().filter(|dir| !dir.is_dir()) {
            problems.refuse("--bin-dir", dir.display(), "must be a directory with Muster's programs");
        }
        if self.nats_server != Path::new(NATS_SERVER_DEFAULT) {
            problems.file("--nats-server", &self.nats_server.display().to_string());
        }
        let occupied = std::fs::read_dir(&dir).is_ok_and(|mut entries| entries.next().is_some());
        if occupied && !dir.join(MARKER).is_file() {
            let rule =
                "is not empty and was not made by a run of this program: it would be emptied; name another";
            problems.refuse("--dir", dir.display(), rule);
        }
        RunLocation { dir, programs: self.bin_dir.unwrap_or(programs), nats_server: self.nats_server }
    }
}

impl LogArgs {
    /// The settings of every service, for a program that is no client of the bus: its server is its own, or none.
    fn check(self, problems: &mut Problems) -> Option<Common> {
        let log_format = problems.parse("--log-format", &self.log_format);
        let nats_url = problems.parse("--nats-url", "nats://127.0.0.1");
        Some(Common {
            nats_url: nats_url?,
            creds: None,
            tls_ca: None,
            http_addr: None,
            log_format: log_format?,
            log_filter: self.log,
        })
    }
}

/// A seed as typed; `otherwise` if none is.
fn seed(problems: &mut Problems, flag: &'static str, text: Option<&str>, otherwise: u64) -> Option<u64> {
    let given =
        problems.optional(flag, text, |problems, flag, text| problems.number(flag, text, 0..=u64::MAX));
    given.map(|given| given.unwrap_or(otherwise))
}

/// A length in seconds, as typed.
fn seconds(problems: &mut Problems, text: &str, min: u64) -> Option<Duration> {
    problems.number("--seconds", text, min..=SECONDS_MAX).map(Duration::from_secs)
}

/// `site-1`, `site-2` and so on.
pub fn site_names(sites: usize) -> Vec<String> {
    (1..=sites).map(|site| format!("site-{site}")).collect()
}

/// The `number`th device of the `site`th site, both counted from 1.
pub fn device_key(site: usize, number: usize) -> Option<DeviceKey> {
    let (site, device) = (format!("site-{site}").parse().ok()?, format!("device-{number}").parse().ok()?);
    Some(DeviceKey { site, device })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    pub(super) fn check(words: &[&str]) -> Result<Settings, Problems> {
        let cli = Cli::try_parse_from([&["muster-simulator"], words].concat()).unwrap();
        cli.check(7, PathBuf::from("bin"))
    }

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }
}
