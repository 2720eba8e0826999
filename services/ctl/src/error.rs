//! Errors that end a command, and their exit codes.

use std::io;
use std::path::PathBuf;

use muster_bus::ReadError;
use muster_contract::near::did_you_mean;
use muster_contract::plans::PlannerErrorBody;
use muster_contract::query::{ErrorBody, ErrorCode, HeldBack, RefusedCommit};
use muster_contract::{CommitName, Refusal, SubscriptionName};
use muster_service::error::chain;

use crate::ask::AskError;
use crate::auth::error::AuthError;
use crate::backup::error::BackupError;
use crate::config::ConnectionError;
use crate::login::failure::LoginFailure;
use crate::reach::ReachError;
use crate::render::commit::{held_back, refused};
use crate::render::format::clean_lines;

/// Everything was answered.
pub(crate) const YES: u8 = 0;
/// The answer is no: not found, refused, unexplained.
pub(crate) const NO: u8 = 1;
/// Wrong usage, or nobody answers.
pub(crate) const USAGE: u8 = 2;
/// The time of a watch ended before the verdict that it waits for.
pub(crate) const TIMEOUT: u8 = 3;

/// Most candidates of an ambiguous name that an error lists.
const CANDIDATES_LISTED: usize = 20;

/// Why a command has no answer.
#[derive(Debug, thiserror::Error)]
pub enum CtlError {
    /// The settings cannot be used.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    /// There is no connection.
    #[error(transparent)]
    Reach(#[from] ReachError),
    /// A service gave no answer, or says no.
    #[error(transparent)]
    Ask(#[from] AskError),
    /// Nothing can be said of whether a rebuild says the same: no answer is a no here.
    #[error(transparent)]
    Unverified(AskError),
    /// A name that nobody knows.
    #[error("{message}{}", did_you_mean(.near))]
    Unknown {
        /// The service's message.
        message: String,
        /// Names that are near.
        near: Vec<String>,
    },
    /// A name of several deployments or devices.
    #[error("{what} is the name of several: say which of {}", first_of(.candidates))]
    Ambiguous {
        /// The kind and the name, such as `device 'press-1'`.
        what: String,
        /// Everything with that name.
        candidates: Vec<String>,
    },
    /// The server refused something meanwhile, which is why the rest did not go well.
    #[error("NATS refuses: {refusal}")]
    Forbidden {
        /// The server's words.
        refusal: String,
        /// The failed step.
        #[source]
        source: Box<Self>,
    },
    /// The ledger or the views could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A view that is no view.
    #[error("{key} holds something that is no view; is muster-rollup of another version?")]
    View {
        /// Its key.
        key: String,
        /// The parser's reason.
        #[source]
        source: serde_json::Error,
    },
    /// A message that does not parse as a notice.
    #[error("a message on muster.notice.{name} is not a notice; is muster-rollup of another version?")]
    Notice {
        /// The subscription.
        name: SubscriptionName,
        /// The parser's reason.
        #[source]
        source: Refusal,
    },
    /// There is no such report in quarantine.
    #[error("QUARANTINE holds no report {0}; `muster quarantine list` names those that it holds")]
    NotQuarantined(u64),
    /// The file to apply cannot be read.
    #[error("cannot read {}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file of plans, a deployment or nodes that cannot be used.
    #[error("{}{}: {reason}", .path.display(), .line.map(|line| format!(":{line}")).unwrap_or_default())]
    Manifest {
        /// The file.
        path: PathBuf,
        /// The line, if it has one.
        line: Option<u64>,
        /// The field and the broken rule.
        reason: String,
    },
    /// A file cannot be written.
    #[error("cannot write {}", .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The file to apply is too large for a message.
    #[error("{} has more than {limit} bytes, which is all that a request takes; apply its documents in parts", .path.display())]
    FileTooLarge {
        /// The file.
        path: PathBuf,
        /// The limit.
        limit: usize,
    },
    /// The file defines no view.
    #[error("{}: {reason}", .path.display())]
    Definition {
        /// The file.
        path: PathBuf,
        /// The field and the rule.
        reason: String,
    },
    /// An identity is not made, given or taken.
    #[error(transparent)]
    Auth(#[from] AuthError),
    /// A login to a gateway failed.
    #[error(transparent)]
    Login(#[from] LoginFailure),
    /// A backup is not made, or not restored.
    #[error(transparent)]
    Backup(#[from] BackupError),
    /// A package is not put, listed or removed.
    #[error(transparent)]
    Packages(Box<dyn std::error::Error + Send + Sync>),
    /// The streams cannot be looked at or changed.
    #[error(
        "cannot look at the streams: on a hub with keys the role maintainer alone may (`muster auth creds maintainer`)"
    )]
    Streams(#[from] muster_bus::TopologyError),
    /// The commit that was waited for never comes.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// Decisions whose past cannot be read any more.
    #[error("{0}")]
    NotVerified(String),
    /// The query service lags behind LEDGER, so the evidence of the present is missing.
    #[error("muster-rollup has not read all of LEDGER, so no gate can be judged; `muster status` says why")]
    NoEvidence,
    /// A name that is none.
    #[error("{0}")]
    Name(String),
    /// The time of a watch is over.
    #[error("{0}")]
    TimeOver(String),
    /// Settings that do not go together.
    #[error("{0}")]
    Usage(String),
    /// The machine gives no runtime.
    #[error("cannot start")]
    Runtime(#[source] io::Error),
    /// Standard output cannot be written.
    #[error("cannot write to standard output")]
    Output(#[from] io::Error),
}

/// Why a commit is not waited for any longer.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// No commit is ever published.
    #[error("muster-publisher watches no Git repository, so it publishes no commit: leave --commit out")]
    NoGit,
    /// It breaks a rule.
    #[error("{}", refused(.0))]
    Refused(RefusedCommit),
    /// Some devices do not have it.
    #[error("{}", held_back(.0))]
    HeldBack(HeldBack),
    /// The branch has moved on before it was published, or since.
    #[error(
        "commit {commit} is not what is published: a newer one of the branch has taken its place{}",
        instead(.by.as_deref())
    )]
    Replaced {
        /// The commit.
        commit: CommitName,
        /// The commit that is published whole, if any.
        by: Option<String>,
    },
}

impl CtlError {
    /// This error, with what the server refused as its cause, if it refused anything. Silence is all that the one who
    /// asks sees of a missing permission.
    pub fn because(self, refusal: Option<String>) -> Self {
        match refusal {
            Some(refusal) if self.code() == USAGE => Self::Forbidden { refusal, source: Box::new(self) },
            _ => self,
        }
    }

    /// Whether all that is wrong is that the reader of the output has gone.
    pub(crate) fn is_reader_gone(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// The exit code. A reader of the output that has seen enough is no failure; a command whose exit code is its
    /// answer has [`settled`] that before.
    pub fn code(&self) -> u8 {
        match self {
            error if error.is_reader_gone() => YES,
            Self::Unknown { .. }
            | Self::Ambiguous { .. }
            | Self::NotQuarantined(_)
            | Self::Definition { .. }
            | Self::Manifest { .. }
            | Self::Commit(_) => NO,
            Self::TimeOver(_) => TIMEOUT,
            Self::Auth(error) if error.is_refusal() => NO,
            Self::Login(LoginFailure::Refused(_)) => NO,
            Self::Backup(error) if error.is_refusal() => NO,
            Self::Ask(AskError::Refused(ErrorBody { code, .. }))
            | Self::Ask(AskError::RefusedByPlanner(PlannerErrorBody { code, .. })) => refused_with(*code),
            _ => USAGE,
        }
    }

    /// The words for standard error; none if the exit code is enough.
    pub fn words(&self) -> Option<String> {
        let lines = || clean_lines(&chain(self)).collect::<Vec<_>>().join("\n");
        (self.code() != YES).then(|| format!("muster: {}\n", lines()))
    }
}

/// The exit code for a refusal.
const fn refused_with(code: ErrorCode) -> u8 {
    match code {
        ErrorCode::NotFound
        | ErrorCode::BadRequest
        | ErrorCode::Conflict
        | ErrorCode::Precondition
        | ErrorCode::NoCapacity
        | ErrorCode::Forbidden => NO,
        ErrorCode::TooManyRequests | ErrorCode::NotReady | ErrorCode::Internal => USAGE,
    }
}

/// The result of printing an answer that the exit code gives as well: a closed output does not change it.
///
/// # Errors
/// The output cannot be written for any other reason.
pub(crate) fn settled(shown: Result<(), CtlError>) -> Result<(), CtlError> {
    shown.or_else(|error| if error.is_reader_gone() { Ok(()) } else { Err(error) })
}

/// The first candidates, and how many there are beside them.
fn first_of(candidates: &[String]) -> String {
    let listed = candidates[..candidates.len().min(CANDIDATES_LISTED)].join(", ");
    match candidates.len().saturating_sub(CANDIDATES_LISTED) {
        0 => listed,
        more => format!("{listed} and {more} more"),
    }
}

fn instead(published: Option<&str>) -> String {
    published.map_or_else(String::new, |by| format!("; `--commit {by}` waits for what is published now"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_went_away_is_no_failure() {
        let error = CtlError::Output(io::ErrorKind::BrokenPipe.into());
        assert_eq!((error.code(), error.words()), (YES, None));
        let full = CtlError::Output(io::ErrorKind::StorageFull.into());
        assert_eq!(full.code(), USAGE);
    }

    #[test]
    fn an_answer_that_is_the_exit_code_outlives_its_reader() {
        let output = |kind: io::ErrorKind| Err(CtlError::Output(kind.into()));
        assert!(settled(Ok(())).is_ok() && settled(output(io::ErrorKind::BrokenPipe)).is_ok());
        assert!(settled(output(io::ErrorKind::StorageFull)).is_err());
        assert!(settled(Err(CtlError::NotQuarantined(4))).is_err());
    }

    #[test]
    fn an_ambiguous_name_lists_a_bounded_number_of_candidates() {
        let of = |count: usize| {
            let candidates = (0..count).map(|site| format!("s{site}/press-1")).collect();
            CtlError::Ambiguous { what: "device 'press-1'".to_owned(), candidates }.to_string()
        };
        assert_eq!(of(2), "device 'press-1' is the name of several: say which of s0/press-1, s1/press-1");
        let full = of(CANDIDATES_LISTED);
        assert!(full.ends_with(&format!("s{}/press-1", CANDIDATES_LISTED - 1)), "{full}");
        assert_eq!(of(CANDIDATES_LISTED + 980), format!("{full} and 980 more"));
    }

    #[test]
    fn an_unknown_name_is_a_no_and_comes_with_near_ones() {
        let error = CtlError::Unknown {
            message: "no deployment 'wbe'".to_owned(),
            near: vec!["web".to_owned(), "web-2".to_owned()],
        };
        assert_eq!(error.code(), NO);
        assert_eq!(error.words().unwrap(), "muster: no deployment 'wbe'; did you mean web or web-2?\n");
    }
}
