//! Watches all ready units of a device: lists the containers at every event of the engine and at an interval, and
//! sends the exit of a unit once.
//!
//! If the engine does not answer for [`ENGINE_GRACE`], it is unknown what runs, and every unit gets an exit that says
//! so. When the engine answers again, units that still run are adopted.

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
use super::unit_state::{self, UnitEnd};
use crate::runtime::{Exit, Unit, UnitName, code};

/// Time between two polls without an event.
const POLL_INTERVAL: Duration = Duration::from_secs(15);
/// Time between two polls while the engine does not answer.
const POLL_INTERVAL_LOST: Duration = Duration::from_secs(2);
/// Time for which the engine may not answer before its units count as lost.
const ENGINE_GRACE: Duration = Duration::from_secs(10);
/// Time between an event and the poll: by then the engine has restarted the containers that it restarts.
const SETTLE: Duration = Duration::from_millis(700);
/// Time between two attempts to subscribe to the engine's events.
const LISTEN_AGAIN: Duration = Duration::from_secs(1);

/// A unit that is ready.
#[derive(Debug, Clone)]
pub(super) struct ReadyUnit {
    digest_prefix: String,
    services: usize,
    done: BTreeSet<String>,
    since: Instant,
}

impl Inner {
    /// Watches a unit that is ready.
    pub(super) fn watch_unit(inner: &Arc<Self>, unit: &Unit, services: usize, done: BTreeSet<String>) {
        let watched =
            ReadyUnit { digest_prefix: unit.digest_prefix(), services, done, since: Instant::now() };
        inner.table().insert(unit.name(), watched);
        if inner.watching.set(()).is_ok() {
            let (nudge, nudged) = mpsc::channel(1);
            let leave = inner.leave.clone();
            let listening = listen(Arc::clone(inner), nudge);
            tokio::spawn(leave.clone().run_until_cancelled_owned(listening));
            tokio::spawn(leave.run_until_cancelled_owned(watch(Arc::clone(inner), nudged)));
        }
    }

    /// The error of an end, with the last lines of its container's log.
    pub(super) async fn error_of(&self, component: &ComponentName, end: UnitEnd) -> StatusError {
        let words = match &end.container {
            Some(id) => self.engine.last_lines(id).await,
            None => String::new(),
        };
        let more = if words.is_empty() { words } else { format!("; its last lines: {words}") };
        StatusError::new(end.code, component.as_str(), format!("{}{more}", end.message))
    }

    /// Polls every watched unit once.
    async fn check_units(&self) -> Result<(), CommandError> {
        // Copied before the query: units that become ready meanwhile are not in its answer.
        let watched = self.table().clone();
        if watched.is_empty() {
            return Ok(());
        }
        let units = self.units().await?;
        for (name, watched) in watched {
            let containers = units.get(&name).map(Vec::as_slice).unwrap_or_default();
            if let Some(end) = unit_state::end_after_ready(containers, watched.services, &watched.done) {
                let error = self.error_of(&name.component, end).await;
                self.send_exit(name, &watched, error).await;
            }
        }
        Ok(())
    }

    /// Reports every watched unit as lost.
    async fn report_lost(&self, error: &CommandError) {
        let watched = self.table().clone();
        for (name, watched) in watched {
            let message = format!("the engine has not answered for {ENGINE_GRACE:?}: {}", chain(error));
            let error = StatusError::new(code::ENGINE_LOST, name.component.as_str(), message);
            self.send_exit(name, &watched, error).await;
        }
    }

    /// Sends the exit of a unit, unless it was stopped or started again meanwhile.
    async fn send_exit(&self, name: UnitName, watched: &ReadyUnit, error: StatusError) {
        let still = {
            let mut table = self.table();
            let same = table.get(&name).is_some_and(|now| now.since == watched.since);
            same && table.remove(&name).is_some()
        };
        if still {
            let exit = Exit { name, digest_prefix: watched.digest_prefix.clone(), error };
            // A closed channel means that the agent ends; its inventory finds the exit later.
            let _ = self.exits.send(exit).await;
        }
    }
}

async fn watch(inner: Arc<Inner>, mut nudged: mpsc::Receiver<()>) {
    let mut silent_since: Option<Instant> = None;
    loop {
        let pause = if silent_since.is_some() { POLL_INTERVAL_LOST } else { POLL_INTERVAL };
        tokio::select! {
            _ = nudged.recv() => sleep(SETTLE).await,
            () = sleep(pause) => {}
        }
        // The poll covers further events that came meanwhile.
        while nudged.try_recv().is_ok() {}
        match inner.check_units().await {
            Ok(()) => silent_since = None,
            Err(error) => {
                let since = *silent_since.get_or_insert_with(|| {
                    tracing::warn!(error = chain(&error), "the engine does not answer");
                    Instant::now()
                });
                if since.elapsed() >= ENGINE_GRACE {
                    inner.report_lost(&error).await;
                }
            }
        }
    }
}

/// Forwards the events of the engine; subscribes again when they end.
async fn listen(inner: Arc<Inner>, nudge: mpsc::Sender<()>) {
    loop {
        if let Ok(mut child) = inner.engine.events().command(None).spawn()
            && let Some(stdout) = child.stdout.take()
        {
            let mut lines = BufReader::new(stdout).lines();
            while let Ok(Some(_)) = lines.next_line().await {
                // One waiting message is enough: the poll covers all units.
                let _ = nudge.try_send(());
            }
            // The end of the events counts as one: a stopping engine ends them.
            let _ = nudge.try_send(());
        }
        sleep(LISTEN_AGAIN).await;
    }
}
