//! The end of a process as an error: its code and its message.

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;

use muster_contract::ComponentName;
use muster_contract::state::StatusError;

use crate::runtime::code;

/// The cause of a process's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExitCause {
    /// An exit code.
    Code(i32),
    /// A signal.
    Signal(i32),
    /// Unknown: only the parent of a process learns its exit status.
    Unknown,
}

/// The time of a process's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EndTime {
    /// Before it was ready.
    BeforeReady,
    /// After it was ready.
    AfterReady,
}

/// The end of a unit's main process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProcessEnd {
    /// The cause.
    pub(super) how: ExitCause,
    /// The last lines of its stderr.
    pub(super) last_lines: String,
    /// The file of its stderr.
    pub(super) log: PathBuf,
}

impl From<ExitStatus> for ExitCause {
    fn from(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Code(code),
            (None, Some(signal)) => Self::Signal(signal),
            (None, None) => Self::Unknown,
        }
    }
}

impl ProcessEnd {
    /// Whether a job with this end is complete.
    pub(super) fn is_success(&self) -> bool {
        self.how == ExitCause::Code(0)
    }

    /// The end as an error.
    pub(super) fn error(&self, component: &ComponentName, when: EndTime) -> StatusError {
        let (code, how) = match self.how {
            ExitCause::Code(exit) => (code::EXITED, format!("ended with exit code {exit}")),
            ExitCause::Signal(signal) => (code::KILLED, format!("was ended by {}", signal_words(signal))),
            ExitCause::Unknown => {
                (code::EXITED, "ended, exit status unknown, the process outlived an agent restart".to_owned())
            }
        };
        let when = match when {
            EndTime::BeforeReady => " before it was ready",
            EndTime::AfterReady => "",
        };
        let hint = match self.how {
            ExitCause::Code(0) => "; if it is meant to end, use readiness type 'exit'",
            ExitCause::Code(_) | ExitCause::Signal(_) | ExitCause::Unknown => "",
        };
        StatusError::new(code, component.as_str(), format!("{how}{when}{hint}; {}", self.last_lines()))
    }

    /// The last lines of its stderr, as the end of a sentence.
    fn last_lines(&self) -> String {
        stderr_summary(&self.last_lines, &self.log)
    }
}

/// The last lines of a unit's stderr, as the end of a sentence.
pub(super) fn stderr_summary(last_lines: &str, log: &std::path::Path) -> String {
    if last_lines.is_empty() {
        return "it wrote nothing to stderr".to_owned();
    }
    format!("last lines of {}:\n{last_lines}", log.display())
}

/// A signal's number, its name if that is the same on every machine, and its usual cause.
fn signal_words(signal: i32) -> String {
    let name = match signal {
        1 => " (SIGHUP)",
        2 => " (SIGINT)",
        3 => " (SIGQUIT)",
        4 => " (SIGILL: an instruction that this machine does not have)",
        5 => " (SIGTRAP)",
        6 => " (SIGABRT: it aborted)",
        8 => " (SIGFPE)",
        9 => " (SIGKILL: sent by a user, or by the kernel when memory ran out; see dmesg)",
        11 => " (SIGSEGV: a memory fault)",
        13 => " (SIGPIPE)",
        14 => " (SIGALRM)",
        15 => " (SIGTERM)",
        _ => "",
    };
    format!("signal {signal}{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_end_has_its_code_and_its_words() {
        let component = "web".parse().unwrap();
        let log = PathBuf::from("/d/web.err");
        for (how, when, last_lines, code, message) in [
            (
                ExitCause::Code(3),
                EndTime::BeforeReady,
                "",
                code::EXITED,
                "ended with exit code 3 before it was ready; it wrote nothing to stderr",
            ),
            (
                ExitCause::Code(1),
                EndTime::AfterReady,
                "no disk",
                code::EXITED,
                "ended with exit code 1; last lines of /d/web.err:\nno disk",
            ),
            (
                ExitCause::Code(0),
                EndTime::AfterReady,
                "",
                code::EXITED,
                "ended with exit code 0; if it is meant to end, use readiness type 'exit'; it wrote nothing to stderr",
            ),
            (
                ExitCause::Signal(11),
                EndTime::AfterReady,
                "",
                code::KILLED,
                "was ended by signal 11 (SIGSEGV: a memory fault); it wrote nothing to stderr",
            ),
            (
                ExitCause::Signal(34),
                EndTime::AfterReady,
                "",
                code::KILLED,
                "was ended by signal 34; it wrote nothing to stderr",
            ),
            (
                ExitCause::Unknown,
                EndTime::AfterReady,
                "",
                code::EXITED,
                "ended, exit status unknown, the process outlived an agent restart; it wrote nothing to stderr",
            ),
        ] {
            let end = ProcessEnd { how, last_lines: last_lines.to_owned(), log: log.clone() };
            assert_eq!(end.error(&component, when), StatusError::new(code, "web", message));
        }
    }
}
