//! The Docker engine of this machine, and a fleet in containers on it: what `compose/` has, under a project of the
//! test's own. Everything of the project is gone when it ends, also when a test fails.
//!
//! Images are those of `compose/offline.sh`, with the tag [`TAG`].

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use muster_bus::{Bus, BusConfig};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use crate::system::program;

/// Tag of the images that tests run.
pub const TAG: &str = "check";
/// An image with a shell.
pub const BOX: &str = "muster-box:check";
/// The images of the fleet.
pub const IMAGES: [&str; 11] = [
    "muster-nats",
    "muster-publisher",
    "muster-ingest",
    "muster-rollup",
    "muster-planner",
    "muster-gateway",
    "muster-federation",
    "muster-renewer",
    "muster-agent",
    "muster-simulator",
    "muster-ctl",
];
/// Lines of each container's log that a failure shows.
const LOG_LINES: &str = "15";

/// Runs `docker`; what it printed, or what it complained of.
pub fn try_docker(args: &[&str]) -> Result<String, String> {
    said(Command::new("docker").args(args))
}

/// Runs `docker`; what it printed.
///
/// # Panics
///
/// If it fails.
pub fn docker(args: &[&str]) -> String {
    try_docker(args).unwrap_or_else(|error| panic!("docker {}: {error}", args.join(" ")))
}

/// The lines that `docker` prints.
pub fn listed(args: &[&str]) -> Vec<String> {
    docker(args).lines().map(str::to_owned).collect()
}

/// The Compose command of this machine: the plugin if both are here, unless `MUSTER_COMPOSE` names the other.
///
/// # Panics
///
/// If there is none.
pub fn compose_command() -> Vec<&'static str> {
    let mut ways = [vec!["docker", "compose"], vec!["docker-compose"]];
    if std::env::var_os("MUSTER_COMPOSE").is_some_and(|name| name == "docker-compose") {
        ways.reverse();
    }
    let found =
        ways.into_iter().find(|way| said(Command::new(way[0]).args(&way[1..]).arg("version")).is_ok());
    found.expect("neither docker compose nor docker-compose is here: .ci/engine installs one")
}

fn said(command: &mut Command) -> Result<String, String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

/// An image with a shell, made of Debian's static busybox: nothing is pulled.
///
/// # Panics
///
/// If there is no busybox on this machine.
pub fn box_image() -> &'static str {
    if try_docker(&["image", "inspect", BOX]).is_err() {
        import_box(&[]);
    }
    BOX
}

/// Makes [`box_image`] on the engine that `docker` reaches with these arguments.
///
/// # Panics
///
/// If there is no busybox on this machine.
pub fn import_box(engine: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let bin = dir.path().join("bin");
    std::fs::create_dir_all(&bin).unwrap();
    std::fs::create_dir_all(dir.path().join("tmp")).unwrap();
    let found = ["/bin/busybox", "/usr/bin/busybox"].into_iter().find(|path| Path::new(path).is_file());
    let busybox = found.expect("there is no busybox: .ci/engine installs Debian's busybox-static");
    std::fs::copy(busybox, bin.join("busybox")).unwrap();
    for name in ["sh", "sleep", "test", "touch", "cat", "false", "echo"] {
        std::os::unix::fs::symlink("busybox", bin.join(name)).unwrap();
    }
    let archive = dir.path().join("box.tar");
    let path = archive.display().to_string();
    let folder = dir.path().display().to_string();
    said(Command::new("tar").args(["--create", "--file", &path, "--directory", &folder, "bin", "tmp"]))
        .unwrap();
    docker(&[engine, &["import", &path, BOX]].concat());
}

/// A port of this machine that is free now.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A fleet in containers.
pub struct Stack {
    project: String,
    files: Vec<PathBuf>,
    variables: BTreeMap<String, String>,
    dir: TempDir,
}

impl Stack {
    /// A project of these files of `compose/`. Nothing is started; what an earlier run left is taken away.
    ///
    /// # Panics
    ///
    /// If the images are not there.
    pub fn new(project: &str, files: &[&str], variables: &[(&str, &str)]) -> Self {
        for image in IMAGES {
            let there = try_docker(&["image", "inspect", &format!("{image}:{TAG}")]);
            assert!(
                there.is_ok(),
                "there is no image {image}:{TAG}: MUSTER_TAG={TAG} compose/offline.sh makes it"
            );
        }
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../compose");
        let own = [
            ("COMPOSE_PROJECT_NAME", project.to_owned()),
            ("MUSTER_TAG", TAG.to_owned()),
            ("MUSTER_PORT", free_port().to_string()),
            ("MUSTER_WEB_PORT", free_port().to_string()),
            ("MUSTER_MARGO_PORT", free_port().to_string()),
            ("MUSTER_WS_PORT", free_port().to_string()),
            ("MUSTER_GIT_PORT", free_port().to_string()),
        ];
        let given = variables.iter().map(|(name, value)| (*name, (*value).to_owned()));
        let stack = Self {
            project: project.to_owned(),
            files: files.iter().map(|file| folder.join(file)).collect(),
            variables: own.into_iter().chain(given).map(|(name, value)| (name.to_owned(), value)).collect(),
            dir: tempfile::tempdir().unwrap(),
        };
        stack.take_down();
        stack
    }

    /// The address on this machine that a variable of the fleet names the port of.
    ///
    /// # Panics
    ///
    /// The fleet has no such variable.
    pub fn published(&self, variable: &str) -> SocketAddr {
        let port = self
            .variables
            .iter()
            .find(|(name, _)| name.as_str() == variable)
            .and_then(|(_, port)| port.parse().ok());
        SocketAddr::from(([127, 0, 0, 1], port.unwrap_or_else(|| panic!("no port {variable}"))))
    }

    /// Runs Compose on the project; what it printed, or what it complained of.
    pub fn compose(&self, args: &[&str]) -> Result<String, String> {
        let way = compose_command();
        let mut command = Command::new(way[0]);
        command.args(&way[1..]);
        for file in &self.files {
            command.arg("--file").arg(file);
        }
        said(command.args(args).envs(&self.variables))
    }

    /// Starts what is not running.
    ///
    /// # Panics
    ///
    /// If Compose refuses.
    pub fn up(&self, args: &[&str]) {
        let done = self.compose(&[&["up", "--detach", "--no-build"], args].concat());
        if let Err(error) = done {
            panic!("the fleet does not come up: {error}\n{}", self.logs());
        }
    }

    /// Ends everything by `compose/down.sh`, which also takes away what Compose leaves of containers that were made anew.
    ///
    /// # Panics
    ///
    /// If it refuses.
    pub fn end(&self) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../compose");
        let mut command = Command::new(folder.join("down.sh"));
        for file in &self.files {
            command.arg("--file").arg(file);
        }
        said(command.envs(&self.variables)).unwrap();
    }

    /// The remains of the project on the engine: containers, networks, volumes.
    pub fn remains(&self) -> Vec<String> {
        let mine = format!("label=com.docker.compose.project={}", self.project);
        let of = |args: &[&str]| listed(&[args, &["--filter", &mine]].concat());
        [of(&["ps", "--all", "--quiet"]), of(&["network", "ls", "--quiet"]), of(&["volume", "ls", "--quiet"])]
            .concat()
    }

    /// The containers of a service, those that have ended as well.
    pub fn containers(&self, service: &str) -> Vec<String> {
        let project = format!("label=com.docker.compose.project={}", self.project);
        let service = format!("label=com.docker.compose.service={service}");
        listed(&["ps", "--all", "--quiet", "--filter", &project, "--filter", &service])
    }

    /// The only container of a service.
    ///
    /// # Panics
    ///
    /// If there is none, or another.
    pub fn container(&self, service: &str) -> String {
        let found = self.containers(service);
        let [only] = found.as_slice() else { panic!("{service} has {} containers", found.len()) };
        only.clone()
    }

    /// The project's name of a network.
    pub fn network(&self, name: &str) -> String {
        format!("{}_{name}", self.project)
    }

    /// A copy of a file of a service's container.
    pub fn copied(&self, service: &str, path: &str) -> PathBuf {
        let name = Path::new(path).file_name().unwrap();
        let to = self.dir.path().join(name);
        docker(&["cp", &format!("{}:{path}", self.container(service)), &to.display().to_string()]);
        to
    }

    /// A connection to the hub with the rights of a role that is no device.
    pub async fn bus(&self, role: &str) -> Bus {
        let config = BusConfig {
            creds: Some(self.copied("admit", &format!("/data/vault/auth/creds/{role}.creds"))),
            tls_ca: Some(self.copied("publisher", "/data/trust/ca.pem")),
            reconnect_max: Duration::from_millis(500),
            ..BusConfig::service(self.url(), "test")
        };
        Bus::connect(config, &CancellationToken::new()).await.unwrap()
    }

    /// `muster` of this build with these arguments and an operator's rights; what it printed, or complained of.
    pub fn muster(&self, args: &[&str]) -> Result<String, String> {
        self.muster_as("operator", args)
    }

    /// The same with the credentials of a role.
    pub fn muster_as(&self, role: &str, args: &[&str]) -> Result<String, String> {
        let creds = self.copied("admit", &format!("/data/vault/auth/creds/{role}.creds"));
        let authority = self.copied("publisher", "/data/trust/ca.pem");
        let mut command = Command::new(program("muster"));
        command.args(args).env("NO_COLOR", "1").env("MUSTER_NATS_URL", self.url());
        let output = command.env("MUSTER_CREDS", creds).env("MUSTER_TLS_CA", authority).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let complaint = String::from_utf8_lossy(&output.stderr);
        if output.status.success() { Ok(text) } else { Err(format!("{text}{complaint}")) }
    }

    /// Where the hub is for this machine.
    pub fn url(&self) -> String {
        format!("tls://127.0.0.1:{}", self.variables["MUSTER_PORT"])
    }

    /// Clones the fleet's repository, lets `change` work on it, and pushes what that made, as a person would.
    pub fn push(&self, message: &str, change: impl FnOnce(&Path)) {
        let clone = tempfile::tempdir_in(self.dir.path()).unwrap();
        let path = clone.path().display().to_string();
        let git = |args: &[&str]| {
            let author = ["-c", "user.name=Somebody", "-c", "user.email=somebody@localhost"];
            let done = said(Command::new("git").args(["-C", &path]).args(author).args(args));
            done.unwrap_or_else(|error| panic!("git {args:?}: {error}"))
        };
        let url = format!("git://127.0.0.1:{}/fleet.git", self.variables["MUSTER_GIT_PORT"]);
        git(&["clone", "--quiet", &url, "."]);
        change(clone.path());
        git(&["add", "--all"]);
        git(&["commit", "--quiet", "--message", message]);
        git(&["push", "--quiet", "origin", "HEAD:main"]);
    }

    /// The commit that is to be published.
    pub fn revision(&self) -> String {
        let url = format!("git://127.0.0.1:{}/fleet.git", self.variables["MUSTER_GIT_PORT"]);
        let listed = said(Command::new("git").args(["ls-remote", &url, "refs/heads/main"])).unwrap();
        listed.split_whitespace().next().unwrap().to_owned()
    }

    /// How every container is, and what it wrote last.
    pub fn logs(&self) -> String {
        let mine = format!("label=com.docker.compose.project={}", self.project);
        let format = "{{.Names}}\t{{.Status}}";
        let all = try_docker(&["ps", "--all", "--filter", &mine, "--format", format]).unwrap_or_default();
        let shown = all.lines().map(|line| {
            let name = line.split('\t').next().unwrap_or_default();
            let logs = Command::new("docker").args(["logs", "--tail", LOG_LINES, name]).output().unwrap();
            format!("--- {line}\n{}", String::from_utf8_lossy(&logs.stderr))
        });
        shown.collect()
    }

    fn take_down(&self) {
        let _ = self.compose(&["down", "--volumes", "--remove-orphans", "--timeout", "1"]);
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        self.take_down();
    }
}
