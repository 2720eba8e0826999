//! The context of the commands for identities: format, terminal, clock and connection. It knows no key.

use muster_contract::Timestamp;
use muster_service::clock::Clock;
use serde::Serialize;

use super::key_store;
use crate::config::{ConnectionArgs, Format};
use crate::error::CtlError;
use crate::terminal::Terminal;

/// The context of the commands for identities.
pub(crate) struct AuthContext<'a> {
    /// The format of answers.
    pub format: Format,
    /// The terminal of answers.
    pub terminal: &'a mut Terminal,
    /// The clock.
    pub clock: &'a dyn Clock,
    /// The connection to a server, for commands that send to one.
    pub connection: &'a ConnectionArgs,
}

impl AuthContext<'_> {
    pub(super) fn now(&self) -> u64 {
        u64::try_from(self.clock.now().as_second()).unwrap_or(0)
    }

    pub(crate) fn show<T: Serialize>(
        &mut self,
        found: &T,
        render: impl FnOnce(&T, Timestamp) -> String,
    ) -> Result<(), CtlError> {
        match self.format {
            Format::Json => self.terminal.print_json(&(key_store::json(found) + "\n"))?,
            Format::Table => self.terminal.print(&render(found, self.clock.now()))?,
        }
        Ok(())
    }
}
