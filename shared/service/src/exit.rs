//! How a process ends: every exit code of Muster's programs, in one place.
//!
//! Nothing here ends the process by force: `main` returns the code.

use std::io::Write;
use std::process::ExitCode;

use crate::config::Problems;

/// Why the process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// It was asked to stop and every task ended in time.
    Clean,
    /// A task failed, or was late when the process was asked to stop.
    Failed,
    /// The command line or the environment holds values it cannot work with. Nothing was started.
    Usage,
    /// A second signal came while it was stopping: it left at once.
    AtOnce,
}

impl Exit {
    /// The code the shell sees.
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

/// Says on standard error what is wrong with the settings; returns the code for it.
pub fn usage(program: &str, problems: &Problems) -> ExitCode {
    // Nobody is left to tell when standard error is closed; the code still says it.
    let _ = write!(std::io::stderr(), "{program}: {problems}");
    Exit::Usage.into()
}
