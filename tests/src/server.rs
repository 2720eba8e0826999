//! A real nats-server for one test: its own port and store, stopped, killed and started again at will.
//!
//! It never mocks and never skips: without a server binary it says what to run.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use muster_bus::BusConfig;
use muster_bus::version::{SERVER_RULE, is_acceptable};
use muster_contract::{DeviceKey, SiteId};
use muster_identity::Rights;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// How long a server may take to accept connections, or to leave.
const SERVER_DEADLINE: Duration = Duration::from_secs(20);
/// Below the range from which the kernel takes ports of outgoing connections, so that a stopped server's port stays free.
const PORTS: std::ops::Range<u16> = 10_240..32_000;
/// Lines of the server's log shown when it does not start.
const LOG_LINES_SHOWN: usize = 20;

/// A nats-server that ends with this value.
#[derive(Debug)]
pub struct Server {
    dir: TempDir,
    port: u16,
    setup: Setup,
    child: Option<Child>,
}

/// The settings that a test may change.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Runs JetStream.
    pub jetstream: bool,
    /// Devices that may connect, each with the rights of the contract's section 8. With any of these, `hub` may do
    /// everything and nobody else connects.
    pub devices: Vec<DeviceKey>,
    /// Appended to the configuration file.
    pub more: String,
    /// The server program, if it is to be another than the kit's own.
    pub binary: Option<PathBuf>,
}

impl Default for Setup {
    fn default() -> Self {
        Self { jetstream: true, devices: Vec::new(), more: String::new(), binary: None }
    }
}

impl Server {
    /// A server with JetStream that lets everyone do everything.
    pub fn start() -> Self {
        Self::start_with(Setup::default())
    }

    /// A server as described.
    pub fn start_with(setup: Setup) -> Self {
        let dir =
            tempfile::Builder::new().prefix("muster-nats-").tempdir().expect("a directory for the server");
        let mut server = Self { dir, port: 0, setup, child: None };
        for _ in 0..5 {
            server.port = free_port();
            if server.try_start() {
                return server;
            }
        }
        panic!("nats-server does not start:\n{}", server.log_tail());
    }

    /// Where it listens, for someone without a name.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Where it listens, for the hub's services of a guarded server.
    pub fn hub_url(&self) -> String {
        if self.setup.devices.is_empty() {
            self.url()
        } else {
            format!("nats://hub:hub@127.0.0.1:{}", self.port)
        }
    }

    /// Where it listens, for a device.
    pub fn device_url(&self, key: &DeviceKey) -> String {
        if self.setup.devices.is_empty() {
            return self.url();
        }
        let user = user(key);
        format!("nats://{user}:{user}@127.0.0.1:{}", self.port)
    }

    /// A service's settings, reconnecting fast.
    pub fn config(&self, name: &str) -> BusConfig {
        BusConfig { reconnect_max: Duration::from_millis(100), ..BusConfig::service(self.hub_url(), name) }
    }

    /// A device's settings, reconnecting fast.
    pub fn device_config(&self, key: &DeviceKey) -> BusConfig {
        BusConfig {
            reconnect_max: Duration::from_millis(100),
            ..BusConfig::device(self.device_url(key), key)
        }
    }

    /// The port, also while the server is down.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Its process id, while it runs.
    pub fn pid(&self) -> Option<Pid> {
        self.child.as_ref().map(Pid::from_child)
    }

    /// Its name within its cluster.
    pub fn name(&self) -> String {
        // Its directory is nobody else's, and so is its name.
        self.dir.path().file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Where it keeps its streams.
    pub fn store(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    /// Ends it in good order (SIGTERM).
    pub fn stop(&mut self) {
        self.end(Signal::TERM);
    }

    /// Ends it at once (SIGKILL), as a crash does.
    pub fn kill(&mut self) {
        self.end(Signal::KILL);
    }

    /// Halts it without closing anything (SIGSTOP), as a cut cable does; [`Server::thaw`] lets it go on.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets a frozen server go on.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// Starts it again on the same port with the same store.
    pub fn restart(&mut self) {
        assert!(self.child.is_none(), "stop or kill it first");
        assert!(self.try_start(), "nats-server does not start again:\n{}", self.log_tail());
    }

    /// Reloads its configuration with these lines at the end, while it runs.
    ///
    /// # Panics
    /// It does not run, or does not take the configuration.
    pub fn reload_with(&mut self, more: &str) {
        self.setup.more = more.to_owned();
        let reloads = || self.log().matches("Reloaded server configuration").count();
        let before = reloads();
        fs::write(self.dir.path().join("nats.conf"), self.configuration()).expect("a configuration file");
        self.signal(Signal::HUP);
        let begun = Instant::now();
        while reloads() == before {
            assert!(begun.elapsed() < SERVER_DEADLINE, "nats-server does not reload:\n{}", self.log_tail());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// A copy of its streams as they are on disk. Stop it first: what it has not written yet is not in it.
    pub fn back_up(&self) -> TempDir {
        assert!(self.child.is_none(), "stop it first");
        let backup = tempfile::tempdir().expect("a directory for the backup");
        copy(&self.store(), backup.path());
        backup
    }

    /// Puts a backup in place of its streams. Stop it first.
    pub fn set_back(&self, backup: &TempDir) {
        assert!(self.child.is_none(), "stop it first");
        fs::remove_dir_all(self.store()).expect("its streams");
        copy(backup.path(), &self.store());
    }

    /// All of its log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// The last lines of its log.
    pub fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].join("\n")
    }

    fn try_start(&mut self) -> bool {
        let file = self.dir.path().join("nats.conf");
        fs::write(&file, self.configuration()).expect("a configuration file");
        let log =
            File::options().create(true).append(true).open(self.dir.path().join("log")).expect("a log file");
        let binary = self.setup.binary.clone().unwrap_or_else(binary);
        let mut child = Command::new(&binary)
            .arg("--config")
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a second handle of the log"))
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("cannot run {}: {error}", binary.display()));
        let ready = wait_ready(self.port, &self.name(), &mut child);
        self.child = Some(child);
        if !ready {
            self.end(Signal::KILL);
        }
        ready
    }

    fn configuration(&self) -> String {
        let mut text = format!("listen: \"127.0.0.1:{}\"\nserver_name: \"{}\"\n", self.port, self.name());
        if self.setup.jetstream {
            let store = self.store();
            text += &format!(
                "jetstream {{ store_dir: \"{}\", max_file_store: 32GB, max_memory_store: 256MB }}\n",
                store.display()
            );
        }
        if !self.setup.devices.is_empty() {
            let users: String = self.setup.devices.iter().map(device_rights).collect();
            text += &format!("authorization {{ users = [\n{{ user: hub, password: hub }}\n{users}] }}\n");
        }
        text + &self.setup.more
    }

    fn signal(&self, signal: Signal) {
        let child = self.child.as_ref().expect("a running server");
        let _ = kill_process(Pid::from_child(child), signal);
    }

    fn end(&mut self, signal: Signal) {
        let Some(mut child) = self.child.take() else { return };
        let pid = Pid::from_child(&child);
        let _ = kill_process(pid, signal);
        let deadline = Instant::now() + SERVER_DEADLINE;
        while child.try_wait().is_ok_and(|status| status.is_none()) {
            if Instant::now() > deadline {
                let _ = kill_process(pid, Signal::KILL);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end(Signal::KILL);
    }
}

/// The server program: `$MUSTER_NATS_SERVER`, else `.tools/nats-server` of the repository, else one on the PATH.
///
/// # Panics
///
/// If there is none that Muster works with.
pub fn binary() -> PathBuf {
    if let Some(named) = std::env::var_os("MUSTER_NATS_SERVER") {
        return named.into();
    }
    let fetched = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.tools/nats-server");
    let installed = PathBuf::from("nats-server");
    let found =
        [fetched, installed].into_iter().find(|binary| version(binary).is_some_and(|v| is_acceptable(&v)));
    found.unwrap_or_else(|| panic!("no nats-server for the tests ({SERVER_RULE}): run `make tools` once"))
}

fn version(binary: &Path) -> Option<String> {
    let said = Command::new(binary).arg("--version").output().ok()?;
    Some(String::from_utf8_lossy(&said.stdout).trim().rsplit_once('v')?.1.to_owned())
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from).expect("a directory").flatten() {
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if source.is_dir() {
            copy(&source, &target);
        } else {
            _ = fs::copy(&source, &target).expect("a copy of a file");
        }
    }
}

/// A port that nobody listens at now.
pub fn free_port() -> u16 {
    let mut tries = std::iter::repeat_with(|| fastrand::u16(PORTS));
    tries.find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok()).expect("an endless supply")
}

/// Waits for the greeting of the server of this name; false if it ends or stays silent. Another one may have taken the port.
fn wait_ready(port: u16, name: &str, child: &mut Child) -> bool {
    let named = format!("\"server_name\":\"{name}\"");
    let deadline = Instant::now() + SERVER_DEADLINE;
    while Instant::now() < deadline && child.try_wait().is_ok_and(|status| status.is_none()) {
        if greeted(port).is_some_and(|greeting| greeting.contains(&named)) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    false
}

fn greeted(port: u16) -> Option<String> {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).ok()?;
    Some(line)
}

fn user(key: &DeviceKey) -> String {
    format!("{}_{}", key.site, key.device)
}

/// The rights of a device, as the contract's section 8 lists them.
fn device_rights(key: &DeviceKey) -> String {
    let (user, Rights { publish, subscribe }) = (user(key), Rights::of_device(key));
    format!(
        "{{ user: \"{user}\", password: \"{user}\", permissions: {{ publish: {{ allow: {publish:?} }}, \
         subscribe: {{ allow: {subscribe:?} }} }} }}\n"
    )
}

/// A device of the site `plant7`, for tests that need no particular one.
pub fn device(name: &str) -> DeviceKey {
    let site: SiteId = "plant7".parse().expect("an identifier");
    DeviceKey { site, device: name.parse().expect("an identifier") }
}
