//! The agent's settings: flags and their defaults, checked into [`Config`].

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use muster_contract::limits::DEPLOYMENTS_PER_DEVICE_MAX;
use muster_contract::{DeviceId, DeviceKey};
use muster_service::{Common, CommonArgs, Problems};

use self::packages::PackageArgs;
use crate::attempts::CrashLoopRule;
use crate::name;
use crate::outbox::Limits;
use crate::package::PackageSettings;
use crate::reconcile::{OnExit, RetryPolicy};
use crate::relay::budget::Rate;
use crate::report::BODY_BYTES_MAX;
use crate::schedule::{DailyWindow, Schedule, WINDOWS_MAX};

#[cfg(feature = "kubernetes")]
pub mod kubernetes;
mod packages;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(60 * 60);
const HEARTBEAT_BOUNDS: RangeInclusive<Duration> = Duration::from_millis(100)..=HOUR;
const RECONNECT_BOUNDS: RangeInclusive<Duration> = Duration::from_millis(100)..=HOUR;
const PING_BOUNDS: RangeInclusive<Duration> = Duration::from_millis(50)..=HOUR;
const POLL_BOUNDS: RangeInclusive<Duration> = SECOND..=Duration::from_secs(24 * 60 * 60);
const RETRY_BOUNDS: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(24 * 60 * 60);
/// One failure is no crash loop; a rule that requires more failures than this would never apply.
const CRASH_LOOP_FAILURES_BOUNDS: RangeInclusive<u64> = 2..=1_000;
const CRASH_LOOP_WINDOW_BOUNDS: RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(24 * 60 * 60);
/// Fewer rows could not hold the newest report of every deployment and some history.
const ROWS_BOUNDS: RangeInclusive<u64> = 1_000..=100_000_000;
/// Fewer bytes could not hold the newest report of every deployment at its largest size.
const BYTES_LEAST: u64 = 32 * 1024 * 1024;
/// Labels of a device: every report of its capabilities carries them.
const OWN_LABELS_MAX: usize = 64;
/// Bytes of one label, its name included.
const OWN_LABEL_BYTES_MAX: usize = 256;

const _: () = {
    assert!(*ROWS_BOUNDS.start() > 2 * DEPLOYMENTS_PER_DEVICE_MAX as u64);
    assert!(BYTES_LEAST > (BODY_BYTES_MAX * DEPLOYMENTS_PER_DEVICE_MAX) as u64);
    assert!(OWN_LABELS_MAX * OWN_LABEL_BYTES_MAX * 2 < BODY_BYTES_MAX);
    assert!(SECOND.as_millis() > HEARTBEAT_BOUNDS.start().as_millis());
};

/// Runs the workloads assigned to one device and reports every change to the hub, also after outages.
#[derive(Debug, Clone, clap::Parser)]
#[command(name = "muster-agent", version = muster_service::VERSION)]
#[command(after_help = "\
The agent starts without a hub: it runs the desired state accepted last, stores its reports in DIR, and sends them \
when it is connected. Workloads outlive the agent; the next agent with the same DIR adopts them.

Hours are in the time zone of this machine unless one is given. Outside of the polling hours the device accepts no new desired state and still reports; in a downtime it does not connect.

Examples:
  muster-agent --site plant7 --device press-4 --data-dir /var/lib/muster --label line=press
  muster-agent … --uplink-limit 64kbit --polling-hours 22:00-06:00 --downtime '01:30-02:00 UTC'

  muster-agent status --data-dir /var/lib/muster            shows its report numbers and the reports that the hub refused

A device of a secured hub makes its own key, which never leaves it, and gets a JWT for that key:
  muster-agent key --data-dir /var/lib/muster               prints the public key, for `muster enroll`
  muster-agent accept --data-dir /var/lib/muster FILE       stores the JWT, also a renewed one
A running agent uses a renewed JWT at once. --creds takes precedence over the identity in DIR.
With --join FOLDER the agent does both itself: it writes SITE_DEVICE.key there and reads SITE_DEVICE.jwt.")]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    /// A command to carry out instead of running the agent.
    #[command(subcommand)]
    pub command: Option<Command>,

    /// Site of this device: 1 to 63 characters of a-z, 0-9 and '-'
    #[arg(long, env = "MUSTER_SITE", value_name = "SITE")]
    pub site: Option<String>,

    /// Name of this device within its site, of the same characters; @host takes the name stored in DIR, else the host
    /// name
    #[arg(long, env = "MUSTER_DEVICE", value_name = "DEVICE")]
    pub device: Option<String>,

    /// Directory of the agent's database and the workloads' files; one directory per device
    #[arg(long, env = "MUSTER_DATA_DIR", value_name = "DIR")]
    pub data_dir: Option<String>,

    /// Runtime of workloads: process (programs of this machine), compose (containers, with the Compose command of this
    /// machine) or simulated (runs nothing, for trials)
    #[arg(long, env = "MUSTER_RUNTIME", value_name = "RUNTIME", default_value = "process")]
    pub runtime: String,

    /// Folder for enrolment: the agent writes its public key there and reads the JWT for it
    #[arg(long, env = "MUSTER_JOIN", value_name = "FOLDER")]
    pub join: Option<String>,

    /// Label of this device; may be given several times, or separated by commas
    #[arg(long, env = "MUSTER_LABEL", value_name = "NAME=VALUE", value_delimiter = ',')]
    pub label: Vec<String>,

    /// Workloads when the agent ends: keep (they keep running) or stop (all at once, killed after 13 s at the latest;
    /// completed jobs are left)
    #[arg(long, env = "MUSTER_ON_EXIT", value_name = "WHAT", default_value = "keep")]
    pub on_exit: String,

    /// Time between two heartbeats; the hub's lease must be longer than two of them
    #[arg(long, env = "MUSTER_HEARTBEAT", value_name = "DURATION", default_value = "30s")]
    pub heartbeat: String,

    /// Longest delay before another attempt to connect
    #[arg(long, env = "MUSTER_RECONNECT_MAX", value_name = "DURATION", default_value = "60s")]
    pub reconnect_max: String,

    /// Rate per second that reports may use of the link to the hub, such as 64kbit or 2mbit; without it there is no limit
    #[arg(long, env = "MUSTER_UPLINK_LIMIT", value_name = "RATE")]
    pub uplink_limit: Option<String>,

    /// Time between two reads of the stored desired state, beside the changes that the hub pushes; without it 6 h, or 60 s
    /// if the hub does not notice a device that holds an older one
    #[arg(long, env = "MUSTER_POLL_INTERVAL", value_name = "DURATION")]
    pub poll_interval: Option<String>,

    /// Time between two pings of a quiet connection, for a hub behind a proxy that acknowledges in its place: half a
    /// heartbeat then finds a dead hub within two heartbeats
    #[arg(long, env = "MUSTER_PING_INTERVAL", value_name = "DURATION")]
    pub ping_interval: Option<String>,

    /// Hours in which the device accepts new desired state, such as 22:00-06:00; several, or separated by commas
    #[arg(long, env = "MUSTER_POLLING_HOURS", value_name = "HH:MM-HH:MM [ZONE]", value_delimiter = ',')]
    pub polling_hours: Vec<String>,

    /// Hours in which the hub is unavailable and the device does not connect; several, or separated by commas
    #[arg(long, env = "MUSTER_DOWNTIME", value_name = "HH:MM-HH:MM [ZONE]", value_delimiter = ',')]
    pub downtime: Vec<String>,

    /// Longest delay before the first retry of a failed workload
    #[arg(long, env = "MUSTER_RETRY_MIN", value_name = "DURATION", default_value = "10s")]
    pub retry_min: String,

    /// Longest delay before any retry of a failed workload
    #[arg(long, env = "MUSTER_RETRY_MAX", value_name = "DURATION", default_value = "5m")]
    pub retry_max: String,

    /// Failures of a component within --crash-loop-window from which it counts as failed until a success has held
    #[arg(long, env = "MUSTER_CRASH_LOOP_FAILURES", value_name = "NUMBER", default_value = "5")]
    pub crash_loop_failures: String,

    /// Window of the crash loop rule, and the time that a component must stay ready until its success has held
    #[arg(long, env = "MUSTER_CRASH_LOOP_WINDOW", value_name = "DURATION", default_value = "10m")]
    pub crash_loop_window: String,

    /// Reports stored while the hub cannot be reached, at least 1000; beyond that, superseded ones are compacted
    #[arg(long, env = "MUSTER_OUTBOX_ROWS", value_name = "NUMBER", default_value = "100000")]
    pub outbox_rows: String,

    /// Bytes of reports stored while the hub cannot be reached, such as 64MiB; at least 32MiB
    #[arg(long, env = "MUSTER_OUTBOX_BYTES", value_name = "SIZE", default_value = "64MiB")]
    pub outbox_bytes: String,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub packages: PackageArgs,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub common: CommonArgs,
}

/// A command that the program carries out instead of running the agent.
#[derive(Debug, Clone, clap::Subcommand)]
pub enum Command {
    /// Print this device's public key; make the key first if there is none
    Key {
        /// The agent's data directory
        #[arg(long, env = "MUSTER_DATA_DIR", value_name = "DIR")]
        data_dir: PathBuf,
    },
    /// Store the JWT that `muster enroll` wrote for this device's key
    Accept {
        /// The agent's data directory
        #[arg(long, env = "MUSTER_DATA_DIR", value_name = "DIR")]
        data_dir: PathBuf,
        /// File with the JWT; `-` is standard input
        file: PathBuf,
    },
    /// Show this device's newest report number, its unsent reports, and the reports that the hub refused
    Status {
        /// The agent's data directory
        #[arg(long, env = "MUSTER_DATA_DIR", value_name = "DIR")]
        data_dir: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// The runtime of workloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuntimeKind {
    /// Processes of this machine.
    Process,
    /// Containers of this machine's engine.
    Compose,
    /// Nothing runs; the runtime follows a script.
    Simulated,
    /// Charts and manifests in a cluster; only the program `muster-agent-kubernetes` has it.
    Kubernetes,
}

const _: () = assert!(
    RuntimeKind::ALL.len() == RuntimeKind::Kubernetes as usize + 1,
    "RuntimeKind::ALL lists every runtime, Kubernetes last"
);

/// The runtimes that `muster-agent` has.
const HOST_RUNTIMES: &[RuntimeKind] = &[RuntimeKind::Process, RuntimeKind::Compose, RuntimeKind::Simulated];

/// The agent's checked settings.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The settings of every service.
    pub common: Common,
    /// The device.
    pub device: DeviceKey,
    /// The data directory.
    pub data_dir: PathBuf,
    /// The runtime of workloads.
    pub runtime: RuntimeKind,
    /// The folder for enrolment.
    pub join: Option<PathBuf>,
    /// Labels of the device.
    pub labels: BTreeMap<String, String>,
    /// Workloads when the agent ends.
    pub on_exit: OnExit,
    /// Time between two heartbeats.
    pub heartbeat: Duration,
    /// Longest delay before another attempt to connect.
    pub reconnect_max: Duration,
    /// The rate that reports may use, if there is a limit.
    pub uplink_limit: Option<Rate>,
    /// Time between two reads of the stored desired state, if it is set.
    pub poll: Option<Duration>,
    /// Time between two pings, if it is set.
    pub ping: Option<Duration>,
    /// Polling hours and downtimes.
    pub schedule: Schedule,
    /// The retries of failed workloads.
    pub retry: RetryPolicy,
    /// The limits of the outbox.
    pub outbox: Limits,
    /// The fetching of packages.
    pub packages: PackageSettings,
}

impl RuntimeKind {
    /// All of them.
    const ALL: &'static [Self] = &[Self::Process, Self::Compose, Self::Simulated, Self::Kubernetes];

    /// Its word in `--runtime`.
    const fn as_str(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Compose => "compose",
            Self::Simulated => "simulated",
            Self::Kubernetes => "kubernetes",
        }
    }
}

impl Args {
    /// Checks the settings.
    ///
    /// # Errors
    /// Every setting that cannot be used.
    pub fn check(&self) -> Result<Config, Problems> {
        let mut problems = Problems::default();
        let config = self.check_for(&mut problems, HOST_RUNTIMES);
        problems.finish(|| config)
    }

    /// Checks the settings for a program with these runtimes.
    fn check_for(&self, problems: &mut Problems, runtimes: &[RuntimeKind]) -> Option<Config> {
        let site = problems.required("--site", self.site.as_deref(), Problems::parse);
        let data_dir = problems.required("--data-dir", self.data_dir.as_deref(), directory);
        let device = problems.required("--device", self.device.as_deref(), |problems, flag, text| {
            device(problems, flag, text, data_dir.as_deref())
        });
        let join = problems.optional("--join", self.join.as_deref(), folder);
        let runtime = runtime(problems, &self.runtime, runtimes);
        let labels = labels(problems, &self.label);
        let on_exit = problems.parse("--on-exit", &self.on_exit).map(|OnExitWord(on_exit)| on_exit);
        let heartbeat = problems.duration("--heartbeat", &self.heartbeat, HEARTBEAT_BOUNDS);
        let reconnect_max = problems.duration("--reconnect-max", &self.reconnect_max, RECONNECT_BOUNDS);
        let uplink_limit =
            problems.optional("--uplink-limit", self.uplink_limit.as_deref(), |problems, flag, text| {
                rate(problems, flag, text, heartbeat.map(|heartbeat| (heartbeat, self.heartbeat.as_str())))
            });
        let poll = interval(problems, "--poll-interval", self.poll_interval.as_deref(), POLL_BOUNDS);
        let ping = interval(problems, "--ping-interval", self.ping_interval.as_deref(), PING_BOUNDS);
        let polling = windows(problems, "--polling-hours", &self.polling_hours);
        let downtime = windows(problems, "--downtime", &self.downtime);
        let failures =
            problems.number("--crash-loop-failures", &self.crash_loop_failures, CRASH_LOOP_FAILURES_BOUNDS);
        let window =
            problems.duration("--crash-loop-window", &self.crash_loop_window, CRASH_LOOP_WINDOW_BOUNDS);
        let crash_loop = failures.zip(window);
        let retry = retry(problems, &self.retry_min, &self.retry_max, crash_loop);
        let rows = problems.number("--outbox-rows", &self.outbox_rows, ROWS_BOUNDS);
        let bytes = problems.size("--outbox-bytes", &self.outbox_bytes, BYTES_LEAST);
        let packages = self.packages.check(problems);
        let common = self.common.check(problems);
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
            ping: ping?,
            schedule: Schedule { polling: polling?, downtime: downtime? },
            retry: retry?,
            outbox: Limits { rows: rows?, bytes: bytes? },
            packages: packages?,
        })
    }
}

/// Parses an interval, if it is set.
fn interval(
    problems: &mut Problems,
    flag: &'static str,
    text: Option<&str>,
    bounds: RangeInclusive<Duration>,
) -> Option<Option<Duration>> {
    problems.optional(flag, text, |problems, flag, text| problems.duration(flag, text, bounds))
}

/// Parses a runtime, and refuses one that the program does not have.
fn runtime(problems: &mut Problems, text: &str, runtimes: &[RuntimeKind]) -> Option<RuntimeKind> {
    let kind = problems.parse("--runtime", text)?;
    if runtimes.contains(&kind) {
        return Some(kind);
    }
    problems.refuse("--runtime", text, "is not a runtime of this program: start muster-agent-kubernetes");
    None
}

/// A rate limit that leaves room beside heartbeats: they do not wait for it, and reports would never be sent.
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
        problems.refuse(flag, text, "must be a directory, or a path at which one can be created");
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
    let found = name::resolve(data_dir?);
    found.map_err(|error| problems.refuse(flag, text, error)).ok()
}

fn folder(problems: &mut Problems, flag: &'static str, text: &str) -> Option<PathBuf> {
    let path = PathBuf::from(text);
    if path.is_dir() {
        return Some(path);
    }
    problems.refuse(flag, text, "must be an existing folder that this user may write");
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
            Some((name, _)) if labels.contains_key(name) => "names a label that was already given".to_owned(),
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

fn windows(problems: &mut Problems, flag: &'static str, texts: &[String]) -> Option<Vec<DailyWindow>> {
    if let Some(text) = texts.get(WINDOWS_MAX) {
        problems.refuse(flag, text, format!("is one more than the {WINDOWS_MAX} that are allowed"));
    }
    // All windows are parsed, so that all invalid ones are listed.
    let parsed: Vec<_> = texts.iter().map(|text| problems.parse(flag, text)).collect();
    parsed.into_iter().collect()
}

fn retry(
    problems: &mut Problems,
    min: &str,
    max: &str,
    crash_loop: Option<(u64, Duration)>,
) -> Option<RetryPolicy> {
    let least = problems.duration("--retry-min", min, RETRY_BOUNDS);
    let most = problems.duration("--retry-max", max, RETRY_BOUNDS);
    let (failures, window) = crash_loop?;
    let failures = u32::try_from(failures).unwrap_or(u32::MAX);
    let retry = RetryPolicy { min: least?, max: most?, crash_loop: CrashLoopRule { failures, window } };
    if retry.min > retry.max {
        problems.refuse("--retry-min", min, format!("must not be above --retry-max ({max})"));
        return None;
    }
    Some(retry)
}

/// The error of a setting that cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// Not a runtime.
    #[error("must be one of {}", runtime_words())]
    Runtime,
    /// Not an action on exit.
    #[error("must be keep or stop")]
    OnExit,
}

impl FromStr for RuntimeKind {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        Self::ALL.iter().copied().find(|kind| kind.as_str() == text).ok_or(ValueError::Runtime)
    }
}

/// `process, compose, simulated, kubernetes (muster-agent-kubernetes)`.
fn runtime_words() -> String {
    let program = |kind| if HOST_RUNTIMES.contains(kind) { "" } else { " (muster-agent-kubernetes)" };
    let words = RuntimeKind::ALL.iter().map(|kind| format!("{}{}", kind.as_str(), program(kind)));
    words.collect::<Vec<_>>().join(", ")
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

#[cfg(test)]
mod tests;
