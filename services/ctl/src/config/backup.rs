//! The command line of `muster backup` and `muster restore`.

use std::path::PathBuf;

use clap::Args;

pub(super) const BACKUP_EXAMPLES: &str = "\
Copies the streams LEDGER, DOWNLINK, KV_views, KV_http_devices, QUARANTINE, NOTICES and PLANS while the hub runs, with
their sequence numbers and times. Devices send again what is younger than the copy. The directory holds keys if --keys
is given: keep it as secret as they are. On a hub with keys, the role maintainer alone may copy streams.

Examples:
  muster backup -o /backup/2026-11-26 --creds maintainer.creds --keys /var/lib/muster-keys/auth
  muster backup -o /backup/keys --without-streams --keys /var/lib/muster-keys/auth     where the keys are; no server needed
  muster backup -o /backup/rollup --without-streams --rollup-data /var/lib/private/muster-rollup
                                         while muster-rollup is stopped: points of the past before LEDGER's first fact
  muster restore --from /backup/2026-11-26                   checks every byte, and says what it holds";

pub(super) const RESTORE_HELP: &str = "\
Without --from it looks at the streams and the services and changes nothing. Streams that the credentials do not show are
named as not visible; the answers of the services say then whether they work. Exit code 1: something is missing, or LEDGER
was replaced within 24 hours.

With --from it checks a backup of `muster backup`, and restores what is named: --keys, --rollup-data, --streams. It writes
over nothing: directories must be empty, and the server must have none of the streams. Restore keys and start nats-server
with them first, then the streams and the rollup's databases, then start the services.

Examples:
  muster restore
  muster restore --format json | jq '.steps[].command'
  muster restore --from /backup/2026-11-26 --keys /var/lib/muster-keys/auth
  muster restore --from /backup/2026-11-26 --streams --creds maintainer.creds
  muster restore --from /backup/rollup --rollup-data /var/lib/private/muster-rollup --creds maintainer.creds";

/// `muster backup`
#[derive(Debug, Args)]
pub struct BackupArgs {
    /// The directory to make for the backup
    #[arg(short, long, value_name = "DIR")]
    pub output: PathBuf,
    /// Copy this directory of keys too
    #[arg(long, value_name = "DIR")]
    pub keys: Option<PathBuf>,
    /// Copy the databases in this data directory of a muster-rollup that is stopped
    #[arg(long, value_name = "DIR")]
    pub rollup_data: Option<PathBuf>,
    /// Leave the streams out, which needs no server
    #[arg(long)]
    pub without_streams: bool,
}

/// `muster restore`
#[derive(Debug, Default, Args)]
pub struct RestoreArgs {
    /// A directory that `muster backup` made
    #[arg(long, value_name = "DIR")]
    pub from: Option<PathBuf>,
    /// Restore the directory of keys here
    #[arg(long, value_name = "DIR", requires = "from")]
    pub keys: Option<PathBuf>,
    /// Restore the databases of a muster-rollup here, for the LEDGER of the server
    #[arg(long, value_name = "DIR", requires = "from")]
    pub rollup_data: Option<PathBuf>,
    /// Restore the streams
    #[arg(long, requires = "from")]
    pub streams: bool,
}
