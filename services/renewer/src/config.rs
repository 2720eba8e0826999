//! The renewer's settings.

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use muster_service::config::{Common, CommonArgs, Problems};
use muster_service::version::VERSION;

/// Shortest and longest time between two looks at the roster.
const LOOK_MIN: Duration = Duration::from_millis(100);
/// See [`LOOK_MIN`].
const LOOK_MAX: Duration = Duration::from_secs(24 * 60 * 60);

const GUIDE: &str = "\
It signs the token of a device anew once half of its life is over, for as long a life, and hands it over by the hub; the \
device takes it up by itself. Only a device that is enrolled and was not revoked gets one. A token of which a tenth of \
its life or less is left is an incident of its device and counts in muster_renewer_tokens_ending.

Of DIR it reads authority.json, roster.json and signers/device.seed, and writes roster.json. It holds no other key, and no \
other service needs one of these.

Examples:
  muster-renewer --keys /var/lib/muster/auth --creds /var/lib/muster/auth/creds/renewer.creds
  muster-renewer --keys DIR --nats-url tls://hub:4222 --tls-ca ca.pem --http-addr 127.0.0.1:9104

Exit codes: 0 stopped when asked to; 1 something failed; 2 a setting cannot be used.";

/// Signs the tokens of enrolled devices anew before they end
#[derive(Debug, Parser)]
#[command(name = "muster-renewer", version = VERSION, after_help = GUIDE)]
pub struct Cli {
    /// The directory of keys that `muster auth init` made
    #[arg(long, env = "MUSTER_KEYS", value_name = "DIR")]
    keys: String,

    /// Time between two looks at who is enrolled
    #[arg(long, env = "MUSTER_RENEW_EVERY", value_name = "DURATION", default_value = "1m")]
    every: String,

    #[command(flatten)]
    common: CommonArgs,
}

/// The settings, checked.
#[derive(Debug, Clone)]
pub struct Config {
    /// What every service has.
    pub common: Common,
    /// The directory of keys.
    pub keys: PathBuf,
    /// Time between two looks.
    pub every: Duration,
}

impl Cli {
    /// The settings, checked.
    ///
    /// # Errors
    /// Everything that is wrong with them.
    pub fn check(self) -> Result<Config, Problems> {
        let mut problems = Problems::default();
        let common = self.common.check(&mut problems);
        let every = problems.duration("--every", &self.every, LOOK_MIN..=LOOK_MAX);
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
