//! The watch over one running unit: a task that learns how its main process ends, clears away what that leaves,
//! keeps its logs within bounds and tells of an end that nobody asked for. It starts and stops nothing by itself.
//!
//! ```text
//! Starting ── ready ──► Ready ── stop ──► Stopping
//!    │  └────── stop ─────┼──────────────────▲ │
//!    └──────────────── main process ends ──────┴──► Ended     (an Exit is sent only from Ready)
//! ```

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::process::Child;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::census::Identity;
use super::clear::clear;
use super::ending::{End, How, When};
use super::home::Home;
use super::logs::{self, Logs};
use super::mark::Mark;
use super::note::Note;
use crate::runtime::{Exit, UnitName};

/// Time that the children of a main process that has ended get to end too, before they are killed.
const REMAINS_STOP_TIMEOUT: Duration = Duration::from_secs(1);
/// Time between two looks at a process that was taken over.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// A unit under watch.
#[derive(Debug)]
pub(super) struct Watched {
    /// Which unit, in which version.
    pub(super) mark: Mark,
    /// Its main process.
    pub(super) main: Identity,
    /// The moments that its readiness goes by.
    pub(super) times: Times,
    /// Its files.
    pub(super) logs: Logs,
    /// Whether its end with 0 is what it was started for.
    is_job: bool,
    phase: watch::Sender<Phase>,
}

/// The moments that the readiness of a unit goes by.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    /// When its main process started.
    pub(super) since: Instant,
    /// It is not ready before: its port was somebody else's when it started, and an open port proves nothing.
    pub(super) settled: Instant,
    /// It is not late before.
    pub(super) grace: Instant,
}

/// How far a unit is.
#[derive(Debug, Clone)]
pub(super) enum Phase {
    /// Started and not known to be ready.
    Starting,
    /// Ready: its end is news.
    Ready,
    /// Asked to stop.
    Stopping,
    /// Its main process is gone, and so is what that had left.
    Ended(Arc<End>),
}

/// What a watch needs besides the unit.
#[derive(Debug)]
pub(super) struct Post {
    /// Where things are.
    pub(super) home: Arc<Home>,
    /// Where unexpected ends go.
    pub(super) exits: mpsc::Sender<Exit>,
    /// Ends the watch and leaves the unit running: the agent goes, its units stay.
    pub(super) leave: CancellationToken,
}

impl Watched {
    /// A unit that has just been started, or just been found.
    pub(super) fn new(mark: Mark, main: Identity, times: Times, is_job: bool, logs: Logs) -> Self {
        Self { mark, main, times, logs, is_job, phase: watch::Sender::new(Phase::Starting) }
    }

    /// Its main process and what that is, for a census. None once that has ended: its number may be another's then.
    pub(super) fn known(&self) -> Option<(Identity, Mark)> {
        (!matches!(self.phase(), Phase::Ended(_))).then(|| (self.main, self.mark.clone()))
    }

    /// How far it is.
    pub(super) fn phase(&self) -> Phase {
        self.phase.borrow().clone()
    }

    /// Notes that it is ready. False if it has ended, or is being stopped, in the meantime.
    pub(super) fn set_ready(&self) -> bool {
        self.phase.send_if_modified(|phase| {
            let is_starting = matches!(phase, Phase::Starting);
            if is_starting {
                *phase = Phase::Ready;
            }
            is_starting
        })
    }

    /// Notes that its end is wanted from now on.
    pub(super) fn set_stopping(&self) {
        self.phase.send_if_modified(|phase| {
            let is_up = matches!(phase, Phase::Starting | Phase::Ready);
            if is_up {
                *phase = Phase::Stopping;
            }
            is_up
        });
    }

    /// Waits for the end of its main process.
    pub(super) async fn ended(&self) -> Arc<End> {
        let mut phase = self.phase.subscribe();
        loop {
            if let Phase::Ended(end) = &*phase.borrow_and_update() {
                return Arc::clone(end);
            }
            if phase.changed().await.is_err() {
                // The sender is this unit's own, so this cannot be; an end that never comes is what it would mean.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Whether it was a job and has done its work.
    pub(super) fn is_done(&self) -> bool {
        self.is_job && matches!(&*self.phase.borrow(), Phase::Ended(end) if end.is_success())
    }
}

/// Watches a unit until it has ended or the agent leaves. `child` is there where this agent has started it.
pub(super) async fn watch(post: Post, unit: Arc<Watched>, child: Option<Child>) {
    if child.is_some() {
        remember(&post, &unit, Note::started(&unit.mark, unit.main)).await;
    }
    let how = tokio::select! {
        how = end(unit.main, child) => how,
        never = bound_logs(&unit) => match never {},
        () = post.leave.cancelled() => return,
    };
    let end = Arc::new(End { how, last_words: unit.logs.last_words(), log: unit.logs.err().to_owned() });
    if !matches!(unit.phase(), Phase::Stopping) {
        clear_remains(&post, &unit).await;
    }
    if unit.is_job && end.is_success() {
        remember(&post, &unit, Note::Done { digest_prefix: unit.mark.digest_prefix.clone() }).await;
    }
    if matches!(unit.phase.send_replace(Phase::Ended(Arc::clone(&end))), Phase::Ready) {
        tell(&post, &unit, &end).await;
    }
}

/// How the main process ends. A child is reaped by this.
async fn end(main: Identity, child: Option<Child>) -> How {
    match child {
        Some(mut child) => child.wait().await.map_or(How::Unknown, How::from),
        None => {
            until_gone(main).await;
            How::Unknown
        }
    }
}

/// Waits for the end of a process that is no child of this agent. (A pidfd would wake us at once, but tokio can wait
/// for one only through `unsafe`; a look costs one small read.)
async fn until_gone(main: Identity) {
    while main.lives() {
        sleep(LOOK_EVERY).await;
    }
}

async fn bound_logs(unit: &Watched) -> Infallible {
    let (mut size, mut pause) = (0, logs::CHECK_LEAST);
    let name = &unit.mark.name;
    loop {
        sleep(pause).await;
        let logs = unit.logs.clone();
        let look = move || {
            let size = logs.size();
            logs.bound().map(|emptied| (size, emptied))
        };
        match tokio::task::spawn_blocking(look).await {
            Ok(Ok((now, emptied))) => {
                pause = logs::next_look(size, now, pause);
                size = if emptied.is_empty() { now } else { 0 };
                tell_emptied(name, &emptied);
            }
            Ok(Err(error)) => tracing::warn!(
                deployment.id = %name.deployment, component.name = %name.component, %error,
                "cannot keep its logs within their bound"
            ),
            // The thread died; the next look has another.
            Err(_) => {}
        }
    }
}

fn tell_emptied(name: &UnitName, emptied: &[PathBuf]) {
    for path in emptied {
        tracing::warn!(
            deployment.id = %name.deployment, component.name = %name.component, log.path = %path.display(),
            "log is over {} bytes: kept its last {} bytes as .1 and emptied it",
            logs::RUNNING_BYTES_MAX, logs::ROTATE_BYTES,
        );
    }
}

/// A unit without its main process is none: what is left would hold ports and files against the next start.
async fn clear_remains(post: &Post, unit: &Watched) {
    let name = &unit.mark.name;
    if let Err(error) = clear(&post.home, name, unit.known(), REMAINS_STOP_TIMEOUT).await {
        tracing::warn!(
            deployment.id = %name.deployment, component.name = %name.component,
            "its main process has ended and left something: {}", muster_service::error::chain(&error)
        );
    }
}

/// Writes a note. Without one, a restart of the agent runs a finished job again, and knows a process by its mark alone.
async fn remember(post: &Post, unit: &Watched, note: Note) {
    let (home, name) = (Arc::clone(&post.home), unit.mark.name.clone());
    let written = tokio::task::spawn_blocking(move || note.write(&home, &name)).await;
    if let Ok(Err(error)) = written {
        let name = &unit.mark.name;
        tracing::warn!(
            deployment.id = %name.deployment, component.name = %name.component, %error,
            "cannot note how far it is: a restart of the agent would run it again if it is a finished job"
        );
    }
}

async fn tell(post: &Post, unit: &Watched, end: &End) {
    let Mark { name, digest_prefix } = unit.mark.clone();
    let error = end.error(&name.component, When::AfterReady);
    let exit = Exit { name, digest_prefix, error };
    tokio::select! {
        // An agent that has closed its end is about to leave, and will see by looking.
        _ = post.exits.send(exit) => {}
        () = post.leave.cancelled() => {}
    }
}
