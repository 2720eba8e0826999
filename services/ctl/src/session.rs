//! The state that every command shares: the services, the format of answers, and the clock for ages.

use std::sync::Arc;

use muster_contract::Timestamp;
use muster_service::clock::Clock;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::ask::{Hub, understood};
use crate::config::Format;
use crate::error::CtlError;
use crate::render;
use crate::render::frame::Frame;
use crate::terminal::Terminal;

/// One command's surroundings.
pub struct Session<'a> {
    /// The services.
    pub hub: Hub,
    /// How answers are shown.
    pub format: Format,
    /// The output of answers.
    pub terminal: &'a mut Terminal,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The moment that answers are about, where they are about the past.
    pub then: Option<Timestamp>,
}

impl Session<'_> {
    /// The frame of an answer that is rendered now.
    pub fn frame(&self) -> Frame {
        Frame {
            now: self.clock.now(),
            then: self.then,
            width: self.terminal.width(),
            lags: self.hub.lag().is_some(),
        }
    }

    /// Whether a watch redraws the screen in place instead of adding lines.
    pub(crate) fn is_redrawn(&self) -> bool {
        self.terminal.is_interactive() && self.format == Format::Table
    }

    /// The lag between the answers and LEDGER, for people; empty if there is none. Programs have it in the answers.
    pub fn lag(&self) -> String {
        self.hub.lag().map_or_else(String::new, |lag| render::lag::lines(&lag, self.clock.now()))
    }

    /// Shows an answer: as it came, or as its type renders.
    ///
    /// # Errors
    /// When it is not of its type, or cannot be written.
    pub fn show<T: DeserializeOwned>(
        &mut self,
        answer: &Value,
        render: impl FnOnce(&T, Timestamp) -> String,
    ) -> Result<(), CtlError> {
        match self.format {
            Format::Json => self.terminal.print_json(&pretty(answer))?,
            Format::Table => {
                let text = render(&understood(answer)?, self.clock.now());
                let hub = render::hearing::of_answer(answer);
                let causes = render::hearing::lines(&hub, self.then.unwrap_or_else(|| self.clock.now()));
                self.terminal.print(&(self.lag() + &causes + &text))?;
            }
        }
        Ok(())
    }

    /// Adds a word for people to what was shown; programs have it from the answer itself, or ask for it.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn add(&mut self, words: &str) -> Result<(), CtlError> {
        match self.format {
            Format::Json => Ok(()),
            Format::Table => Ok(self.terminal.print(words)?),
        }
    }

    /// Shows what this program found out itself.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn show_own<T: Serialize>(
        &mut self,
        found: &T,
        render: impl FnOnce(&T, Timestamp) -> String,
    ) -> Result<(), CtlError> {
        match self.format {
            Format::Json => self.terminal.print_json(&pretty(found))?,
            Format::Table => {
                let text = render(found, self.clock.now());
                self.terminal.print(&(self.lag() + &text))?;
            }
        }
        Ok(())
    }
}

fn pretty<T: Serialize>(value: &T) -> String {
    // Answers and findings are JSON already: writing them again cannot fail.
    serde_json::to_string_pretty(value).unwrap_or_default() + "\n"
}
