//! The exit codes of Muster's programs. `main` returns them.

use std::io::Write;
use std::process::ExitCode;

use crate::config::Problems;

/// The reason for the end of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// A signal or its work asked it to stop, and every task ended in time.
    Clean,
    /// A task failed, or did not end in time.
    Failed,
    /// The command line or the environment has unusable values. Nothing was started.
    Usage,
    /// SIGQUIT, or a second signal during the stop, ended it at once.
    AtOnce,
}

impl Exit {
    /// The exit code.
    pub const fn code(self) -> u8 {
        match self {
            Self::Clean => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::AtOnce => 130,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// Prints the unusable settings on standard error; returns the code for them.
pub fn usage(program: &str, problems: &Problems) -> ExitCode {
    // If standard error is closed, only the code reports it.
    let _ = write!(std::io::stderr(), "{program}: {problems}");
    Exit::Usage.into()
}
