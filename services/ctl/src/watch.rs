//! `muster watch`: deployments as they change, from the bucket `views`.
//!
//! On a terminal the whole picture is redrawn, also once a second for the ages in it; elsewhere each change is a line.
//! What else there is to say (no connection, no such deployment) stands in the picture, or goes to standard error.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_bus::{Bus, Link, ViewEntry};
use muster_contract::DeploymentId;
use muster_contract::subjects::ViewKey;
use muster_contract::view::DeploymentView;
use serde_json::{Value, json};
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use crate::config::Format;
use crate::error::CtlError;
use crate::render;
use crate::session::Session;
use muster_domain::near::near;

/// All deployments.
const EVERY_DEPLOYMENT: &str = "deployment.*";
/// Entries taken from the bucket at once.
const BATCH: usize = 256;
/// Time between two pictures where nothing changes.
const REDRAW: Duration = Duration::from_secs(1);

/// What is said while there is no connection.
const LOST: &str = "muster: the connection to NATS is lost; what is shown may be old\n";

/// Everything that is shown.
type Views = BTreeMap<DeploymentId, DeploymentView>;

/// Follows one deployment, or all of them, until Ctrl-C.
///
/// # Errors
/// When the bucket cannot be read, holds what is no view, or the output cannot be written.
pub async fn run(session: &mut Session<'_>, deployment: Option<DeploymentId>) -> Result<(), CtlError> {
    follow(session, deployment, &String::new).await
}

/// As [`run`], with words above each picture.
///
/// # Errors
/// As [`run`].
pub async fn follow(
    session: &mut Session<'_>,
    deployment: Option<DeploymentId>,
    above: &(dyn Fn() -> String + Send + Sync),
) -> Result<(), CtlError> {
    let keys = deployment
        .clone()
        .map_or_else(|| EVERY_DEPLOYMENT.to_owned(), |id| ViewKey::Deployment(id).to_string());
    let mut watch = session.hub.bus().view_watch(&keys).await?;
    let mut link = session.hub.bus().link();
    let unknown = match &deployment {
        Some(id) => unknown(session.hub.bus(), id).await?,
        None => None,
    };
    let mut picture =
        Picture { views: Views::new(), one: deployment, unknown, drawn: false, is_up: true, above };
    picture.say_unknown(session);
    let mut ticks = interval_at(Instant::now() + REDRAW, REDRAW);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            entries = watch.next_batch(BATCH) => picture.take(session, entries?)?,
            _ = ticks.tick() => picture.redraw(session)?,
            Ok(()) = link.changed() => picture.tell(session, *link.borrow_and_update())?,
            _ = tokio::signal::ctrl_c() => return Ok(()),
        }
    }
}

struct Picture<'a> {
    views: Views,
    one: Option<DeploymentId>,
    /// What to say of the one as long as it was never seen.
    unknown: Option<String>,
    drawn: bool,
    is_up: bool,
    above: &'a (dyn Fn() -> String + Send + Sync),
}

impl Picture<'_> {
    fn say_unknown(&self, session: &mut Session<'_>) {
        if let Some(words) = self.unknown.as_ref().filter(|_| !is_redrawn(session)) {
            session.terminal.say(&format!("muster: {words}"));
        }
    }

    /// Takes in whether there is a connection.
    fn tell(&mut self, session: &mut Session<'_>, link: Link) -> Result<(), CtlError> {
        self.is_up = link.is_up();
        if is_redrawn(session) {
            return self.redraw(session);
        }
        session.terminal.say(if self.is_up { "muster: connected again\n" } else { LOST });
        Ok(())
    }

    /// Takes entries in; a line for each that is news, or one new picture.
    fn take(&mut self, session: &mut Session<'_>, entries: Vec<ViewEntry>) -> Result<(), CtlError> {
        for entry in entries {
            let Some(ViewKey::Deployment(id)) = ViewKey::parse(&entry.key) else { continue };
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
        if is_news && !is_redrawn(session) {
            let line = match session.format {
                Format::Json => change.json(),
                Format::Table => render::watch::line(&change.id, change.view.as_ref(), session.clock.now()),
            };
            session.terminal.print(&line)?;
        }
        self.unknown = None;
        match change.view {
            Some(view) => self.views.insert(change.id, view),
            None => self.views.remove(&change.id),
        };
        Ok(())
    }

    fn redraw(&mut self, session: &mut Session<'_>) -> Result<(), CtlError> {
        if !is_redrawn(session) {
            return Ok(());
        }
        let frame = session.frame();
        let shown = match &self.one {
            Some(id) => match (self.views.get(id), &self.unknown) {
                (Some(view), _) => render::deployment::view(view, frame),
                (None, Some(words)) => words.clone(),
                (None, None) => render::watch::nothing(Some(id)),
            },
            None if self.views.is_empty() => render::watch::nothing(None),
            None => render::watch::picture(self.views.values(), frame),
        };
        let lost = if self.is_up { "" } else { LOST };
        let text = format!("{}{lost}{shown}", (self.above)());
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

fn is_redrawn(session: &Session<'_>) -> bool {
    session.terminal.is_interactive() && session.format == Format::Table
}

/// What to say of a deployment of which there is no view.
async fn unknown(bus: &Bus, id: &DeploymentId) -> Result<Option<String>, CtlError> {
    let mut watch = bus.view_watch(EVERY_DEPLOYMENT).await?;
    let (mut known, mut waiting) = (Vec::new(), watch.waiting());
    while waiting > 0 {
        let entries = watch.next_batch(BATCH).await?;
        waiting = waiting.saturating_sub(entries.len() as u64);
        let present = entries.into_iter().filter(|entry| entry.value.is_some());
        known.extend(present.filter_map(|entry| match ViewKey::parse(&entry.key) {
            Some(ViewKey::Deployment(id)) => Some(id),
            _ => None,
        }));
    }
    let near = near(id.as_str(), known.iter().map(DeploymentId::as_str));
    Ok((!known.contains(id)).then(|| render::watch::unknown(id, &near)))
}
