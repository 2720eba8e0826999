//! The screen of a watch that polls: a terminal redraws it in place, below the last error. It asks nothing, and knows nothing of
//! rollouts.

use muster_service::error::chain;

use crate::error::CtlError;
use crate::session::Session;

/// The last error, and whether the screen was cleared.
#[derive(Debug, Default)]
pub(super) struct Screen {
    /// Why the last question had no answer.
    last_error: Option<String>,
    is_drawn: bool,
}

impl Screen {
    /// Records an answer. Unless the screen is redrawn, the first answer after an error is announced.
    pub(super) fn answer(&mut self, session: &mut Session<'_>) {
        if self.last_error.take().is_some() && !session.is_redrawn() {
            session.terminal.print_note("muster: answered again\n");
        }
    }

    /// Records an error; the shown state may be out of date from then on. Unless the screen is redrawn, a new error is announced.
    pub(super) fn fail(&mut self, session: &mut Session<'_>, error: &CtlError) {
        let words = format!("muster: {}; trying on\n", chain(error));
        let is_new = self.last_error.as_ref() != Some(&words);
        if is_new && !session.is_redrawn() {
            session.terminal.print_note(&words);
        }
        self.last_error = Some(words);
    }

    /// Redraws a text below the last error.
    ///
    /// # Errors
    /// The output cannot be written.
    pub(super) fn redraw(&mut self, session: &mut Session<'_>, text: &str) -> Result<(), CtlError> {
        if !std::mem::replace(&mut self.is_drawn, true) {
            session.terminal.clear()?;
        }
        let error = self.last_error.as_deref().unwrap_or_default();
        Ok(session.terminal.redraw(&format!("{error}{text}"))?)
    }
}
