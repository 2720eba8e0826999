//! The settings of `muster-simulator lab`.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use muster_contract::SiteId;
use muster_service::config::{Common, Problems};

use super::link_proxy::Server;
use super::log::LogArgs;
use crate::lab::Lab;

/// Shown below the help.
pub(super) const EXAMPLES: &str = "\
A lab is a fleet in containers on one machine; compose/compose.yaml has one. Every
process that can write into its folders can enrol devices, so do not use it for a real fleet.

Examples:
  muster-simulator lab prepare --dir /lab --name nats --name link
  muster-simulator lab prepare --dir /lab --site harbour --site quarry --uplink nats:7422
  muster-simulator lab admit --dir /lab --repository git://git/fleet.git";

/// Names in the certificate if none are given.
const NAMES_DEFAULT: [&str; 4] = ["nats", "link", "localhost", "127.0.0.1"];

/// `lab`
#[derive(Debug, Subcommand)]
pub(crate) enum LabCommand {
    /// Create the files that must exist before the first container starts, and end
    Prepare(PrepareArgs),
    /// Enrol devices that ask, and add them to the fleet, until asked to stop
    Admit(AdmitArgs),
}

/// The settings of both commands, as text.
#[derive(Debug, Args)]
pub(crate) struct PlaceArgs {
    /// Directory with the folders of the lab
    #[arg(
        long = "lab-dir",
        visible_alias = "dir",
        env = "MUSTER_LAB_DIR",
        value_name = "DIR",
        default_value = "/lab"
    )]
    dir: PathBuf,
    #[command(flatten)]
    log: LogArgs,
}

/// `lab prepare`, as typed.
#[derive(Debug, Args)]
pub(crate) struct PrepareArgs {
    /// Name or address in the hub's certificate; may be given several times [default: nats, link, localhost, 127.0.0.1]
    #[arg(
        long = "lab-name",
        visible_alias = "name",
        env = "MUSTER_LAB_NAME",
        value_name = "NAME",
        value_delimiter = ','
    )]
    name: Vec<String>,
    /// Site with a server of its own; may be given several times
    #[arg(
        long = "lab-site",
        visible_alias = "site",
        env = "MUSTER_LAB_SITE",
        value_name = "SITE",
        value_delimiter = ','
    )]
    site: Vec<String>,
    /// Address at which the servers of sites reach the hub
    #[arg(
        long = "lab-uplink",
        visible_alias = "uplink",
        env = "MUSTER_LAB_UPLINK",
        value_name = "HOST:PORT",
        default_value = "link:7422"
    )]
    uplink: String,
    #[command(flatten)]
    place: PlaceArgs,
}

/// `lab admit`, as typed.
#[derive(Debug, Args)]
pub(crate) struct AdmitArgs {
    /// The fleet's repository, as git pushes to it
    #[arg(
        long = "lab-repository",
        visible_alias = "repository",
        env = "MUSTER_LAB_REPOSITORY",
        value_name = "PATH|URL"
    )]
    repository: String,
    /// Folder for temporary files
    #[arg(
        long = "lab-scratch",
        visible_alias = "scratch",
        env = "MUSTER_LAB_SCRATCH",
        value_name = "DIR",
        default_value = "/tmp"
    )]
    scratch: PathBuf,
    /// Where to serve /live, /ready and /metrics, such as 127.0.0.1:9100; port 0 takes any free one
    #[arg(long, env = "MUSTER_HTTP_ADDR", value_name = "IP:PORT")]
    http_addr: Option<String>,
    #[command(flatten)]
    place: PlaceArgs,
}

/// `lab prepare`, checked.
#[derive(Debug, Clone)]
pub struct Prepare {
    /// The folders of the lab.
    pub lab: Lab,
    /// Names in the certificate.
    pub names: Vec<String>,
    /// Sites with a server of their own.
    pub sites: Vec<SiteId>,
    /// The address at which the servers of sites reach the hub.
    pub uplink: Server,
    /// The settings of every service.
    pub common: Common,
}

/// `lab admit`, checked.
#[derive(Debug, Clone)]
pub struct Admit {
    /// The folders of the lab.
    pub lab: Lab,
    /// The folder for temporary files.
    pub scratch: PathBuf,
    /// The fleet's repository.
    pub repository: String,
    /// The settings of every service.
    pub common: Common,
}

impl PlaceArgs {
    fn check(self, problems: &mut Problems) -> (Lab, Option<Common>) {
        is_there(problems, "--lab-dir", &self.dir);
        (Lab { dir: self.dir }, self.log.check(problems))
    }
}

fn is_there(problems: &mut Problems, flag: &'static str, path: &Path) {
    if !path.is_dir() {
        problems.refuse(flag, path.display(), "must be a directory that is there");
    }
}

impl PrepareArgs {
    pub(super) fn check(self) -> Result<Prepare, Problems> {
        let mut problems = Problems::default();
        let (lab, common) = self.place.check(&mut problems);
        let names = if self.name.is_empty() { NAMES_DEFAULT.map(str::to_owned).into() } else { self.name };
        let sites: Vec<_> = self.site.iter().map(|site| problems.parse("--lab-site", site)).collect();
        let uplink = problems.parse("--lab-uplink", &self.uplink);
        problems.finish(|| {
            let sites = sites.into_iter().collect::<Option<_>>()?;
            Some(Prepare { lab, names, sites, uplink: uplink?, common: common? })
        })
    }
}

impl AdmitArgs {
    pub(super) fn check(self) -> Result<Admit, Problems> {
        let mut problems = Problems::default();
        let (lab, common) = self.place.check(&mut problems);
        is_there(&mut problems, "--lab-scratch", &self.scratch);
        if self.repository.is_empty() || self.repository.starts_with('-') {
            problems.refuse(
                "--lab-repository",
                &self.repository,
                "must be a path or a URL that git can push to",
            );
        }
        let http_addr = problems.optional("--http-addr", self.http_addr.as_deref(), Problems::address);
        problems.finish(|| {
            let common = Common { http_addr: http_addr?, ..common? };
            Some(Admit { lab, scratch: self.scratch, repository: self.repository, common })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Settings, tests::check};

    #[test]
    fn a_lab_needs_its_folder_and_a_repository() {
        let missing = check(&["lab", "prepare", "--dir", "/no/such/lab"]).unwrap_err().to_string();
        assert!(missing.contains("MUSTER_LAB_DIR"), "{missing}");
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().to_str().unwrap();
        let Ok(Settings::Prepare(config)) = check(&["lab", "prepare", "--dir", dir]) else { panic!() };
        assert_eq!(config.names, ["nats", "link", "localhost", "127.0.0.1"]);
        let bad = check(&["lab", "prepare", "--dir", dir, "--site", "Harbour", "--uplink", "nowhere"]);
        let bad = bad.unwrap_err().to_string();
        assert!(bad.contains("'Harbour'") && bad.contains("must be HOST:PORT"), "{bad}");
        let option = check(&["lab", "admit", "--dir", dir, "--repository=--upload-pack=x"]).unwrap_err();
        assert!(option.to_string().contains("git can push to"), "{option}");
    }
}
