//! The agent's settings: what a person typed, checked into what the agent works with. Defaults stand beside the flags.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use muster_contract::desired::ProfileType;
use muster_contract::limits::DEPLOYMENTS_PER_DEVICE_MAX;
use muster_contract::{DeviceId, DeviceKey};
use muster_service::{Common, CommonArgs, Problems};

use muster_bus::config::PINGS_UNTIL_LOST;

use crate::attempts::CrashLoopRule;
use crate::name;
use crate::outbox::{Limits, REPORT_BYTES_MAX};
use crate::reconcile::{OnExit, Retry};
use crate::relay::budget::Rate;
use crate::schedule::{Schedule, WINDOWS_MAX, Window};

/// Pings between two heartbeats: a link that no longer answers is found within two heartbeats, with time to spare.
pub const PINGS_PER_HEARTBEAT: u32 = 2;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(60 * 60);
const HEARTBEAT_BOUNDS: RangeInclusive<Duration> = Duration::from_millis(100)..=HOUR;
const RECONNECT_BOUNDS: RangeInclusive<Duration> = Duration::from_millis(100)..=HOUR;
const POLL_BOUNDS: RangeInclusive<Duration> = SECOND..=Duration::from_secs(24 * 60 * 60);
const RETRY_BOUNDS: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(24 * 60 * 60);
/// One failure is no loop, and more than this nobody waits for.
const CRASH_LOOP_FAILURES_BOUNDS: RangeInclusive<u64> = 2..=1_000;
const CRASH_LOOP_WINDOW_BOUNDS: RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(24 * 60 * 60);
/// Fewer rows could not hold the newest report of every deployment beside some history.
const ROWS_BOUNDS: RangeInclusive<u64> = 1_000..=100_000_000;
/// Fewer bytes neither, with reports of the largest size.
const BYTES_LEAST: u64 = 32 * 1024 * 1024;
const BYTES_MOST: u64 = 1 << 40;
/// Labels that a device says of itself: they go out with every report of its capabilities.
const OWN_LABELS_MAX: usize = 64;
/// Bytes of one of them, its name included.
const OWN_LABEL_BYTES_MAX: usize = 512;

const _: () = {
    assert!(*ROWS_BOUNDS.start() > 2 * DEPLOYMENTS_PER_DEVICE_MAX as u64);
    assert!(BYTES_LEAST > (REPORT_BYTES_MAX * DEPLOYMENTS_PER_DEVICE_MAX) as u64);
    assert!(OWN_LABELS_MAX * OWN_LABEL_BYTES_MAX * 2 < REPORT_BYTES_MAX);
    assert!(PINGS_UNTIL_LOST < 2 * PINGS_PER_HEARTBEAT);
    assert!(SECOND.as_millis() > HEARTBEAT_BOUNDS.start().as_millis());
};

/// Runs what one device shall run and reports every change to the hub, also through outages.
#[derive(Debug, Clone, clap::Parser)]
#[command(name = "muster-agent", version = muster_service::VERSION)]
#[command(after_help = "\
The agent needs no hub to start: it runs what it last accepted, keeps its reports in DIR, and sends them \
when there is a connection. Workloads outlive it; the next agent with the same DIR finds them again.

Hours are those of this machine unless a time zone stands behind them. Outside of the polling hours the device takes no new desired state and still reports; in a downtime it neither connects nor complains.

Examples:
  muster-agent --site plant7 --device press-4 --data-dir /var/lib/muster --label line=press
  muster-agent … --uplink-limit 64kbit --polling-hours 22:00-06:00 --downtime '01:30-02:00 UTC'

A device of a guarded hub makes its own key, which never leaves it, and gets a JWT for it:
  muster-agent key --data-dir /var/lib/muster               prints the public key, for `muster enroll`
  muster-agent accept --data-dir /var/lib/muster FILE       keeps the JWT that came back, also a renewed one
An agent that runs takes a renewed JWT up by itself. --creds goes before what is in DIR.
With --join FOLDER the agent does both by itself: it leaves SITE_DEVICE.key there and takes SITE_DEVICE.jwt.")]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    /// What to do instead of running.
    #[command(subcommand)]
    pub command: Option<IdentityCommand>,

    /// Site of this device: 1 to 63 characters of a-z, 0-9 and '-'
    #[arg(long, env = "MUSTER_SITE", value_name = "SITE")]
    pub site: Option<String>,

    /// Name of this device within its site, of the same characters; @host is the one that DIR has, else the host's
    #[arg(long, env = "MUSTER_DEVICE", value_name = "DEVICE")]
    pub device: Option<String>,

    /// Where the agent keeps its database and its workloads' files; one directory a device
    #[arg(long, env = "MUSTER_DATA_DIR", value_name = "DIR")]
    pub data_dir: Option<String>,

    /// How workloads run: process (programs of this machine), compose (containers, by the Compose command of this
    /// machine) or simulated (pretended, for trials)
    #[arg(long, env = "MUSTER_RUNTIME", value_name = "RUNTIME", default_value = "process")]
    pub runtime: String,

    /// Folder to join the fleet by: the public key is left there, and the JWT for it taken from there
    #[arg(long, env = "MUSTER_JOIN", value_name = "FOLDER")]
    pub join: Option<String>,

    /// Label of this device; may be given several times, or with commas in between
    #[arg(long, env = "MUSTER_LABEL", value_name = "NAME=VALUE", value_delimiter = ',')]
    pub label: Vec<String>,

    /// What happens to workloads when the agent ends: keep (they go on) or stop (all at once, killed after 13 s at the
    /// latest; jobs that are done are left)
    #[arg(long, env = "MUSTER_ON_EXIT", value_name = "WHAT", default_value = "keep")]
    pub on_exit: String,

    /// Time between two heartbeats; the hub's lease must be longer than two of them
    #[arg(long, env = "MUSTER_HEARTBEAT", value_name = "DURATION", default_value = "30s")]
    pub heartbeat: String,

    /// Longest delay before another attempt to connect
    #[arg(long, env = "MUSTER_RECONNECT_MAX", value_name = "DURATION", default_value = "60s")]
    pub reconnect_max: String,

    /// Most that reports may take of the link to the hub, such as 64kbit or 2mbit a second; no limit if left out
    #[arg(long, env = "MUSTER_UPLINK_LIMIT", value_name = "RATE")]
    pub uplink_limit: Option<String>,

    /// Time between two looks for desired state, beside what the hub sends by itself
    #[arg(long, env = "MUSTER_POLL_INTERVAL", value_name = "DURATION", default_value = "60s")]
    pub poll_interval: String,

    /// Hours in which the device takes new desired state, such as 22:00-06:00; may be given several times, or with commas
    #[arg(long, env = "MUSTER_POLLING_HOURS", value_name = "HH:MM-HH:MM [ZONE]", value_delimiter = ',')]
    pub polling_hours: Vec<String>,

    /// Hours in which the hub is known to be away and the device stays silent; may be given several times, or with commas
    #[arg(long, env = "MUSTER_DOWNTIME", value_name = "HH:MM-HH:MM [ZONE]", value_delimiter = ',')]
    pub downtime: Vec<String>,

    /// Longest delay before a failed workload is tried again for the first time
    #[arg(long, env = "MUSTER_RETRY_MIN", value_name = "DURATION", default_value = "10s")]
    pub retry_min: String,

    /// Longest delay before a failed workload is tried again, however often it failed
    #[arg(long, env = "MUSTER_RETRY_MAX", value_name = "DURATION", default_value = "5m")]
    pub retry_max: String,

    /// Failures of a component within --crash-loop-window from which it counts as failed until a success has held
    #[arg(long, env = "MUSTER_CRASH_LOOP_FAILURES", value_name = "NUMBER", default_value = "5")]
    pub crash_loop_failures: String,

    /// Window of that rule, and how long a component must stay ready until its success has held
    #[arg(long, env = "MUSTER_CRASH_LOOP_WINDOW", value_name = "DURATION", default_value = "10m")]
    pub crash_loop_window: String,

    /// Reports kept while the hub cannot be reached, at least 1000; beyond that, superseded ones are folded
    #[arg(long, env = "MUSTER_OUTBOX_ROWS", value_name = "NUMBER", default_value = "100000")]
    pub outbox_rows: String,

    /// Bytes of reports kept while the hub cannot be reached, such as 64MiB; at least 32MiB
    #[arg(long, env = "MUSTER_OUTBOX_BYTES", value_name = "SIZE", default_value = "64MiB")]
    pub outbox_bytes: String,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub common: CommonArgs,
}

/// Who this device is to the hub.
#[derive(Debug, Clone, clap::Subcommand)]
pub enum IdentityCommand {
    /// Make this device's key, if it has none, and print the public one
    Key {
        /// Where the agent keeps its things
        #[arg(long, env = "MUSTER_DATA_DIR", value_name = "DIR")]
        data_dir: PathBuf,
    },
    /// Keep the JWT that `muster enroll` wrote for this device's key
    Accept {
        /// Where the agent keeps its things
        #[arg(long, env = "MUSTER_DATA_DIR", value_name = "DIR")]
        data_dir: PathBuf,
        /// The JWT; `-` is standard input
        file: PathBuf,
    },
}

/// How workloads run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuntimeKind {
    /// As processes of this machine.
    Process,
    /// As containers of this machine's engine.
    Compose,
    /// In pretence.
    Simulated,
}

/// The agent's settings, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// What every service has.
    pub common: Common,
    /// The device.
    pub device: DeviceKey,
    /// Where everything is kept.
    pub data_dir: PathBuf,
    /// How workloads run.
    pub runtime: RuntimeKind,
    /// Folder to join the fleet by.
    pub join: Option<PathBuf>,
    /// Labels of the device.
    pub labels: BTreeMap<String, String>,
    /// What happens to workloads at the end.
    pub on_exit: OnExit,
    /// Time between two heartbeats.
    pub heartbeat: Duration,
    /// Longest delay before another attempt to connect.
    pub reconnect_max: Duration,
    /// Most that goes up, if there is a limit.
    pub uplink_limit: Option<Rate>,
    /// Time between two looks for desired state.
    pub poll: Duration,
    /// When it may speak to the hub.
    pub schedule: Schedule,
    /// When failures are tried again.
    pub retry: Retry,
    /// How much waits for the hub.
    pub outbox: Limits,
}

impl RuntimeKind {
    /// The types of components it runs.
    pub const fn profiles(self) -> &'static [ProfileType] {
        match self {
            Self::Process => &[ProfileType::Process],
            Self::Compose => &[ProfileType::Compose],
            Self::Simulated => &[ProfileType::Simulated],
        }
    }
}

impl Args {
    /// The checked settings.
    ///
    /// # Errors
    /// Every setting that cannot be used.
    pub fn check(&self) -> Result<Config, Problems> {
        let mut problems = Problems::default();
        let site = problems.required("--site", self.site.as_deref(), Problems::parse);
        let data_dir = problems.required("--data-dir", self.data_dir.as_deref(), directory);
        let device = problems.required("--device", self.device.as_deref(), |problems, flag, text| {
            device(problems, flag, text, data_dir.as_deref())
        });
        let join = problems.optional("--join", self.join.as_deref(), folder);
        let runtime = problems.parse("--runtime", &self.runtime);
        let labels = labels(&mut problems, &self.label);
        let on_exit = problems.parse("--on-exit", &self.on_exit).map(|OnExitWord(on_exit)| on_exit);
        let heartbeat = problems.duration("--heartbeat", &self.heartbeat, HEARTBEAT_BOUNDS);
        let reconnect_max = problems.duration("--reconnect-max", &self.reconnect_max, RECONNECT_BOUNDS);
        let uplink_limit =
            problems.optional("--uplink-limit", self.uplink_limit.as_deref(), |problems, flag, text| {
                rate(problems, flag, text, heartbeat.map(|heartbeat| (heartbeat, self.heartbeat.as_str())))
            });
        let poll = problems.duration("--poll-interval", &self.poll_interval, POLL_BOUNDS);
        let polling = windows(&mut problems, "--polling-hours", &self.polling_hours);
        let downtime = windows(&mut problems, "--downtime", &self.downtime);
        let failures =
            problems.number("--crash-loop-failures", &self.crash_loop_failures, CRASH_LOOP_FAILURES_BOUNDS);
        let window =
            problems.duration("--crash-loop-window", &self.crash_loop_window, CRASH_LOOP_WINDOW_BOUNDS);
        let crash_loop = failures.zip(window);
        let retry = retry(&mut problems, &self.retry_min, &self.retry_max, crash_loop);
        let rows = problems.number("--outbox-rows", &self.outbox_rows, ROWS_BOUNDS);
        let bytes = problems.parse("--outbox-bytes", &self.outbox_bytes).map(|Size(bytes)| bytes);
        let common = self.common.check(&mut problems);
        problems.finish(|| {
            Some(Config {
                common: common?,
                device: DeviceKey { site: site?, device: device? },
                data_dir: data_dir?,
                runtime: runtime?,
                join: join?,
                labels: labels?,
                on_exit: on_exit?,
                heartbeat: heartbeat?,
                reconnect_max: reconnect_max?,
                uplink_limit: uplink_limit?,
                poll: poll?,
                schedule: Schedule { polling: polling?, downtime: downtime? },
                retry: retry?,
                outbox: Limits { rows: rows?, bytes: bytes? },
            })
        })
    }
}

/// A limit that hearts leave something of: they do not wait for it, and reports would never go.
fn rate(
    problems: &mut Problems,
    flag: &'static str,
    text: &str,
    heartbeat: Option<(Duration, &str)>,
) -> Option<Rate> {
    let rate: Rate = problems.parse(flag, text)?;
    if let Some((_, word)) = heartbeat.filter(|(heartbeat, _)| !rate.carries(*heartbeat)) {
        let rule = format!("leaves reports less than half beside a heartbeat every {word} (--heartbeat)");
        problems.refuse(flag, text, rule);
        return None;
    }
    Some(rate)
}

fn directory(problems: &mut Problems, flag: &'static str, text: &str) -> Option<PathBuf> {
    let path = PathBuf::from(text);
    if text.is_empty() || path.is_file() {
        problems.refuse(flag, text, "must be a directory, or a place where one can be made");
        return None;
    }
    Some(path)
}

fn device(
    problems: &mut Problems,
    flag: &'static str,
    text: &str,
    data_dir: Option<&Path>,
) -> Option<DeviceId> {
    if text != name::HOST {
        return problems.parse(flag, text);
    }
    let found = name::own(data_dir?);
    found.map_err(|error| problems.refuse(flag, text, error)).ok()
}

fn folder(problems: &mut Problems, flag: &'static str, text: &str) -> Option<PathBuf> {
    let path = PathBuf::from(text);
    if path.is_dir() {
        return Some(path);
    }
    problems.refuse(flag, text, "must be a folder that is there and that this user may write");
    None
}

fn labels(problems: &mut Problems, texts: &[String]) -> Option<BTreeMap<String, String>> {
    let mut labels = BTreeMap::new();
    let mut broken = false;
    for text in texts {
        let rule = match text.split_once('=') {
            _ if text.len() > OWN_LABEL_BYTES_MAX => {
                format!("must not be longer than {OWN_LABEL_BYTES_MAX} bytes")
            }
            _ if labels.len() == OWN_LABELS_MAX => {
                format!("is one more than the {OWN_LABELS_MAX} that are allowed")
            }
            Some((name, _)) if labels.contains_key(name) => "names a label that was given already".to_owned(),
            Some((name, value)) if !name.is_empty() => {
                labels.insert(name.to_owned(), value.to_owned());
                continue;
            }
            _ => "must be NAME=VALUE, as in line=press".to_owned(),
        };
        problems.refuse("--label", text, rule);
        broken = true;
    }
    (!broken).then_some(labels)
}

fn windows(problems: &mut Problems, flag: &'static str, texts: &[String]) -> Option<Vec<Window>> {
    if let Some(text) = texts.get(WINDOWS_MAX) {
        problems.refuse(flag, text, format!("is one more than the {WINDOWS_MAX} that are allowed"));
    }
    // All of them are looked at, so that all bad ones are said.
    let parsed: Vec<_> = texts.iter().map(|text| problems.parse(flag, text)).collect();
    parsed.into_iter().collect()
}

fn retry(
    problems: &mut Problems,
    min: &str,
    max: &str,
    crash_loop: Option<(u64, Duration)>,
) -> Option<Retry> {
    let least = problems.duration("--retry-min", min, RETRY_BOUNDS);
    let most = problems.duration("--retry-max", max, RETRY_BOUNDS);
    let (failures, window) = crash_loop?;
    let failures = u32::try_from(failures).unwrap_or(u32::MAX);
    let retry = Retry { min: least?, max: most?, crash_loop: CrashLoopRule { failures, window } };
    if retry.min > retry.max {
        problems.refuse("--retry-min", min, format!("must not be above --retry-max ({max})"));
        return None;
    }
    Some(retry)
}

/// Why a text is not the setting it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// Not a runtime.
    #[error("must be process, compose or simulated")]
    Runtime,
    /// Not a thing to do at the end.
    #[error("must be keep or stop")]
    OnExit,
    /// Not a size.
    #[error("must be a size such as 64MiB or 2GiB, from 32MiB to 1024GiB")]
    Size,
}

impl FromStr for RuntimeKind {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text {
            "process" => Ok(Self::Process),
            "compose" => Ok(Self::Compose),
            "simulated" => Ok(Self::Simulated),
            _ => Err(ValueError::Runtime),
        }
    }
}

struct OnExitWord(OnExit);

impl FromStr for OnExitWord {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text {
            "keep" => Ok(Self(OnExit::Keep)),
            "stop" => Ok(Self(OnExit::Stop)),
            _ => Err(ValueError::OnExit),
        }
    }
}

/// Bytes: a number, alone or with KiB, MiB or GiB behind it.
struct Size(u64);

impl FromStr for Size {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let units = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1_u64 << 30), ("", 1)];
        let found = units.into_iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)));
        let bytes = found.and_then(|(number, factor)| number.trim().parse::<u64>().ok()?.checked_mul(factor));
        bytes.filter(|bytes| (BYTES_LEAST..=BYTES_MOST).contains(bytes)).map(Self).ok_or(ValueError::Size)
    }
}

#[cfg(test)]
mod tests;
