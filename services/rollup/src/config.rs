//! Reads the rollup's settings.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use muster_service::config::{Common, CommonArgs, Problems, StreamArgs, Streams};
use muster_service::version::VERSION;

use crate::history::checkpoint_retention::Room;
use crate::snapshot::Cadence;

/// Shortest and longest time between two snapshots.
const SNAPSHOT_EVERY_MIN: Duration = Duration::from_millis(100);
/// Longest time between two snapshots that may be set.
const SNAPSHOT_EVERY_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// Most facts between two snapshots: changes since the last one are held twice until they are written, and read
/// again after a crash.
const SNAPSHOT_FACTS_MAX: u64 = 10_000_000;

/// Fewest and most facts between two checkpoints.
const CHECKPOINT_FACTS: RangeInclusive<u64> = 1..=1_000_000_000;
/// Shortest and longest time between two checkpoints.
const CHECKPOINT_EVERY: RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(7 * 24 * 60 * 60);
/// Shortest and longest validity of a view: one is renewed at half of it.
const VIEW_VALIDITY: RangeInclusive<Duration> = Duration::from_secs(10)..=Duration::from_secs(24 * 60 * 60);
/// Least room for checkpoints that is of use: one of a small fleet.
const HISTORY_BYTES_MIN: u64 = 64 * 1024;
/// Most checkpoints that are kept, however small: who reads their list reads it whole.
const CHECKPOINTS_MAX: usize = 1000;

const GUIDE: &str = "\
Questions it answers (NATS service 'muster-query'): muster.query.deployment, deployments, device, devices,
site, fleet, labels, groups, group, views, view, status, why, actions, timeline and parts; `muster status`, `muster
devices`, `muster groups`, `muster view`, `muster why` and `muster timeline` ask them. Of the past: muster.query.moment,
digests, diff and verify, and any of the others but timeline, views and view with a point (`muster status --at`, `muster diff`, `muster verify`).
muster.view.apply and remove change what people have defined (`muster view apply -f FILE`).

It tells subscribers what has changed (NATS service 'muster-notify': muster.notify.subscribe, confirm, unsubscribe and
list); `muster watch DEPLOYMENT` is one. Of several rollups one tells, and a restart tells nothing twice.

The data directory holds a snapshot, so that a restart reads only what LEDGER took in since, and checkpoints, so that
any point of the past is reached by reading little of LEDGER. It may be deleted at any time while the rollup is
stopped: everything is read again then, but points that are older than LEDGER's first fact are lost. Two rollups need
two directories.

Examples:
  muster-rollup --data-dir /var/lib/muster-rollup
  muster-rollup --data-dir ./rollup --nats-url nats://hub:4222 --http-addr 127.0.0.1:9102

Exit codes: 0 stopped when asked to; 1 something failed; 2 a setting cannot be used.";

/// Derives what is true of every deployment, site and fleet from LEDGER
#[derive(Debug, Parser)]
#[command(name = "muster-rollup", version = VERSION, after_help = GUIDE)]
pub struct Cli {
    /// Directory of the snapshot; made if it does not exist
    #[arg(long, env = "MUSTER_DATA_DIR", value_name = "DIR")]
    data_dir: Option<String>,

    /// Longest time between two snapshots while facts come in
    #[arg(long, env = "MUSTER_SNAPSHOT_EVERY", value_name = "DURATION", default_value = "30s")]
    snapshot_every: String,

    /// Facts between two snapshots; more where they would make snapshots take more than a tenth of the time. While LEDGER is
    /// being caught up with, only the time counts
    #[arg(long, env = "MUSTER_SNAPSHOT_FACTS", value_name = "N", default_value = "50000")]
    snapshot_facts: String,

    /// Longest time between two checkpoints while facts come in
    #[arg(long, env = "MUSTER_CHECKPOINT_EVERY", value_name = "DURATION", default_value = "1h")]
    checkpoint_every: String,

    /// Most facts between two checkpoints, while there is room; a point of the past is reached by reading no more of LEDGER.
    /// Those there was no time for while LEDGER was caught up with are filled in afterwards
    #[arg(long, env = "MUSTER_CHECKPOINT_FACTS", value_name = "N", default_value = "100000")]
    checkpoint_facts: String,

    /// Room for checkpoints; where it is short, they lie the further apart the older they are
    #[arg(long, env = "MUSTER_HISTORY_BYTES", value_name = "SIZE", default_value = "2GiB")]
    history_bytes: String,

    /// How long a view in the bucket may be believed after the rollup was last sure of it; longer where there are more views than
    /// 50 renewals a second reach. A dead rollup shows after that time, and each view is written twice in it
    #[arg(long, env = "MUSTER_VIEW_VALIDITY", value_name = "DURATION", default_value = "2m")]
    view_validity: String,

    /// Ignore snapshot and checkpoints (they are set aside) and read LEDGER from its start
    #[arg(long, env = "MUSTER_REBUILD")]
    rebuild: bool,

    /// File with the credentials of the keeper (`muster auth init` makes creds/keeper.creds): the rollup then keeps the
    /// mirrors of LEDGER and of the bucket views that people read on a hub with accounts
    #[arg(long, env = "MUSTER_READERS_CREDS", value_name = "FILE")]
    readers_creds: Option<String>,

    /// Tag of the NATS servers that hold the mirrors (`server_tags` in their configuration); any server if not given. With
    /// another tag the mirrors move there while everything runs
    #[arg(long, env = "MUSTER_READERS_TAG", value_name = "TAG", requires = "readers_creds")]
    readers_tag: Option<String>,

    #[command(flatten)]
    streams: StreamArgs,

    #[command(flatten)]
    common: CommonArgs,
}

/// The settings, checked.
#[derive(Debug, Clone)]
pub struct Config {
    /// Settings common to all services.
    pub common: Common,
    /// How streams are made, if this service makes them.
    pub streams: Streams,
    /// The directory of the snapshot.
    pub data_dir: PathBuf,
    /// When a snapshot is due.
    pub cadence: Cadence,
    /// When the snapshot is kept as a checkpoint.
    pub checkpoints: Cadence,
    /// Room for checkpoints.
    pub room: Room,
    /// The shortest validity of a view.
    pub view_validity: Duration,
    /// Snapshot and checkpoints are ignored.
    pub rebuild: bool,
    /// The keeper's credentials and the tag of the servers that hold the mirrors; no mirrors if none.
    pub readers: Option<Readers>,
}

/// How the mirrors are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Readers {
    /// The keeper's credentials.
    pub creds: PathBuf,
    /// The tag of the servers that hold the mirrors; any server if none.
    pub tag: Option<String>,
}

impl Cli {
    /// The settings, checked.
    ///
    /// # Errors
    /// Everything that is wrong with them.
    pub fn check(self) -> Result<Config, Problems> {
        let mut problems = Problems::default();
        let common = self.common.check(&mut problems);
        let streams = self.streams.check(&mut problems);
        let data_dir = problems.required("--data-dir", self.data_dir.as_deref(), directory);
        let every = problems.duration(
            "--snapshot-every",
            &self.snapshot_every,
            SNAPSHOT_EVERY_MIN..=SNAPSHOT_EVERY_MAX,
        );
        let facts = problems.number("--snapshot-facts", &self.snapshot_facts, 1..=SNAPSHOT_FACTS_MAX);
        let checkpoint_every =
            problems.duration("--checkpoint-every", &self.checkpoint_every, CHECKPOINT_EVERY);
        let checkpoint_facts =
            problems.number("--checkpoint-facts", &self.checkpoint_facts, CHECKPOINT_FACTS);
        let view_validity = problems.duration("--view-validity", &self.view_validity, VIEW_VALIDITY);
        let creds = problems.optional("--readers-creds", self.readers_creds.as_deref(), Problems::file);
        let bytes = problems.size("--history-bytes", &self.history_bytes, HISTORY_BYTES_MIN);
        problems.finish(|| {
            Some(Config {
                common: common?,
                streams: streams?,
                data_dir: data_dir?,
                cadence: Cadence { every: every?, facts: facts? },
                checkpoints: Cadence { every: checkpoint_every?, facts: checkpoint_facts? },
                room: Room { count: CHECKPOINTS_MAX, bytes: bytes? },
                view_validity: view_validity?,
                rebuild: self.rebuild,
                readers: creds?.map(|creds| Readers { creds, tag: self.readers_tag }),
            })
        })
    }
}

fn directory(problems: &mut Problems, flag: &'static str, text: &str) -> Option<PathBuf> {
    if text.is_empty() {
        problems.refuse(flag, text, "must name a directory");
        return None;
    }
    Some(PathBuf::from(text))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::publish::renew::VALID_MIN;

    fn check(words: &[&str]) -> Result<Config, Problems> {
        Cli::try_parse_from([&["muster-rollup"], words].concat()).unwrap().check()
    }

    #[test]
    fn only_the_data_directory_must_be_given() {
        let config = check(&["--data-dir", "/var/lib/rollup"]).unwrap();
        assert_eq!(config.data_dir, PathBuf::from("/var/lib/rollup"));
        assert_eq!(config.cadence, Cadence { every: Duration::from_secs(30), facts: 50_000 });
        assert_eq!(config.view_validity, VALID_MIN);
        assert!(check(&[]).unwrap_err().to_string().contains("--data-dir"));
    }

    #[test]
    fn everything_wrong_is_said_at_once() {
        let wrong = [
            "--data-dir=",
            "--snapshot-every=0s",
            "--snapshot-facts=none",
            "--history-bytes=1",
            "--view-validity=5s",
        ];
        let shown = check(&wrong).unwrap_err().to_string();
        for flag in
            ["--data-dir", "--snapshot-every", "--snapshot-facts", "--history-bytes", "--view-validity"]
        {
            assert!(shown.contains(flag), "{flag} is missing:\n{shown}");
        }
    }

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }
}
