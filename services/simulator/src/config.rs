//! The simulator's settings: one command for each program. Fixed timings and limits are constants of the code that uses them.

pub mod chaos;
pub mod cut;
pub mod demo;
pub mod lab;
pub mod link_proxy;
pub mod log;
pub mod run;

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use muster_service::config::{Common, Problems};
use muster_service::version::VERSION;

use self::chaos::ChaosArgs;
use self::cut::CutArgs;
use self::demo::DemoArgs;
use self::lab::LabCommand;
use self::link_proxy::LinkArgs;

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
