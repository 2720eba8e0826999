//! The command line of `muster app`.

use std::path::PathBuf;

use clap::Subcommand;

pub(super) const APP_EXAMPLES: &str = "\
The catalogue is the folder applications/ of a repository, with a margo.yaml (ApplicationDescription) of each application,
at most 16 folders deep. The publisher checks every deployment that names the application as applicationId against its
rules: the type and components of a profile, and the values of parameters. These commands only read files.

Examples:
  muster app list                        the applications of the repository in this folder
  muster app list ~/fleet --format json
  muster app show line-historian ~/fleet its profiles, and its parameters with their rules
  muster app validate applications/historian/margo.yaml

Exit code 1: a description breaks a rule, or there is no such application. Each problem has its file, line, field and rule.";

/// `muster app`
#[derive(Debug, Subcommand)]
pub enum AppCommand {
    /// The applications of a repository
    List {
        /// The repository
        #[arg(default_value = ".", value_name = "DIR")]
        repository: PathBuf,
    },
    /// One application: profiles, parameters and the rules of their values
    Show {
        /// Its id
        id: String,
        /// The repository
        #[arg(default_value = ".", value_name = "DIR")]
        repository: PathBuf,
    },
    /// Check descriptions against Margo's rules; prints every problem
    Validate {
        /// Files, or folders with a margo.yaml, at most 16 folders deep
        #[arg(required = true, value_name = "PATH")]
        paths: Vec<PathBuf>,
    },
}
