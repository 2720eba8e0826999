//! A PostgreSQL server for one bench: its own directory and socket, no network, gone with the value. It is driven by psql.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

/// Where Debian keeps the programs that are on no path.
const DEBIAN: &str = "/usr/lib/postgresql";
/// PostgreSQL does not run as root. Debian's package makes this user.
const USER: &str = "postgres";
/// Room enough for everything, and checkpoints seldom enough not to be measured.
const SETTINGS: &str =
    "-c shared_buffers=1GB -c max_wal_size=8GB -c synchronous_commit=off -c listen_addresses= -k";

/// A server that ends with this value.
pub(crate) struct Cluster {
    dir: TempDir,
    programs: PathBuf,
}

impl Cluster {
    /// None where there is no server program.
    pub(crate) fn start() -> Option<Self> {
        let cluster = Self { dir: tempfile::tempdir().unwrap(), programs: programs()? };
        // Another user makes its files here.
        std::fs::set_permissions(cluster.dir.path(), Permissions::from_mode(0o777)).unwrap();
        let (data, log) = (cluster.data(), cluster.dir.path().join("log").display().to_string());
        let encoding = ["--encoding=UTF8", "--locale=C", "--auth=trust", "--username=bench"];
        cluster.must("initdb", &[&encoding[..], &["-D", &data]].concat());
        let settings = format!("{SETTINGS} {}", cluster.dir.path().display());
        cluster.must("pg_ctl", &["-D", &data, "-l", &log, "-o", &settings, "-w", "start"]);
        Some(cluster)
    }

    /// As a table's heading has it.
    pub(crate) fn version(&self) -> String {
        let number = self.ask("SHOW server_version");
        format!("PostgreSQL {}", number.split_whitespace().next().unwrap_or_default())
    }

    /// Writes a script for [`Self::run_file`].
    pub(crate) fn write(&self, script: &str) -> PathBuf {
        let path = self.dir.path().join("work.sql");
        std::fs::write(&path, script).unwrap();
        path
    }

    /// Runs a script.
    pub(crate) fn run(&self, script: &str) {
        self.run_file(&self.write(script));
    }

    /// Runs a script that is written already.
    pub(crate) fn run_file(&self, path: &Path) {
        self.psql(&["-f", &path.display().to_string()]);
    }

    /// The one value that a question gives.
    pub(crate) fn ask(&self, question: &str) -> String {
        String::from_utf8_lossy(&self.psql(&["-At", "-c", question]).stdout).trim().to_owned()
    }

    fn psql(&self, words: &[&str]) -> Output {
        let socket = self.dir.path().display().to_string();
        let fixed = ["-h", &socket, "-U", "bench", "-d", "postgres", "-q", "-X", "-v", "ON_ERROR_STOP=1"];
        self.must("psql", &[&fixed[..], words].concat())
    }

    fn data(&self) -> String {
        self.dir.path().join("data").display().to_string()
    }

    fn must(&self, program: &str, words: &[&str]) -> Output {
        let output = self.command(program, words).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} failed: {said}");
        output
    }

    fn command(&self, program: &str, words: &[&str]) -> Command {
        let path = self.programs.join(program);
        let mut command = if rustix::process::geteuid().is_root() {
            let mut command = Command::new("runuser");
            command.args(["-u", USER, "--"]).arg(path);
            command
        } else {
            Command::new(path)
        };
        command.args(words).current_dir(self.dir.path()).stdin(Stdio::null());
        command
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let data = self.data();
        // It is gone with its directory; what it says while it ends helps nobody.
        let _ = self.command("pg_ctl", &["-D", &data, "-m", "immediate", "-w", "stop"]).output();
    }
}

/// The directory of the newest server's programs.
fn programs() -> Option<PathBuf> {
    let on_path = std::env::var_os("PATH").map(|path| std::env::split_paths(&path).collect::<Vec<_>>());
    let versions =
        std::fs::read_dir(DEBIAN).into_iter().flatten().flatten().map(|entry| entry.path().join("bin"));
    let mut versions: Vec<PathBuf> = versions.collect();
    versions.sort();
    let places = versions.into_iter().rev().chain(on_path.into_iter().flatten());
    places
        .into_iter()
        .find(|place| ["initdb", "pg_ctl", "psql"].iter().all(|name| place.join(name).is_file()))
}
