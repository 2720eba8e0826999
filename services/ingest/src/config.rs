//! The settings of ingest.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use muster_contract::limits::DEPLOYMENTS_PER_DEVICE_MAX;
use muster_domain::intake::Rules;
use muster_domain::trim::Quota;
use muster_service::config::{Common, CommonArgs, Problems, StreamArgs, Streams};
use muster_service::version::VERSION;

use crate::partitions::Partitions;

/// Shortest lease. A lease should be longer than two heartbeats of the devices.
const LEASE_MIN: Duration = Duration::from_secs(1);
/// Longest lease.
const LEASE_MAX: Duration = Duration::from_secs(60 * 60);
/// Shortest deadline.
const DEADLINE_MIN: Duration = Duration::from_secs(1);
/// Longest deadline.
const DEADLINE_MAX: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Shortest time for which QUARANTINE may hold a rejected report.
const QUARANTINE_AGE_MIN: Duration = Duration::from_secs(1);
/// Longest time for which QUARANTINE may hold a rejected report.
const QUARANTINE_AGE_LONGEST: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Most reports a second that a quota may allow.
const REPORTS_PER_SECOND_MAX: u64 = 1_000_000;
/// Fewest bytes a second that a quota may allow: a report of the largest size in about a minute.
const BYTES_PER_SECOND_MIN: u64 = 4 * 1024;
/// Smallest burst: a device must be able to report all of its deployments again.
const BURST_REPORTS_MIN: u64 = DEPLOYMENTS_PER_DEVICE_MAX as u64;
/// Largest burst.
const BURST_REPORTS_MAX: u64 = 1_000_000_000;
/// How many deployments a device without any desired document may be allowed.
const UNSOLICITED_RANGE: RangeInclusive<u64> = 0..=DEPLOYMENTS_PER_DEVICE_MAX as u64;

const GUIDE: &str = "\
One process owns all 16 partitions by default. Two processes share the work with `--partitions 0-7` and `--partitions 8-15`;
a second process with the same partitions stands by until the first one stops.

Ingest restores its state from LEDGER at the start. With --data-dir it keeps snapshots and reads only later facts; the folder
may be deleted at any time.

A device may report the deployments that it was sent in the last 30 days. A device without any desired document may report
--unsolicited deployments; reports of others are quarantined (`muster quarantine list`).

Examples:
  muster-ingest
  muster-ingest --partitions 0-7 --http-addr 127.0.0.1:9101
  muster-ingest --lease 5m    for devices that send a heartbeat every two minutes

Exit codes: 0 stopped by a signal; 1 an error; 2 an invalid setting.";

/// Turns the reports of devices into facts in LEDGER: validates, orders and accounts for them, and decides which devices are fresh
#[derive(Debug, Parser)]
#[command(name = "muster-ingest", version = VERSION, after_help = GUIDE)]
pub struct Cli {
    /// Partitions that this process may own, from 0 to 15
    #[arg(long, env = "MUSTER_PARTITIONS", value_name = "LIST", default_value = "0-15")]
    partitions: String,

    /// Silence after which a device is stale; longer than two of its heartbeats
    #[arg(long, env = "MUSTER_LEASE", value_name = "DURATION", default_value = "90s")]
    lease: String,

    /// Time after which an unfinished deployment is overdue, if its components declare no timeouts
    #[arg(long, env = "MUSTER_DEADLINE_DEFAULT", value_name = "DURATION", default_value = "30m")]
    deadline_default: String,

    /// Reports a second that a device may send once it has used up its burst
    #[arg(long, env = "MUSTER_DEVICE_REPORTS_PER_SECOND", value_name = "N", default_value = "50")]
    device_reports_per_second: String,

    /// Bytes a second that a device may send once it has used up its burst, headers included
    #[arg(long, env = "MUSTER_DEVICE_BYTES_PER_SECOND", value_name = "SIZE", default_value = "64KiB")]
    device_bytes_per_second: String,

    /// Reports that a device may send at any speed; its burst of bytes is in proportion
    #[arg(long, env = "MUSTER_DEVICE_BURST_REPORTS", value_name = "N", default_value = "100000")]
    device_burst_reports: String,

    /// Deployments that a device without any desired document may report within 30 days; 0 to 128
    #[arg(long, env = "MUSTER_UNSOLICITED", value_name = "COUNT", default_value = "8")]
    unsolicited: String,

    /// Time for which QUARANTINE holds a rejected report; then ingest records that it expired, and removes it
    #[arg(long, env = "MUSTER_QUARANTINE_MAX_AGE", value_name = "DURATION", default_value = "720h")]
    quarantine_max_age: String,

    /// Folder for snapshots, from which the next start restores its state; without it a start reads all of LEDGER
    #[arg(long, env = "MUSTER_DATA_DIR", value_name = "DIR")]
    data_dir: Option<PathBuf>,

    /// File with the credentials of the user that counts connections at the servers (`muster auth` makes
    /// creds/watcher.creds). Without it, connections are not counted
    #[arg(long, env = "MUSTER_SYSTEM_CREDS", value_name = "FILE")]
    system_creds: Option<PathBuf>,

    #[command(flatten)]
    streams: StreamArgs,

    #[command(flatten)]
    common: CommonArgs,
}

/// The settings, checked.
#[derive(Debug, Clone)]
pub struct Config {
    /// The settings that every service has.
    pub common: Common,
    /// How streams are made, if this service makes them.
    pub streams: Streams,
    /// Partitions that this process may own.
    pub partitions: Partitions,
    /// Folder for snapshots.
    pub data_dir: Option<PathBuf>,
    /// Lease, deadline and unsolicited deployments.
    pub rules: Rules,
    /// The quota of a device.
    pub quota: Quota,
    /// How long QUARANTINE holds a rejected report.
    pub quarantine_max_age: Duration,
    /// Credentials of the user that counts connections, if they are to be counted.
    pub system_creds: Option<PathBuf>,
}

impl Cli {
    /// Checks the settings.
    ///
    /// # Errors
    /// All invalid settings.
    pub fn check(self) -> Result<Config, Problems> {
        let mut problems = Problems::default();
        let common = self.common.check(&mut problems);
        let streams = self.streams.check(&mut problems);
        let partitions = problems.parse("--partitions", &self.partitions);
        let lease = problems.duration("--lease", &self.lease, LEASE_MIN..=LEASE_MAX);
        let deadline_default =
            problems.duration("--deadline-default", &self.deadline_default, DEADLINE_MIN..=DEADLINE_MAX);
        let reports = problems.number(
            "--device-reports-per-second",
            &self.device_reports_per_second,
            1..=REPORTS_PER_SECOND_MAX,
        );
        let bytes =
            problems.size("--device-bytes-per-second", &self.device_bytes_per_second, BYTES_PER_SECOND_MIN);
        let burst = problems.number(
            "--device-burst-reports",
            &self.device_burst_reports,
            BURST_REPORTS_MIN..=BURST_REPORTS_MAX,
        );
        let quarantine_max_age = problems.duration(
            "--quarantine-max-age",
            &self.quarantine_max_age,
            QUARANTINE_AGE_MIN..=QUARANTINE_AGE_LONGEST,
        );
        let unsolicited = problems.number("--unsolicited", &self.unsolicited, UNSOLICITED_RANGE);
        problems.finish(|| {
            let unsolicited = usize::try_from(unsolicited?).ok()?;
            let rules = Rules { lease: lease?, deadline_default: deadline_default?, unsolicited };
            Some(Config {
                common: common?,
                streams: streams?,
                partitions: partitions?,
                data_dir: self.data_dir,
                rules,
                system_creds: self.system_creds,
                quota: Quota::new(reports?, bytes?, burst?),
                quarantine_max_age: quarantine_max_age?,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(words: &[&str]) -> Result<Config, Problems> {
        Cli::try_parse_from([&["muster-ingest"], words].concat()).unwrap().check()
    }

    #[test]
    fn the_defaults_are_the_contracts() {
        let config = check(&[]).unwrap();
        assert_eq!((config.rules, config.quota), (Rules::default(), Quota::default()));
        assert_eq!(config.partitions.iter().count(), 16);
        assert_eq!(config.quarantine_max_age, muster_contract::limits::QUARANTINE_AGE_MAX);
    }

    #[test]
    fn all_invalid_settings_are_reported_at_once() {
        let words = [
            "--partitions=0-16",
            "--lease=0s",
            "--deadline-default=soon",
            "--unsolicited=129",
            "--quarantine-max-age=0s",
            "--http-addr=here",
            "--uplink-max-bytes=much",
            "--replicas=2",
            "--device-reports-per-second=0",
            "--device-bytes-per-second=1KiB",
            "--device-burst-reports=1",
        ];
        let shown = check(&words).unwrap_err().to_string();
        let flags = [
            "--partitions",
            "--lease",
            "--deadline-default",
            "--unsolicited",
            "--quarantine-max-age",
            "--http-addr",
            "--uplink-max-bytes",
            "--replicas",
            "--device-reports-per-second",
            "--device-bytes-per-second",
            "--device-burst-reports",
        ];
        for flag in flags {
            assert!(shown.contains(flag), "{flag} is missing:\n{shown}");
        }
    }

    #[test]
    fn the_command_line_is_sound() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }
}
