//! A device for tests of the process runtime: real processes under a directory of its own, all of them gone when the
//! test ends, also when it fails.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failure here is the test's result")]
#![allow(dead_code, reason = "each test file uses its own part")]

use std::fs;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use muster_agent::runtime::process::ProcessRuntime;
use muster_agent::runtime::{Exit, Running, Runtime, Started, Stopped, Unit, UnitName};
use muster_contract::canonical::Digest;
use muster_contract::desired::{Component, ProfileType};
use muster_contract::profile::Workload;
use muster_contract::state::StatusError;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Time in which every fact of these tests has long come true.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);
/// Time between two looks for a fact.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A device with an agent's runtime on it.
pub(crate) struct Device {
    /// Its runtime; see [`Device::restart`].
    pub(crate) runtime: ProcessRuntime,
    exits: mpsc::Receiver<Exit>,
    dir: TempDir,
}

impl Device {
    /// A device on which nothing has ever run.
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (runtime, exits) = runtime(dir.path());
        Self { runtime, exits, dir }
    }

    /// The agent dies and another comes up: what runs stays, all memory of it is gone.
    pub(crate) fn restart(&mut self) {
        (self.runtime, self.exits) = runtime(self.dir.path());
    }

    /// Starts a unit that is expected to become ready.
    pub(crate) async fn start(&self, unit: &Unit) {
        assert_eq!(self.try_start(unit).await, Ok(Started::Ready));
    }

    /// Starts a unit.
    pub(crate) async fn try_start(&self, unit: &Unit) -> Result<Started, StatusError> {
        let never = CancellationToken::new();
        tokio::time::timeout(DEADLINE, self.runtime.start(unit, &never)).await.expect("a start that ends")
    }

    /// Stops a unit; how it ended.
    pub(crate) async fn stop(&self, name: &UnitName, timeout: Duration) -> Stopped {
        let stopped = tokio::time::timeout(DEADLINE, self.runtime.stop(name, timeout)).await;
        stopped.expect("a stop that ends").unwrap()
    }

    /// The running units that the runtime lists.
    pub(crate) async fn inventory(&self) -> Vec<Running> {
        self.runtime.inventory().await.unwrap()
    }

    /// The next unexpected end.
    pub(crate) async fn exit(&mut self) -> Exit {
        let exit = tokio::time::timeout(DEADLINE, self.exits.recv()).await;
        exit.expect("an exit").expect("a runtime")
    }

    /// The unexpected end that has been told already, if any.
    pub(crate) fn exit_told(&mut self) -> Option<Exit> {
        self.exits.try_recv().ok()
    }

    /// The working directory of a unit.
    pub(crate) fn work(&self, unit: &Unit) -> PathBuf {
        self.dir.path().join("work").join(unit.deployment.as_str()).join(unit.component.as_str())
    }

    /// The file of a unit's stdout or stderr.
    pub(crate) fn log(&self, unit: &Unit, stream: &str) -> PathBuf {
        let file = format!("{}.{stream}", unit.component);
        self.dir.path().join("logs").join(unit.deployment.as_str()).join(file)
    }

    /// The data directory.
    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The lines of a file in a unit's working directory; none where there is no file.
    pub(crate) fn lines(&self, unit: &Unit, file: &str) -> Vec<String> {
        let text = fs::read_to_string(self.work(unit).join(file)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Waits until a file in a unit's working directory has so many lines.
    pub(crate) async fn until_lines(&self, unit: &Unit, file: &str, count: usize) -> Vec<String> {
        until(file, || Some(self.lines(unit, file)).filter(|lines| lines.len() >= count)).await
    }

    /// The processes of this device that live.
    pub(crate) fn pids(&self) -> Vec<i32> {
        marked(self.dir.path())
    }
}

impl Device {
    /// The processes of this device and all others in their groups.
    pub(crate) fn grouped(&self) -> Vec<i32> {
        let groups: Vec<_> = self.pids().into_iter().filter_map(stat).map(|stat| stat.2).collect();
        let is_in = |pid: &i32| stat(*pid).is_some_and(|(_, _, group)| groups.contains(&group));
        all_pids().into_iter().filter(is_in).collect()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let deadline = std::time::Instant::now() + DEADLINE;
        loop {
            let left = marked(self.dir.path());
            for pid in left.iter().chain(&noted(self.dir.path())).filter_map(|pid| Pid::from_raw(*pid)) {
                let _ = kill_process_group(pid, Signal::KILL);
                let _ = kill_process(pid, Signal::KILL);
            }
            if left.is_empty() || std::time::Instant::now() > deadline {
                return;
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

/// Waits for a fact.
pub(crate) async fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = tokio::time::Instant::now() + DEADLINE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(tokio::time::Instant::now() < deadline, "waited {DEADLINE:?} in vain for: {what}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Waits for a fact while a start is under way that must not end before.
pub(crate) async fn beside<T>(
    start: &mut (impl Future<Output: std::fmt::Debug> + Unpin),
    fact: impl Future<Output = T>,
) -> T {
    tokio::select! {
        ended = start => panic!("the start has ended: {ended:?}"),
        found = fact => found,
    }
}

/// A unit `line/<component>` with these properties.
pub(crate) fn unit(component: &str, properties: Value) -> Unit {
    let Value::Object(properties) = properties else { panic!("properties are an object") };
    let digest = Digest::of_value(&properties);
    let component = Component::new(component.parse().unwrap(), properties);
    let workload = Workload::of(ProfileType::Process, &component).unwrap();
    Unit {
        device: "plant/press".parse().unwrap(),
        deployment: "line".parse().unwrap(),
        component: component.name,
        digest,
        workload,
        is_job: false,
        environment: Default::default(),
        values: Default::default(),
        namespace: None,
        labels: Default::default(),
    }
}

/// A unit that runs a shell script and is ready when the script has made the file `ready`.
pub(crate) fn script(component: &str, script: &str) -> Unit {
    unit(component, shell(script, json!({"type": "file", "path": "ready"})))
}

/// A job that runs a shell script.
pub(crate) fn job(component: &str, script: &str) -> Unit {
    unit(component, shell(script, json!({"type": "exit"})))
}

/// Properties of a shell script.
pub(crate) fn shell(script: &str, readiness: impl Into<Value>) -> Value {
    json!({"command": "sh", "args": ["-c", script], "readiness": readiness.into()})
}

/// Whether a process lives.
pub(crate) fn lives(pid: i32) -> bool {
    stat(pid).is_some_and(|stat| stat.0 != "Z")
}

/// Children of this test that have ended and that nobody has reaped.
pub(crate) fn own_zombies() -> Vec<i32> {
    let own = std::process::id().to_string();
    let is_zombie = |pid: &i32| stat(*pid).is_some_and(|(state, parent, _)| state == "Z" && parent == own);
    all_pids().into_iter().filter(is_zombie).collect()
}

fn runtime(dir: &Path) -> (ProcessRuntime, mpsc::Receiver<Exit>) {
    let (sender, exits) = mpsc::channel(8);
    (ProcessRuntime::new("plant/press".parse().unwrap(), dir, sender), exits)
}

/// Living processes that carry this directory in their environment.
fn marked(dir: &Path) -> Vec<i32> {
    let dir = fs::canonicalize(dir).unwrap_or_else(|_| dir.to_owned());
    let mark = [b"MUSTER_DATA_DIR=", dir.as_os_str().as_bytes()].concat();
    let carries = |pid: &i32| {
        environment(*pid).split(|byte| *byte == 0).any(|variable| variable == mark) && lives(*pid)
    };
    all_pids().into_iter().filter(carries).collect()
}

/// The environment of a process, by one call. While it becomes another program, `/proc` shows none, and no address of its code.
fn environment(pid: i32) -> Vec<u8> {
    let until = Instant::now() + DEADLINE;
    let is_between_programs = || {
        let line = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let fields: Vec<_> = line.rsplit(") ").next().unwrap().split(' ').collect();
        let number = |field: usize| fields.get(field).and_then(|number| number.parse::<u64>().ok());
        let has_memory = number(6).is_some_and(|flags| flags & 0x20_0004 == 0);
        has_memory && (number(23) == Some(0) || number(47) != number(48))
    };
    loop {
        let mut shown = vec![0; 256 * 1024];
        let file = fs::File::open(format!("/proc/{pid}/environ"));
        let read = file.and_then(|mut file| file.read(&mut shown)).unwrap_or(0);
        shown.truncate(read);
        if read > 0 || !is_between_programs() || Instant::now() > until {
            return shown;
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

fn all_pids() -> Vec<i32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// State, parent and group of a process.
fn stat(pid: i32) -> Option<(String, String, String)> {
    let line = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = line.rsplit_once(") ")?.1.split(' ').map(str::to_owned);
    Some((fields.next()?, fields.next()?, fields.next()?))
}

/// Main processes named in the runtime's notes, for those that hide their environment.
fn noted(dir: &Path) -> Vec<i32> {
    let files = fs::read_dir(dir.join("units/line")).into_iter().flatten().flatten();
    let pid = |bytes: Vec<u8>| serde_json::from_slice::<Value>(&bytes).ok()?["pid"].as_i64()?.try_into().ok();
    files.filter_map(|file| pid(fs::read(file.path()).ok()?)).collect()
}
