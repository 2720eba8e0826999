//! The planner's settings.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use muster_service::config::{Common, CommonArgs, Problems};
use muster_service::version::VERSION;

use crate::webhook::WebhookConfig;

/// Shortest time between two questions to the publisher.
const EVERY_MIN: Duration = Duration::from_millis(100);
/// Shortest and longest time between two checkpoints.
const CHECKPOINT_EVERY: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(24 * 60 * 60);
/// Longest time between two questions to the publisher.
const EVERY_MAX: Duration = Duration::from_secs(60 * 60);

const GUIDE: &str = "\
A rollout.yaml in the repository of the fleet holds changes of its devices. The planner releases them wave by wave: a wave
follows once enough devices of the waves before it are heard and have confirmed the content. A device that is not heard
counts neither for nor against. A wave with 'approval: before' begins after `muster rollout approve`. A wave that fails
pauses the rollout, or rolls it back, as its file says.

The planner follows LEDGER, and decides nothing while it is behind LEDGER or cut off from it. With --data-dir it keeps a
checkpoint and reads only later facts at its start; the folder may be deleted while the planner is stopped.

A wave may name checks: requests over NATS on muster.check.>, and https webhooks. The planner asks webhooks only with
--webhook-secret, by which it signs each question, and at private addresses only those of hosts that --webhook-allow names.
On a hub with rights, programs with the role checker answer over NATS.

The planner also keeps plans: it answers muster.planner.*, and orders what approved operations need. On a hub with rights it
does so with credentials of the role scheduler (--plans-creds).

Without a planner changes stay held; `muster rollout next DEPLOYMENT` takes the same steps one by one.

Examples:
  muster-planner --nats-url nats://hub:4222 --creds planner.creds
  muster-planner --nats-url tls://hub:4222 --tls-ca ca.pem --creds planner.creds --http-addr 127.0.0.1:9106

Exit codes: 0 stopped when asked to; 1 something failed; 2 a setting cannot be used.";

/// Releases held changes wave by wave, as far as the evidence allows
#[derive(Debug, Parser)]
#[command(name = "muster-planner", version = VERSION, after_help = GUIDE)]
pub struct Cli {
    /// Time between two questions to the publisher: commits, decisions of persons
    #[arg(long, env = "MUSTER_PLAN_EVERY", value_name = "DURATION", default_value = "2s")]
    every: String,

    /// Folder of the checkpoint, from which the next start restores its state; without it a start reads all of LEDGER
    #[arg(long, env = "MUSTER_DATA_DIR", value_name = "DIR")]
    data_dir: Option<PathBuf>,

    /// Time between two checkpoints
    #[arg(long, env = "MUSTER_CHECKPOINT_EVERY", value_name = "DURATION", default_value = "5m")]
    checkpoint_every: String,

    /// File with the secret that signs questions to webhooks (HMAC-SHA-256, in the header Muster-Signature)
    #[arg(long, env = "MUSTER_WEBHOOK_SECRET_FILE", value_name = "FILE")]
    webhook_secret: Option<PathBuf>,

    /// File with certificates of the authorities of webhooks, in place of those of the system
    #[arg(long, env = "MUSTER_WEBHOOK_CA", value_name = "FILE")]
    webhook_ca: Option<PathBuf>,

    /// Host of webhooks, as HOST or HOST:PORT, that may have a private address; may be repeated
    #[arg(long, env = "MUSTER_WEBHOOK_ALLOW", value_name = "HOST", value_delimiter = ',')]
    webhook_allow: Vec<String>,

    /// Credentials of the role scheduler, by which the planner keeps plans. Without them, and with --creds, it keeps none
    #[arg(long, env = "MUSTER_PLANS_CREDS", value_name = "FILE")]
    plans_creds: Option<PathBuf>,

    #[command(flatten)]
    common: CommonArgs,
}

/// The settings, checked.
#[derive(Debug, Clone)]
pub struct Config {
    /// The settings of every service.
    pub common: Common,
    /// Time between two questions to the publisher.
    pub every: Duration,
    /// Folder of the checkpoint.
    pub data_dir: Option<PathBuf>,
    /// Time between two checkpoints.
    pub checkpoint_every: Duration,
    /// The settings of webhooks.
    pub webhooks: WebhookConfig,
    /// The credentials by which plans are kept.
    pub plans_creds: Option<PathBuf>,
}

impl Cli {
    /// The settings, checked.
    ///
    /// # Errors
    /// All problems of the settings.
    pub fn check(self) -> Result<Config, Problems> {
        let mut problems = Problems::default();
        let common = self.common.check(&mut problems);
        let every = problems.duration("--every", &self.every, EVERY_MIN..=EVERY_MAX);
        let allowed = self.webhook_allow.iter().map(|host| host.to_ascii_lowercase()).collect();
        let checkpoint_every =
            problems.duration("--checkpoint-every", &self.checkpoint_every, CHECKPOINT_EVERY);
        let (data_dir, plans_creds) = (self.data_dir, self.plans_creds);
        let webhooks = WebhookConfig { secret: self.webhook_secret, ca: self.webhook_ca, allowed };
        problems.finish(|| {
            let (common, every, checkpoint_every) = (common?, every?, checkpoint_every?);
            Some(Config { common, every, data_dir, checkpoint_every, webhooks, plans_creds })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_between_questions_has_a_default_and_bounds() {
        let check =
            |words: &[&str]| Cli::try_parse_from([&["muster-planner"], words].concat()).unwrap().check();
        assert_eq!(check(&[]).unwrap().every, Duration::from_secs(2));
        assert!(check(&["--every", "0s"]).is_err() && check(&["--every", "2h"]).is_err());
    }

    #[test]
    fn the_command_line_is_valid() {
        use clap::CommandFactory as _;
        Cli::command().debug_assert();
    }
}
