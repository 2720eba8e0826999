//! A fleet in containers: `prepare` creates the files that the containers need before they start, and `admit` enrols the
//! devices that ask. It is for a private machine: every process that can write into the lab's folders is enrolled.
//!
//! ```text
//! vault/auth              the operator's keys                             prepare, admit
//! hub/                    nats-server's configuration, certificate, key   prepare → nats
//! trust/ca.pem            the authority of that certificate               prepare → everybody
//! creds/<role>/           <role>.creds, a folder for each role            prepare → the service of that role
//! git/fleet.git           the repository, with the sample fleet           prepare → git
//! leaf/<site>/            the same for the server of a site               prepare → that server
//! trust/<site>.pem        the authority of its certificate                prepare → the devices of the site
//! devices/                certificates and credentials for Margo's API prepare → gateway
//! gateway/                the key that seals webhooks                     prepare → gateway
//! join/                   public keys of devices, and JWTs for them       devices ↔ admit
//! ```
//!
//! Each folder is mounted where it is needed and nowhere else. What exists is left as it is, so both may be run again at
//! any time, and go on where they were killed. Nothing here speaks to the bus.

pub(crate) mod admit;
mod certificate;
mod devices;
pub(crate) mod files;
mod fleet;
pub(crate) mod prepare;
mod site;

use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};

use clap::Parser as _;
use muster_contract::SiteId;
use muster_ctl::config::Cli;
use muster_ctl::terminal::Terminal;

use crate::environment;
use crate::error::Error;

/// The folders of a lab.
#[derive(Debug, Clone)]
pub struct Lab {
    /// Where all of them are.
    pub dir: PathBuf,
}

impl Lab {
    /// The operator's keys.
    pub fn auth(&self) -> PathBuf {
        self.dir.join("vault/auth")
    }

    /// The configuration of nats-server.
    pub fn hub(&self) -> PathBuf {
        self.dir.join("hub")
    }

    /// The authority's certificate, for everybody.
    pub fn authority(&self) -> PathBuf {
        self.dir.join("trust/ca.pem")
    }

    /// The configuration of a site's server.
    pub fn leaf(&self, site: &SiteId) -> PathBuf {
        self.dir.join("leaf").join(site.as_str())
    }

    /// The authority of that server's certificate.
    pub(crate) fn authority_of(&self, site: &SiteId) -> PathBuf {
        self.dir.join(format!("trust/{site}.pem"))
    }

    /// The certificates and credentials with which the gateway serves devices that speak Margo's API.
    pub fn devices(&self) -> PathBuf {
        self.dir.join("devices")
    }

    /// The key that seals addresses and secrets of webhooks.
    pub fn webhook_key(&self) -> PathBuf {
        self.dir.join("gateway/webhook.key")
    }

    /// The folder with the requests of devices.
    pub fn join(&self) -> PathBuf {
        self.dir.join("join")
    }

    /// The bare repository.
    pub fn repository(&self) -> PathBuf {
        self.dir.join("git/fleet.git")
    }
}

/// The output of a command.
#[derive(Debug, Clone, Default)]
struct CapturedOutput(Arc<Mutex<Vec<u8>>>);

impl CapturedOutput {
    fn text(&self) -> String {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).trim().to_owned()
    }
}

impl Write for CapturedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Does what `muster` does with these arguments, in this process: a container of a lab has one program.
pub(crate) async fn muster(args: &[&str]) -> Result<(), Error> {
    let words: Vec<String> = std::iter::once(&"muster").chain(args).map(|&word| word.to_owned()).collect();
    let complained = CapturedOutput::default();
    let mut terminal = Terminal::of(CapturedOutput::default(), complained.clone());
    let here = tokio::runtime::Handle::current();
    // On a thread of its own: a command line is made for a process that does nothing else.
    let done = move || here.block_on(muster_ctl::app::run(Cli::try_parse_from(words), &mut terminal));
    match tokio::task::spawn_blocking(done).await {
        Ok(0) => Ok(()),
        _ => Err(Error::Refused { what: format!("muster {}", args[0]), said: complained.text() }),
    }
}

/// Runs a program to its end; what it complained of, if it did not end well.
async fn run<S: AsRef<OsStr>>(path: &Path, program: &'static str, args: &[S]) -> Result<(), Error> {
    let output = environment::command(path).args(args).stdin(Stdio::null()).output().await;
    let output = output.map_err(|source| Error::Start { program: path.to_owned(), source })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let what = args.first().map(|first| first.as_ref().to_string_lossy().into_owned()).unwrap_or_default();
    Err(Error::Refused { what: format!("{program} {what}"), said })
}

/// Writes a file as a whole, in the place of an older one.
fn keep(path: &Path, text: &str, mode: u32) -> Result<(), Error> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let beside = path.with_extension("new");
    let write = || {
        // One that a killed process left behind would keep its own mode.
        let _ = std::fs::remove_file(&beside);
        let mut file = std::fs::File::options().write(true).create_new(true).mode(mode).open(&beside)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&beside, path)
    };
    write().map_err(|source| Error::Prepare { path: path.to_owned(), source })
}

/// Makes a folder and those above it.
pub(crate) fn folder(path: &Path) -> Result<(), Error> {
    std::fs::create_dir_all(path).map_err(|source| Error::Prepare { path: path.to_owned(), source })
}
