//! How a process ended, in the words of an error: code and sentence. Decides nothing.

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;

use muster_contract::ComponentName;
use muster_contract::state::StatusError;

use crate::runtime::code;

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    /// With an exit code.
    Code(i32),
    /// By a signal.
    Signal(i32),
    /// Nobody can say: only the parent of a process learns how it ended.
    Unknown,
}

/// When a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    /// While it was awaited to be ready.
    BeforeReady,
    /// Later.
    AfterReady,
}

/// The end of a unit's main process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct End {
    /// How it ended.
    pub(super) how: How,
    /// The last lines it wrote to stderr.
    pub(super) last_words: String,
    /// Where the rest of them is.
    pub(super) log: PathBuf,
}

impl From<ExitStatus> for How {
    fn from(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Code(code),
            (None, Some(signal)) => Self::Signal(signal),
            (None, None) => Self::Unknown,
        }
    }
}

impl End {
    /// Whether a job that ended so has done its work.
    pub(super) fn is_success(&self) -> bool {
        self.how == How::Code(0)
    }

    /// The end as an error.
    pub(super) fn error(&self, component: &ComponentName, when: When) -> StatusError {
        let (code, how) = match self.how {
            How::Code(exit) => (code::EXITED, format!("ended with exit code {exit}")),
            How::Signal(signal) => (code::KILLED, format!("was ended by {}", signal_words(signal))),
            How::Unknown => {
                (code::EXITED, "ended, exit status unknown, the process outlived an agent restart".to_owned())
            }
        };
        let when = match when {
            When::BeforeReady => " before it was ready",
            When::AfterReady => "",
        };
        let hint = match self.how {
            How::Code(0) => "; if it is meant to end, give it the readiness type 'exit'",
            How::Code(_) | How::Signal(_) | How::Unknown => "",
        };
        StatusError::new(code, component.as_str(), format!("{how}{when}{hint}; {}", self.last_words()))
    }

    /// What it said last, as the end of a sentence.
    fn last_words(&self) -> String {
        said(&self.last_words, &self.log)
    }
}

/// What a unit said last, as the end of a sentence.
pub(super) fn said(last_words: &str, log: &std::path::Path) -> String {
    if last_words.is_empty() {
        return "it wrote nothing to stderr".to_owned();
    }
    format!("last lines of {}:\n{last_words}", log.display())
}

/// A signal's number, its name where that is the same on every machine, and what is often behind it.
fn signal_words(signal: i32) -> String {
    let name = match signal {
        1 => " (SIGHUP)",
        2 => " (SIGINT)",
        3 => " (SIGQUIT)",
        4 => " (SIGILL: an instruction this machine does not have)",
        5 => " (SIGTRAP)",
        6 => " (SIGABRT: it gave up itself)",
        8 => " (SIGFPE)",
        9 => " (SIGKILL: somebody's, or the kernel's when memory runs out; see dmesg)",
        11 => " (SIGSEGV: a fault in its memory)",
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
        for (how, when, last_words, code, message) in [
            (
                How::Code(3),
                When::BeforeReady,
                "",
                code::EXITED,
                "ended with exit code 3 before it was ready; it wrote nothing to stderr",
            ),
            (
                How::Code(1),
                When::AfterReady,
                "no disk",
                code::EXITED,
                "ended with exit code 1; last lines of /d/web.err:\nno disk",
            ),
            (
                How::Code(0),
                When::AfterReady,
                "",
                code::EXITED,
                "ended with exit code 0; if it is meant to end, give it the readiness type 'exit'; it wrote nothing to stderr",
            ),
            (
                How::Signal(11),
                When::AfterReady,
                "",
                code::KILLED,
                "was ended by signal 11 (SIGSEGV: a fault in its memory); it wrote nothing to stderr",
            ),
            (
                How::Signal(34),
                When::AfterReady,
                "",
                code::KILLED,
                "was ended by signal 34; it wrote nothing to stderr",
            ),
            (
                How::Unknown,
                When::AfterReady,
                "",
                code::EXITED,
                "ended, exit status unknown, the process outlived an agent restart; it wrote nothing to stderr",
            ),
        ] {
            let end = End { how, last_words: last_words.to_owned(), log: log.clone() };
            assert_eq!(end.error(&component, when), StatusError::new(code, "web", message));
        }
    }
}
