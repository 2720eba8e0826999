//! The settings of the log.

use clap::Args;
use muster_service::config::{Common, Problems};

/// The default log filter.
pub(crate) const LOG_DEFAULT: &str = "info";

/// How the log is written, as typed.
#[derive(Debug, Args)]
pub(crate) struct LogArgs {
    /// How to write the log on standard error: text or json
    #[arg(long, env = "MUSTER_LOG_FORMAT", value_name = "FORMAT", default_value = "text")]
    log_format: String,
    /// Log filter: error, warn, info, debug or trace, or per module; if omitted beside a screen, only errors
    #[arg(long, env = "MUSTER_LOG", value_name = "FILTER", default_value = LOG_DEFAULT)]
    log: String,
}

impl LogArgs {
    /// The settings of every service, for a program that is no client of the bus: its server is its own, or none.
    pub(super) fn check(self, problems: &mut Problems) -> Option<Common> {
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
