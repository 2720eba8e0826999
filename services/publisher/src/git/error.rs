//! The errors of the Git source, with what to do about each. The fleet keeps its last good commit meanwhile.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

/// Why a commit could not be read.
#[derive(Debug, thiserror::Error)]
pub enum GitError {
    /// Git is not installed.
    #[error("cannot find '{program}': install git 2.31 or newer, or put it on PATH", program = program.display())]
    NoGit {
        /// The program.
        program: PathBuf,
    },
    /// Git cannot be run.
    #[error("cannot run '{program}'", program = program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// A pipe to git broke.
    #[error("git could not {what}: the connection to its process broke")]
    Talk {
        /// The purpose of the run.
        what: String,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// Git exceeded its time limit and was killed.
    #[error("git could not {what} within {} s: is the repository reachable?", limit.as_secs())]
    Slow {
        /// The purpose of the run.
        what: String,
        /// The time limit.
        limit: Duration,
    },
    /// Git failed.
    #[error("git could not {what} ({status}): {complaint}")]
    Failed {
        /// The purpose of the run.
        what: String,
        /// Its exit status.
        status: ExitStatus,
        /// Its error output.
        complaint: String,
    },
    /// The repository does not have the branch.
    #[error(
        "{url} has no branch '{branch}' ({}): push it, or choose another with --git-branch",
        if others.is_empty() { "nor any other".to_owned() } else { format!("it has {}", others.join(", ")) }
    )]
    NoBranch {
        /// The repository.
        url: String,
        /// The branch.
        branch: String,
        /// Some branches that it has.
        others: Vec<String>,
    },
    /// The file with the token cannot be used.
    #[error("cannot read the token of --git-token-file {path}", path = path.display())]
    Token {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// The mirror cannot be created.
    #[error("cannot write {path}: give the publisher a directory of its own with --data-dir", path = path.display())]
    DataDir {
        /// The directory.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// The commit exceeds the publisher's limit.
    #[error("commit {revision} has {bytes} bytes of YAML in fleet/ and sites/; {limit} are allowed")]
    TooMuch {
        /// The commit.
        revision: String,
        /// Its bytes of YAML.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// Git's output does not have the expected form.
    #[error("git's output is unexpected when it should {what}: '{output}'")]
    Unexpected {
        /// The purpose of the run.
        what: String,
        /// The beginning of the output.
        output: String,
    },
}

impl GitError {
    /// True if the repository did not answer in time.
    pub(crate) const fn is_timeout(&self) -> bool {
        matches!(self, Self::Slow { .. })
    }

    /// True if a damaged mirror may be the cause.
    pub(super) const fn may_be_caused_by_the_mirror(&self) -> bool {
        matches!(self, Self::Failed { .. } | Self::Talk { .. } | Self::Unexpected { .. })
    }
}
