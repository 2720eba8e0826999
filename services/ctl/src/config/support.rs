//! The command line of `muster support`.

use std::path::PathBuf;

use clap::Args;

pub(super) const SUPPORT_EXAMPLES: &str = "\
Asks the hub what these credentials may ask, and writes one packed file: versions, streams and consumers, answers of the
services, metrics, logs. It reads no keys, credentials or environment, and leaves out of every text what looks like a secret.
Look it through before you send it. It has 64 MiB at most before it is packed; of a log, the last 8 MiB.

Examples:
  muster support -o support.tar.gz
  muster support -o support.tar.gz --metrics 127.0.0.1:9101 --metrics 127.0.0.1:9102 --log /var/log/nats.log
  journalctl -u muster-ingest --since -1h > ingest.log; muster support -o support.tar.gz --log ingest.log";

/// `muster support`
#[derive(Debug, Args)]
pub struct SupportArgs {
    /// The file to make
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// A service's --http-addr, for its metrics and readiness; repeatable
    #[arg(long, value_name = "HOST:PORT")]
    pub metrics: Vec<String>,
    /// A log to add without its secrets; repeatable
    #[arg(long, value_name = "FILE")]
    pub log: Vec<PathBuf>,
}
