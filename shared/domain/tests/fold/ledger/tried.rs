//! Builds retries for tests.

use muster_contract::retry::{LastError, Retry};

use super::stored_at;

/// A retry as a test describes it, since the beginning of the ledger.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tried<'a> {
    /// The component; the deployment as a whole where there is none.
    pub(crate) component: Option<&'a str>,
    pub(crate) attempt: u32,
    pub(crate) code: &'a str,
    pub(crate) message: &'a str,
    pub(crate) crash_loop: bool,
}

impl Tried<'_> {
    pub(super) fn retry(&self) -> Retry {
        let (code, message) = (self.code.to_owned(), self.message.to_owned());
        Retry {
            component: self.component.map(|name| name.parse().unwrap()),
            attempt: self.attempt,
            since: stored_at(0),
            last_error: LastError { code, message, at: stored_at(1) },
            crash_loop: self.crash_loop,
        }
    }
}
