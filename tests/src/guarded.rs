//! A hub whose rights are real: keys made by `muster auth init`, a server that includes what it wrote, over TLS.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use muster_bus::{Bus, BusConfig, MIRRORED, MirrorMemory, MirrorSettings, MirrorState};
use muster_contract::{DeviceKey, SiteId};
use muster_identity::Role;
use tempfile::TempDir;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::limits::lower_connections;
use crate::monitor::{self, Streams};
use crate::older;
use crate::server::{Server, Setup, free_port};
use crate::system::program;
use crate::tls::certified;
use crate::wait::until;

/// A server with an operator, and the directory of the operator's keys.
pub struct Guarded {
    /// The server.
    pub server: Server,
    dir: TempDir,
    authority: Option<PathBuf>,
    leaf_port: u16,
    websocket_port: u16,
    monitor_port: Option<u16>,
}

/// The parts of a hub to start.
#[derive(Default)]
struct Wanted<'a> {
    tls: bool,
    sites: &'a [&'a SiteId],
    is_monitored: bool,
}

impl Guarded {
    /// One that speaks TLS.
    pub fn start() -> Self {
        Self::start_with(Wanted { tls: true, ..Wanted::default() }, |_| ())
    }

    /// One that speaks plain text, whose keys the release before READERS and PEOPLE made, with a device that was enrolled
    /// then.
    pub fn start_older(key: &DeviceKey) -> Self {
        Self::start_older_with_sites(key, &[])
    }

    /// The same, also for the servers of these sites.
    pub fn start_older_with_sites(key: &DeviceKey, sites: &[&SiteId]) -> Self {
        Self::start_with(Wanted { sites, ..Wanted::default() }, |auth| {
            let file = device_creds(auth.parent().unwrap(), key).display().to_string();
            run_muster(auth, &["enroll", &key.to_string(), "--creds-file", &file]);
            older::rewrite(auth);
        })
    }

    /// One that speaks plain text, whose keys the release before CHECKERS made.
    pub fn start_without_checkers() -> Self {
        Self::start_with(Wanted::default(), older::without_checkers)
    }

    /// One that speaks plain text, for a test that speaks the protocol itself.
    pub fn start_plain() -> Self {
        Self::start_with(Wanted::default(), |_| ())
    }

    /// One that speaks plain text, with the keys of a backup.
    pub fn start_from(backup: &Path) -> Self {
        Self::start_with(Wanted::default(), |auth| {
            std::fs::remove_dir_all(auth).unwrap();
            let (backup, keys) = (backup.display().to_string(), auth.display().to_string());
            let args = ["restore", "--from", &backup, "--keys", &keys];
            assert!(Command::new(program("muster")).args(args).status().unwrap().success());
        })
    }

    /// One that speaks plain text, whose accounts (`devices`, `people`) take so few connections.
    pub fn start_with_connections(limits: &[(&str, usize)]) -> Self {
        Self::start_with(Wanted::default(), |auth| {
            limits.iter().for_each(|(account, most)| lower_connections(auth, account, *most));
        })
    }

    /// One that speaks plain text, also to the servers of these sites.
    pub fn start_with_sites(sites: &[&SiteId]) -> Self {
        Self::start_with(Wanted { sites, ..Wanted::default() }, |_| ())
    }

    /// The same, whose streams can be looked at by [`monitor`].
    pub fn start_monitored(sites: &[&SiteId]) -> Self {
        Self::start_with(Wanted { sites, is_monitored: true, ..Wanted::default() }, |_| ())
    }

    /// The same with account tokens of the release before, which import HUB's API exactly by name.
    pub fn start_importing_exactly(sites: &[&SiteId]) -> Self {
        Self::start_with(Wanted { sites, is_monitored: true, ..Wanted::default() }, older::import_exactly)
    }

    fn start_with(Wanted { tls, sites, is_monitored }: Wanted<'_>, rewrite: impl Fn(&Path)) -> Self {
        let dir = tempfile::Builder::new().prefix("muster-guarded-").tempdir().unwrap();
        let resolver = dir.path().join("accounts").display().to_string();
        let auth = dir.path().join("auth");
        run_muster(&auth, &["auth", "init", "--resolver-dir", &resolver]);
        sites.iter().for_each(|site| run_muster(&auth, &["auth", "leaf", site.as_str()]));
        rewrite(&auth);
        // The server reads an included file from beside its own configuration.
        let name = dir.path().file_name().unwrap().to_str().unwrap();
        let mut more = format!("include \"../{name}/auth/nats-server.conf\"\n");
        let websocket_port = free_port();
        let authority = tls.then(|| {
            let (authority, lines) = certified(dir.path());
            more += &format!("{lines}websocket {{ listen: \"127.0.0.1:{websocket_port}\"\n{lines}}}\n");
            authority
        });
        let leaf_port = free_port();
        if !sites.is_empty() {
            more += &format!("leafnodes {{ listen: \"127.0.0.1:{leaf_port}\" }}\n");
        }
        let monitor_port = is_monitored.then(free_port);
        if let Some(port) = monitor_port {
            more += &format!("http: \"127.0.0.1:{port}\"\n");
        }
        let server = Server::start_with(Setup { more, ..Setup::default() });
        Self { server, dir, authority, leaf_port, websocket_port, monitor_port }
    }

    /// Where the servers of sites come in.
    pub const fn leaf_port(&self) -> u16 {
        self.leaf_port
    }

    /// Its streams as they are now.
    ///
    /// # Panics
    ///
    /// If it is not monitored.
    pub fn streams(&self) -> Streams {
        monitor::streams(self.monitor_port.unwrap())
    }

    /// A directory that ends with the hub.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The operator's keys.
    pub fn auth(&self) -> PathBuf {
        self.dir.path().join("auth")
    }

    /// The authority of the server's certificate.
    pub fn authority(&self) -> Option<&Path> {
        self.authority.as_deref()
    }

    /// Where it listens.
    pub fn url(&self) -> String {
        let scheme = if self.authority.is_some() { "tls" } else { "nats" };
        format!("{scheme}://127.0.0.1:{}", self.server.port())
    }

    /// The address for WebSocket of a hub with TLS.
    pub fn websocket_url(&self) -> String {
        format!("wss://127.0.0.1:{}", self.websocket_port)
    }

    /// The credentials of a role, as they were made at the beginning.
    pub fn creds(&self, role: Role) -> PathBuf {
        self.auth().join(format!("creds/{}.creds", role.as_str()))
    }

    /// `muster` with the address of the server and these arguments.
    pub fn muster(&self, args: &[&str]) -> Output {
        let mut command = Command::new(program("muster"));
        command.args(args).args(["--nats-url", &self.url()]).env("NO_COLOR", "1");
        if let Some(authority) = &self.authority {
            command.arg("--tls-ca").arg(authority);
        }
        command.output().unwrap()
    }

    /// The same about the operator's keys; what it printed, if it went well.
    ///
    /// # Panics
    ///
    /// If it did not.
    pub fn decide(&self, args: &[&str]) -> String {
        let auth = self.auth().display().to_string();
        let done = self.muster(&[args, &["--dir", &auth]].concat());
        assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap()
    }

    /// Lets a device in with a key that is made here; its credentials file.
    pub fn enroll(&self, key: &DeviceKey, valid: &str) -> PathBuf {
        let file = self.device_creds(key);
        let name = file.display().to_string();
        self.decide(&["enroll", &key.to_string(), "--valid", valid, "--creds-file", &name]);
        file
    }

    fn device_creds(&self, key: &DeviceKey) -> PathBuf {
        device_creds(self.dir.path(), key)
    }

    /// The settings of somebody with a role.
    pub fn config(&self, role: Role) -> BusConfig {
        self.settings(self.creds(role), BusConfig::service(self.url(), role.as_str()))
    }

    /// Makes the mirrors that people read, of the streams as they are, and waits until they hold everything.
    pub async fn mirror(&self) {
        let stop = CancellationToken::new();
        let keeper = Bus::connect(self.config(Role::Keeper), &stop).await.unwrap();
        for stream in MIRRORED {
            let (settings, memory) = (MirrorSettings::default(), MirrorMemory::default());
            let look = async || keeper.keep_mirror(stream, &settings, memory, Instant::now()).await;
            let is_whole = |look: &Result<(MirrorState, _), _>| {
                matches!(look, Ok((MirrorState::Kept { lag: 0, .. }, _)))
            };
            until("a mirror", look, is_whole).await.unwrap();
        }
    }

    /// The settings of an enrolled device.
    pub fn device_config(&self, key: &DeviceKey) -> BusConfig {
        self.settings(self.device_creds(key), BusConfig::device(self.url(), key))
    }

    fn settings(&self, creds: PathBuf, config: BusConfig) -> BusConfig {
        BusConfig {
            creds: Some(creds),
            creds_check_interval: Duration::from_millis(100),
            tls_ca: self.authority.clone(),
            reconnect_max: Duration::from_millis(100),
            ..config
        }
    }
}

fn device_creds(dir: &Path, key: &DeviceKey) -> PathBuf {
    dir.join(format!("{}_{}.creds", key.site, key.device))
}

/// `muster` about a directory of keys, without a server.
fn run_muster(auth: &Path, args: &[&str]) {
    let made = Command::new(program("muster")).args(args).arg("--dir").arg(auth).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}
