//! The watch over all units of a device that are ready: looks whenever the engine tells of a container's end or health,
//! and from time to time besides, and tells of a unit's end once.
//!
//! An engine that does not answer takes its containers down, or not: after [`ENGINE_GRACE`] nobody can say what runs, and
//! that is told as each unit's end. When it is back, whatever runs still is taken over.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use muster_contract::ComponentName;
use muster_contract::state::StatusError;
use muster_service::error::chain;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::Inner;
use super::command::CommandError;
use super::judge::{self, End};
use crate::runtime::{Exit, Unit, UnitName, code};

/// Time between two looks where nothing is told.
const LOOK_EVERY: Duration = Duration::from_secs(15);
/// Time between two looks for an engine that does not answer.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
/// Time that an engine may be away before nobody can say any more what runs.
const ENGINE_GRACE: Duration = Duration::from_secs(10);
/// Time between being told and looking: what the engine restarts by itself has been restarted by then.
const SETTLE: Duration = Duration::from_millis(700);
/// Time between two attempts to listen to the engine.
const LISTEN_AGAIN: Duration = Duration::from_secs(1);

/// A unit that is ready.
#[derive(Debug, Clone)]
pub(super) struct Watched {
    digest_prefix: String,
    services: usize,
    done: BTreeSet<String>,
    since: Instant,
}

impl Inner {
    /// Puts a unit that is ready under watch.
    pub(super) fn keep_watch(inner: &Arc<Self>, unit: &Unit, services: usize, done: BTreeSet<String>) {
        let watched = Watched { digest_prefix: unit.digest_prefix(), services, done, since: Instant::now() };
        inner.table().insert(unit.name(), watched);
        if inner.watching.set(()).is_ok() {
            let (nudge, nudged) = mpsc::channel(1);
            let leave = inner.leave.clone();
            let listening = listen(Arc::clone(inner), nudge);
            tokio::spawn(leave.clone().run_until_cancelled_owned(listening));
            tokio::spawn(leave.run_until_cancelled_owned(watch(Arc::clone(inner), nudged)));
        }
    }

    /// An end as it is told, with the last words of the container that it is about.
    pub(super) async fn told(&self, component: &ComponentName, end: End) -> StatusError {
        let words = match &end.container {
            Some(id) => self.engine.last_words(id).await,
            None => String::new(),
        };
        let more = if words.is_empty() { words } else { format!("; its last lines: {words}") };
        StatusError::new(end.code, component.as_str(), format!("{}{more}", end.message))
    }

    /// Looks at every unit under watch once.
    async fn look(&self) -> Result<(), CommandError> {
        // Before the engine is asked: what becomes ready meanwhile is not in its answer.
        let watched = self.table().clone();
        if watched.is_empty() {
            return Ok(());
        }
        let units = self.units().await?;
        for (name, watched) in watched {
            let containers = units.get(&name).map(Vec::as_slice).unwrap_or_default();
            if let Some(end) = judge::ended(containers, watched.services, &watched.done) {
                let error = self.told(&name.component, end).await;
                self.tell(name, &watched, error).await;
            }
        }
        Ok(())
    }

    /// Nobody can say any more what runs.
    async fn lose_sight(&self, error: &CommandError) {
        let watched = self.table().clone();
        for (name, watched) in watched {
            let message = format!("the engine has not answered for {ENGINE_GRACE:?}: {}", chain(error));
            let error = StatusError::new(code::ENGINE_LOST, name.component.as_str(), message);
            self.tell(name, &watched, error).await;
        }
    }

    /// Tells of an end, unless it was asked for meanwhile.
    async fn tell(&self, name: UnitName, watched: &Watched, error: StatusError) {
        let still = {
            let mut table = self.table();
            let same = table.get(&name).is_some_and(|now| now.since == watched.since);
            same && table.remove(&name).is_some()
        };
        if still {
            let exit = Exit { name, digest_prefix: watched.digest_prefix.clone(), error };
            // An agent that has closed its end is about to leave, and will see by looking.
            let _ = self.exits.send(exit).await;
        }
    }
}

async fn watch(inner: Arc<Inner>, mut nudged: mpsc::Receiver<()>) {
    let mut silent_since: Option<Instant> = None;
    loop {
        let pause = if silent_since.is_some() { LOOK_AGAIN } else { LOOK_EVERY };
        tokio::select! {
            _ = nudged.recv() => sleep(SETTLE).await,
            () = sleep(pause) => {}
        }
        // What was told while it settled is looked at as well.
        while nudged.try_recv().is_ok() {}
        match inner.look().await {
            Ok(()) => silent_since = None,
            Err(error) => {
                let since = *silent_since.get_or_insert_with(|| {
                    tracing::warn!(error = chain(&error), "the engine does not answer");
                    Instant::now()
                });
                if since.elapsed() >= ENGINE_GRACE {
                    inner.lose_sight(&error).await;
                }
            }
        }
    }
}

/// Passes on that something happened, for as long as the engine tells; listens again when it does not.
async fn listen(inner: Arc<Inner>, nudge: mpsc::Sender<()>) {
    loop {
        if let Ok(mut child) = inner.engine.events().command(None).spawn()
            && let Some(stdout) = child.stdout.take()
        {
            let mut lines = BufReader::new(stdout).lines();
            while let Ok(Some(_)) = lines.next_line().await {
                // One nudge that waits is enough: the look sees everything.
                let _ = nudge.try_send(());
            }
            // Its end is news too: an engine that goes takes its listeners along.
            let _ = nudge.try_send(());
        }
        sleep(LISTEN_AGAIN).await;
    }
}
