//! What can go wrong with the Git source, and what to do about it. The fleet keeps its last good commit meanwhile.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

/// Why a commit could not be had.
#[derive(Debug, thiserror::Error)]
pub enum GitError {
    /// There is no git.
    #[error("cannot find '{program}': install git 2.31 or newer, or put it on PATH", program = program.display())]
    NoGit {
        /// What was looked for.
        program: PathBuf,
    },
    /// It cannot be run.
    #[error("cannot run '{program}'", program = program.display())]
    Start {
        /// What was run.
        program: PathBuf,
        /// What the machine says.
        #[source]
        source: io::Error,
    },
    /// Its pipes broke.
    #[error("git could not {what}: it stopped listening")]
    Talk {
        /// Its purpose.
        what: String,
        /// What the machine says.
        #[source]
        source: io::Error,
    },
    /// It took too long and was ended.
    #[error("git could not {what} within {} s: is the repository reachable?", limit.as_secs())]
    Slow {
        /// Its purpose.
        what: String,
        /// The time it had.
        limit: Duration,
    },
    /// It failed.
    #[error("git could not {what} ({status}): {complaint}")]
    Failed {
        /// Its purpose.
        what: String,
        /// How it ended.
        status: ExitStatus,
        /// Its own words.
        complaint: String,
    },
    /// The repository is there, the branch is not.
    #[error(
        "{url} has no branch '{branch}' ({}): push it, or choose another with --git-branch",
        if others.is_empty() { "nor any other".to_owned() } else { format!("it has {}", others.join(", ")) }
    )]
    NoBranch {
        /// The repository.
        url: String,
        /// The branch.
        branch: String,
        /// Some that it has.
        others: Vec<String>,
    },
    /// The file with the token cannot be used.
    #[error("cannot read the token of --git-token-file {path}", path = path.display())]
    Token {
        /// The file.
        path: PathBuf,
        /// What the machine says.
        #[source]
        source: io::Error,
    },
    /// The mirror cannot be made.
    #[error("cannot write {path}: give the publisher a directory of its own with --data-dir", path = path.display())]
    DataDir {
        /// What was to be written.
        path: PathBuf,
        /// What the machine says.
        #[source]
        source: io::Error,
    },
    /// The commit holds more than the publisher reads.
    #[error("commit {revision} has {bytes} bytes of YAML in fleet/ and sites/; {limit} are allowed")]
    TooMuch {
        /// The commit.
        revision: String,
        /// What it has.
        bytes: u64,
        /// What is allowed.
        limit: u64,
    },
    /// Git said something that this version of the publisher does not understand.
    #[error("git said something unexpected when asked to {what}: '{said}'")]
    Unexpected {
        /// Its purpose.
        what: String,
        /// The beginning of what it said.
        said: String,
    },
}

impl GitError {
    /// True where the repository gave no answer in time.
    pub(crate) const fn is_timeout(&self) -> bool {
        matches!(self, Self::Slow { .. })
    }

    /// True where a mirror that is damaged would look the same.
    pub(super) const fn may_be_the_mirrors(&self) -> bool {
        matches!(self, Self::Failed { .. } | Self::Talk { .. } | Self::Unexpected { .. })
    }
}
