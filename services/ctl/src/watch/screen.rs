//! The output of a watch of one deployment: its newest known state, and the part of it that the screen shows.

use std::collections::VecDeque;

use muster_contract::DeploymentId;
use muster_contract::notify::{MissedAnswer, Notice, NoticeState};
use muster_contract::view::{AsOf, DeploymentView, Verdict};
use muster_service::error::chain;
use serde_json::json;

use super::gate::{Goal, News};
use super::silence::Silence;
use crate::ask::AskError;
use crate::config::Format;
use crate::error::CtlError;
use crate::notices::Read;
use crate::render;
use crate::session::Session;

/// Most lines of changes below the screen.
const RECENT_MAX: usize = 12;

/// The newest known state, and the part of it that the screen shows.
pub(super) struct WatchScreen {
    /// The deployment; its name in place of the id if the id is a UUID.
    deployment: DeploymentId,
    /// The last verdict; none while it is not there.
    pub(super) verdict: Option<Verdict>,
    /// As of when.
    pub(super) as_of: Option<AsOf>,
    /// The last state.
    state: Option<NoticeState>,
    /// The last lines about changes, the newest last.
    recent: VecDeque<String>,
    drawn: bool,
    pub(super) silence: Silence,
    /// Whether the next state held before the watch began.
    pub(super) is_of_before: bool,
}

impl WatchScreen {
    pub(super) const fn new(deployment: DeploymentId, is_of_before: bool, silence: Silence) -> Self {
        let recent = VecDeque::new();
        let (verdict, as_of, state) = (None, None, None);
        Self { deployment, verdict, as_of, state, recent, drawn: false, silence, is_of_before }
    }

    /// Prints why a watch ended, unless the screen shows it.
    pub(super) fn print_end(&self, session: &mut Session<'_>, goal: &Goal) {
        let Some(as_of) = self.as_of else { return };
        match goal.commit() {
            Some((commit, through)) => session.terminal.print_note(&render::notice::with_commit(
                &self.deployment,
                self.verdict,
                as_of,
                commit,
                through,
            )),
            None if self.is_of_before => self.print_already_reached(session, as_of),
            None => {}
        }
    }

    /// Applies what other events than notices changed. True if the awaited condition holds.
    pub(super) fn learn(
        &mut self,
        session: &mut Session<'_>,
        goal: &Goal,
        news: News,
    ) -> Result<bool, CtlError> {
        match news {
            News::Says(words) => session.terminal.print_note(&words),
            News::InLedger(through) => {
                session.terminal.print_note(&goal.in_ledger(through));
            }
            News::Met(view) => {
                self.show_view(session, *view)?;
                return Ok(true);
            }
            News::Failed(error) => return Err(error),
        }
        Ok(goal.is_met(self.verdict, self.as_of))
    }

    /// Shows a view that came with no notice. Programs, which read notices, do not get it.
    fn show_view(&mut self, session: &mut Session<'_>, view: DeploymentView) -> Result<(), CtlError> {
        (self.verdict, self.as_of) = (Some(view.verdict), Some(view.as_of));
        if session.format == Format::Table && !session.is_redrawn() {
            let line = render::watch::line(&self.deployment, Some(&view), session.clock.now());
            session.terminal.print(&line)?;
        }
        if let Some(state) = &mut self.state {
            (state.verdict, state.view) = (Some(view.verdict), Some(Box::new(view)));
        }
        self.redraw(session)
    }

    /// Prints that the verdict held already, and as of which fact, so that the reader sees whether it covers a new commit.
    pub(super) fn print_already_reached(&self, session: &mut Session<'_>, as_of: AsOf) {
        session.terminal.print_note(&render::notice::already(&self.deployment, self.verdict, as_of));
    }

    /// Restores the state that an earlier run has shown.
    pub(super) fn know(&mut self, notice: &Notice) {
        self.verdict = notice.state.as_ref().and_then(|state| state.verdict);
        self.as_of = Some(notice.as_of);
        self.state.clone_from(&notice.state);
    }

    /// Shows every change between the last notice that was confirmed and the one that follows; false if the hub cannot list
    /// them, which ends no watch.
    pub(super) fn show_missed(
        &mut self,
        session: &mut Session<'_>,
        missed: Result<Vec<MissedAnswer>, AskError>,
    ) -> Result<bool, CtlError> {
        let pages = match missed {
            Ok(pages) => pages,
            Err(error) => {
                session
                    .terminal
                    .print_note(&format!("muster: cannot list what was missed: {}\n", chain(&error)));
                return Ok(false);
            }
        };
        if session.format == Format::Json && !session.is_redrawn() {
            for page in &pages {
                session.terminal.print_json(&format!("{}\n", json!({ "missed": page })))?;
            }
            return Ok(true);
        }
        let lines = pages.iter().flat_map(render::changes::missed);
        if session.is_redrawn() {
            self.recent.extend(lines);
            return Ok(true);
        }
        session.terminal.print(&lines.collect::<String>())?;
        Ok(true)
    }

    /// Shows a notice. People do not see its changes again if they are listed above it.
    pub(super) fn show(
        &mut self,
        session: &mut Session<'_>,
        read: &Read,
        is_listed: bool,
    ) -> Result<(), CtlError> {
        let Notice { state, .. } = &read.notice;
        let verdict = state.as_ref().and_then(|state| state.verdict);
        let mut changes = render::notice::changes(&read.notice, self.verdict, verdict);
        if is_listed {
            changes.clear();
        }
        (self.verdict, self.as_of, self.state) = (verdict, Some(read.notice.as_of), state.clone());
        if session.is_redrawn() {
            self.recent.extend(changes);
            self.recent.drain(..self.recent.len().saturating_sub(RECENT_MAX));
            return self.redraw(session);
        }
        match session.format {
            Format::Json => session.terminal.print_json(&format!("{}\n", read.value))?,
            Format::Table => {
                let view = state.as_ref().and_then(|state| state.view.as_deref());
                let first = render::notice::line(&self.deployment, &read.notice, view, session.clock.now());
                session.terminal.print(&(first + &changes.concat()))?;
            }
        }
        Ok(())
    }

    /// Shows whether there is a connection.
    pub(super) fn show_connection(&mut self, session: &mut Session<'_>, is_up: bool) -> Result<(), CtlError> {
        let words = self.silence.connection_changed(is_up);
        if session.is_redrawn() {
            return self.redraw(session);
        }
        session.terminal.print_note(words);
        Ok(())
    }

    pub(super) fn redraw(&mut self, session: &mut Session<'_>) -> Result<(), CtlError> {
        if !session.is_redrawn() {
            return Ok(());
        }
        let view = self.state.as_ref().and_then(|state| state.view.as_deref());
        let shown = match view {
            Some(view) => {
                let causes = render::hearing::lines(&view.hub, session.clock.now());
                causes + &render::deployment::view(view, session.frame())
            }
            None => render::watch::nothing(Some(&self.deployment)),
        };
        let lost = self.silence.above();
        let recent: String = self.recent.iter().map(String::as_str).collect();
        let gap = if recent.is_empty() { "" } else { "\n" };
        if !self.drawn {
            session.terminal.clear()?;
            self.drawn = true;
        }
        Ok(session.terminal.redraw(&format!("{lost}{shown}{gap}{recent}"))?)
    }
}
