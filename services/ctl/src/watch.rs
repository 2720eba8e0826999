//! `muster watch`: deployments as they change; all of them from the bucket `views`, one of them by notices ([`one`]). [`gate`] is
//! the condition that it waits for, [`screen`] its output; before it ends the hub must vouch for the result ([`hub_check`]).
//!
//! On a terminal the whole screen is redrawn, also once a second for the ages in it; elsewhere each change is a line.
//! A note (such as a lost connection) is part of the screen, or goes to standard error.

mod gate;
mod hub_check;
mod one;
mod screen;
mod silence;
mod validity;

use std::collections::BTreeMap;
use std::time::Duration;

use muster_bus::ViewEntry;
use muster_contract::DeploymentId;
use muster_contract::subjects::ViewKey;
use muster_contract::view::DeploymentView;
use serde_json::{Value, json};
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use self::silence::Silence;
use self::validity::Validity;
use crate::config::{Format, WatchArgs};
use crate::error::CtlError;
use crate::render;
use crate::session::Session;

/// All deployments.
const EVERY_DEPLOYMENT: &str = "deployment.*";
/// Entries taken from the bucket at once.
const BATCH: usize = 256;
/// Time between two redraws without a change.
const REDRAW: Duration = Duration::from_secs(1);

/// Everything that is shown.
type Views = BTreeMap<DeploymentId, DeploymentView>;

/// Follows one deployment by notices, or all of them, until Ctrl-C. False where what was waited for did not come.
///
/// # Errors
/// When the bucket cannot be read or holds an entry that is not a view, or the output cannot be written.
pub async fn run(session: &mut Session<'_>, args: &WatchArgs) -> Result<bool, CtlError> {
    match &args.deployment {
        Some(deployment) => one::run(session, deployment.clone(), args).await,
        None => follow(session, &String::new).await.map(|()| true),
    }
}

/// Follows all deployments, with words above each screen.
///
/// # Errors
/// As [`run`].
pub async fn follow(
    session: &mut Session<'_>,
    above: &(dyn Fn() -> String + Send + Sync),
) -> Result<(), CtlError> {
    let mut watch = session.hub.bus().view_watch(EVERY_DEPLOYMENT).await?;
    let mut link = session.hub.bus().link();
    let silence = Silence::new(session.hub.address().to_owned());
    let validity = Validity::default();
    let mut screen = ListScreen { views: Views::new(), drawn: false, silence, validity, above };
    let mut ticks = interval_at(Instant::now() + REDRAW, REDRAW);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // One for the whole time: a Ctrl-C while a screen is drawn must not be lost.
    let interrupted = tokio::signal::ctrl_c();
    tokio::pin!(interrupted);
    loop {
        // One future over all redraws: restoring a cut connection may take longer than the time between two.
        let next = watch.next_batch(BATCH);
        tokio::pin!(next);
        let entries = loop {
            tokio::select! {
                entries = &mut next => break entries?,
                _ = ticks.tick() => screen.tick(session)?,
                Ok(()) = link.changed() => screen.show_connection(session, link.borrow_and_update().is_up())?,
                _ = &mut interrupted => return Ok(()),
            }
        };
        screen.apply_entries(session, entries)?;
    }
}

struct ListScreen<'a> {
    views: Views,
    drawn: bool,
    silence: Silence,
    validity: Validity,
    above: &'a (dyn Fn() -> String + Send + Sync),
}

impl ListScreen<'_> {
    /// Shows whether there is a connection.
    fn show_connection(&mut self, session: &mut Session<'_>, is_up: bool) -> Result<(), CtlError> {
        let words = self.silence.connection_changed(is_up);
        if session.is_redrawn() {
            return self.redraw(session);
        }
        session.terminal.print_note(words);
        Ok(())
    }

    /// Time has passed.
    fn tick(&mut self, session: &mut Session<'_>) -> Result<(), CtlError> {
        self.silence.tick(session, true);
        let words = self.validity.expiry_note(session.clock.now()).filter(|_| !session.is_redrawn());
        words.iter().for_each(|words| session.terminal.print_note(words));
        self.redraw(session)
    }

    /// Applies entries; prints a line for each change, or redraws once.
    fn apply_entries(&mut self, session: &mut Session<'_>, entries: Vec<ViewEntry>) -> Result<(), CtlError> {
        for entry in entries {
            let Some(ViewKey::Deployment(id)) = ViewKey::parse(&entry.key) else { continue };
            self.validity.record_view(entry.value.as_deref());
            let value = entry.value.as_deref().map(serde_json::from_slice::<Value>).transpose();
            let garbled = |source| CtlError::View { key: entry.key.clone(), source };
            let value = value.map_err(garbled)?;
            let view = value.clone().map(serde_json::from_value::<DeploymentView>).transpose();
            let change = Change { id, view: view.map_err(garbled)?, value };
            self.show(session, change)?;
        }
        self.redraw(session)
    }

    fn show(&mut self, session: &mut Session<'_>, change: Change) -> Result<(), CtlError> {
        let is_news = match &change.view {
            Some(view) => self.views.get(&change.id).is_none_or(|held| held.digest != view.digest),
            None => self.views.contains_key(&change.id),
        };
        if is_news && !session.is_redrawn() {
            match session.format {
                Format::Json => session.terminal.print_json(&change.json())?,
                Format::Table => {
                    let line = match &change.view {
                        Some(view) => render::watch::line(&change.id, Some(view), session.clock.now()),
                        None => render::watch::gone(&change.id, self.views.get(&change.id)),
                    };
                    session.terminal.print(&line)?;
                }
            }
        }
        match change.view {
            Some(view) => self.views.insert(change.id, view),
            None => self.views.remove(&change.id),
        };
        Ok(())
    }

    fn redraw(&mut self, session: &mut Session<'_>) -> Result<(), CtlError> {
        if !session.is_redrawn() {
            return Ok(());
        }
        let frame = session.frame();
        let shown = if self.views.is_empty() {
            render::watch::nothing(None)
        } else {
            render::watch::screen(self.views.values(), frame)
        };
        let over = self.validity.above(session.clock.now());
        let text = format!("{}{}{over}{shown}", (self.above)(), self.silence.above());
        if !self.drawn {
            session.terminal.clear()?;
            self.drawn = true;
        }
        Ok(session.terminal.redraw(&text)?)
    }
}

/// A view that is new, changed or gone.
struct Change {
    id: DeploymentId,
    view: Option<DeploymentView>,
    value: Option<Value>,
}

impl Change {
    /// One line: the view as it is, or that it is gone.
    fn json(&self) -> String {
        let gone = || json!({ "key": ViewKey::Deployment(self.id.clone()).to_string(), "gone": true });
        format!("{}\n", self.value.clone().unwrap_or_else(gone))
    }
}
