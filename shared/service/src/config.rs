//! The settings of every service, from flags and `MUSTER_*` variables, and their checks.
//!
//! clap returns raw text; [`Problems`] parses it and collects every refused value, so that a person sees all of them at
//! once. A service flattens [`CommonArgs`] into its own arguments. This module opens no connection, and `--help` shows
//! every default.

mod arguments;
mod problems;
mod streams;
mod values;

use std::net::SocketAddr;
use std::path::PathBuf;

pub use arguments::{parse, try_parse};
pub use problems::{Problem, Problems, variable};
pub use streams::{StreamArgs, Streams, UPLINK_BYTES_MIN};
pub use values::{LogFormat, NatsUrl, ValueError};

/// The heading of these settings in `--help`.
const HEADING: &str = "Settings of every service";

/// The settings of every service as text.
#[derive(Debug, Clone, clap::Args)]
pub struct CommonArgs {
    /// NATS servers to connect to; several separated by commas
    #[arg(
        long,
        help_heading = HEADING,
        env = "MUSTER_NATS_URL",
        // It may hold a password, which `--help` must not show.
        hide_env_values = true,
        value_name = "URL",
        default_value = "nats://127.0.0.1:4222"
    )]
    pub nats_url: String,

    /// File with the NATS credentials (JWT and seed) to log in with
    #[arg(long, help_heading = HEADING, env = "MUSTER_CREDS", value_name = "FILE")]
    pub creds: Option<String>,

    /// File with the certificates (PEM) of the authority that signed the NATS server's certificate; the connection then
    /// always uses TLS. A tls:// address alone trusts the system's authorities
    #[arg(long, help_heading = HEADING, env = "MUSTER_TLS_CA", value_name = "FILE")]
    pub tls_ca: Option<String>,

    /// Address to serve /live, /ready and /metrics on, such as 127.0.0.1:9100; port 0 takes any free port. Once ready, a
    /// process stays ready: the body of /ready and the metric muster_link_up say whether NATS is reached now
    #[arg(long, help_heading = HEADING, env = "MUSTER_HTTP_ADDR", value_name = "IP:PORT")]
    pub http_addr: Option<String>,

    /// How to write the log on standard error: text or json
    #[arg(
        long,
        help_heading = HEADING,
        env = "MUSTER_LOG_FORMAT",
        value_name = "FORMAT",
        default_value = "text"
    )]
    pub log_format: String,

    /// Log filter: error, warn, info, debug or trace; or per module, such as info,muster_bus=debug (the NATS library
    /// only if it is named: async_nats=debug)
    #[arg(
        long,
        help_heading = HEADING,
        alias = "log-level",
        env = "MUSTER_LOG",
        value_name = "FILTER",
        default_value = "info"
    )]
    pub log: String,
}

/// The settings of every service, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Common {
    /// NATS servers to connect to.
    pub nats_url: NatsUrl,
    /// File with the NATS credentials; it existed when the settings were checked.
    pub creds: Option<PathBuf>,
    /// Certificates to trust besides the system's; the file existed when the settings were checked.
    pub tls_ca: Option<PathBuf>,
    /// The address to serve health and metrics on; `None` serves neither.
    pub http_addr: Option<SocketAddr>,
    /// The format of log lines.
    pub log_format: LogFormat,
    /// The filter of log lines, in `tracing` filter syntax.
    pub log_filter: String,
}

impl CommonArgs {
    /// The checked settings; `None` if one was refused, with the reason in `problems`.
    pub fn check(&self, problems: &mut Problems) -> Option<Common> {
        let nats_url = problems.parse("--nats-url", &self.nats_url);
        let creds = problems.optional("--creds", self.creds.as_deref(), Problems::file);
        let tls_ca = problems.optional("--tls-ca", self.tls_ca.as_deref(), Problems::file);
        let http_addr = problems.optional("--http-addr", self.http_addr.as_deref(), Problems::address);
        let log_format = problems.parse("--log-format", &self.log_format);
        let log_filter = problems.log_filter("--log", &self.log);
        Some(Common {
            nats_url: nats_url?,
            creds: creds?,
            tls_ca: tls_ca?,
            http_addr: http_addr?,
            log_format: log_format?,
            log_filter: log_filter?,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::{CommandFactory, Parser};

    use super::*;

    #[derive(Debug, Parser)]
    struct Args {
        #[command(flatten)]
        common: CommonArgs,
        /// Time after which a silent device is stale
        #[arg(long, env = "MUSTER_LEASE", default_value = "90s")]
        lease: String,
        /// Site of the device
        #[arg(long, env = "MUSTER_SITE")]
        site: Option<String>,
    }

    type Checked = Result<(Common, Duration, u16), Problems>;

    fn check(words: &[&str]) -> Checked {
        let args = Args::try_parse_from([&["test"], words].concat()).unwrap();
        let mut problems = Problems::default();
        let common = args.common.check(&mut problems);
        let lease =
            problems.duration("--lease", &args.lease, Duration::from_secs(5)..=Duration::from_secs(3600));
        let site = problems.required("--site", args.site.as_deref(), Problems::parse);
        problems.finish(|| Some((common?, lease?, site?)))
    }

    #[test]
    fn defaults_reach_a_local_server_and_serve_nothing() {
        let (common, lease, _) = check(&["--site", "7"]).unwrap();
        assert_eq!(common.nats_url.as_str(), "nats://127.0.0.1:4222");
        assert_eq!((common.creds, common.tls_ca, common.http_addr), (None, None, None));
        assert_eq!((common.log_format, common.log_filter.as_str()), (LogFormat::Text, "info"));
        assert_eq!(lease, Duration::from_secs(90));
    }

    #[test]
    fn every_bad_value_is_reported_with_flag_variable_value_and_rule() {
        let words = [
            "--nats-url=nats://a,http://me:secret@b:4222,nats://c:99999",
            "--creds=/no/such/file.creds",
            "--tls-ca=/no/such/ca.pem",
            "--http-addr=localhost",
            "--log-format=xml",
            "--log=muster=loud",
            "--lease=1s",
        ];
        let shown = check(&words).unwrap_err().to_string();
        assert_eq!(shown, include_str!("config/problems.golden"), "\n{shown}");
    }

    #[test]
    fn an_empty_value_is_not_the_same_as_none() {
        let shown = check(&["--site=7", "--creds=", "--http-addr="]).unwrap_err().to_string();
        assert_eq!(shown.matches("omit the setting").count(), 2, "{shown}");
    }

    #[test]
    fn each_flag_has_the_variable_of_its_name() {
        let command = Args::command();
        for argument in command.get_arguments().filter(|a| a.get_env().is_some()) {
            let flag = format!("--{}", argument.get_long().unwrap());
            assert_eq!(argument.get_env().unwrap().to_str(), Some(variable(&flag).as_str()));
        }
    }
}
