//! The renewer's settings.

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use muster_service::config::{Common, CommonArgs, Problems};
use muster_service::version::VERSION;

/// Shortest time between two rounds.
const EVERY_MIN: Duration = Duration::from_millis(100);
/// Longest time between two rounds.
const EVERY_MAX: Duration = Duration::from_secs(24 * 60 * 60);

const GUIDE: &str = "\
It renews the token of a device at half of its lifetime, for the same lifetime, and delivers it over the hub; the device \
switches to it without a restart. Only an enrolled device that is not revoked gets a token. A token with a tenth of its \
lifetime or less is an incident of its device and counts in muster_renewer_tokens_ending.

It reads authority.json, roster.json and signers/device.seed of DIR, and writes roster.json. It holds no other key, and no \
other service needs these files.

Examples:
  muster-renewer --keys /var/lib/muster/auth --creds /var/lib/muster/auth/creds/renewer.creds
  muster-renewer --keys DIR --nats-url tls://hub:4222 --tls-ca ca.pem --http-addr 127.0.0.1:9104

Exit codes: 0 stopped when asked to; 1 something failed; 2 a setting cannot be used.";

/// Renews the tokens of enrolled devices before they expire
#[derive(Debug, Parser)]
#[command(name = "muster-renewer", version = VERSION, after_help = GUIDE)]
pub(crate) struct Cli {
    /// The directory of keys that `muster auth init` created
    #[arg(long, env = "MUSTER_KEYS", value_name = "DIR")]
    keys: String,

    /// Time between two rounds of renewal
    #[arg(long, env = "MUSTER_RENEW_EVERY", value_name = "DURATION", default_value = "1m")]
    every: String,

    #[command(flatten)]
    common: CommonArgs,
}

/// The settings, checked.
#[derive(Debug, Clone)]
pub struct Config {
    /// The settings of every service.
    pub common: Common,
    /// The directory of keys.
    pub keys: PathBuf,
    /// Time between two rounds.
    pub every: Duration,
}

impl Cli {
    /// The settings, checked.
    ///
    /// # Errors
    /// All problems of the settings.
    pub(crate) fn check(self) -> Result<Config, Problems> {
        let mut problems = Problems::default();
        let common = self.common.check(&mut problems);
        let every = problems.duration("--every", &self.every, EVERY_MIN..=EVERY_MAX);
        if self.keys.is_empty() {
            problems.refuse("--keys", "", "names no directory");
        }
        problems.finish(|| Some(Config { common: common?, keys: self.keys.into(), every: every? }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_of_keys_is_required_and_the_rest_has_defaults() {
        let check = |words: &[&str]| Cli::try_parse_from([&["muster-renewer"], words].concat());
        assert!(check(&[]).is_err());
        let config = check(&["--keys", "/k"]).unwrap().check().unwrap();
        assert_eq!((config.keys, config.every), (PathBuf::from("/k"), Duration::from_secs(60)));
        assert!(check(&["--keys", "/k", "--every", "0s"]).unwrap().check().is_err());
    }

    #[test]
    fn the_command_line_is_sound() {
        use clap::CommandFactory as _;
        Cli::command().debug_assert();
    }
}
