//! One process under test: the executor starts, kills, freezes and stops it, and any other end of it is an error.

use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal};
use tokio::time::Instant;

use super::schedule::Role;
use crate::child::{Child, STOP_PATIENCE, Spec};
use crate::disk::Disk;
use crate::error::Error;
use crate::link::Link;
use crate::ports::free_address;

/// Time after a full disk was cleared within which a process may still end because of it: enough for a process that was
/// being started to get as far as its database on a busy machine, and for the time between two looks.
const ROOM_GRACE: Duration = Duration::from_secs(30);

/// Time after its start from which a process handles SIGTERM. Before, the signal itself ends it.
const HANDLES_SIGTERM_AFTER: Duration = Duration::from_secs(2);

/// A process under test.
#[derive(Debug)]
pub(super) struct Process {
    /// Its role.
    pub(super) role: Role,
    /// Its link; the server has none.
    pub(super) link: Option<Arc<Link>>,
    /// Its disk, if it has a small one.
    pub(super) disk: Option<Disk>,
    /// Its disk is full now.
    pub(super) is_full: bool,
    /// The address of its metrics; nats-server has none.
    pub(super) http: Option<SocketAddr>,
    /// The process ids of all its starts.
    pub(super) pids: Vec<u32>,
    /// When its full disk was cleared, if it met one; time in which it was frozen does not count.
    cleared: Option<Instant>,
    started: Option<Instant>,
    spec: Spec,
    state: State,
}

#[derive(Debug)]
enum State {
    Up(Child),
    /// Frozen, since when.
    Frozen(Child, Instant),
    /// Asked to end, since when.
    Terminating(Child, Instant),
    Down,
}

/// Why a process that was not killed has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EndCause {
    /// It was asked to.
    Terminated,
    /// Its disk was full.
    NoRoom,
}

impl Process {
    pub(super) const fn new(role: Role, spec: Spec, link: Option<Arc<Link>>) -> Self {
        let (disk, is_full, cleared, started, http) = (None, false, None, None, None);
        Self { role, link, disk, is_full, http, pids: Vec::new(), cleared, started, spec, state: State::Down }
    }

    /// Starts it, unless it is there.
    ///
    /// # Errors
    /// It could not be started.
    pub(super) fn start(&mut self, dir: &Path) -> Result<(), Error> {
        if !matches!(self.state, State::Down) {
            return Ok(());
        }
        let mut spec = self.spec.clone();
        if self.link.is_some() {
            // A new port each time: another process may have the last one by now.
            let http = free_address()?;
            spec.args.extend(["--http-addr".to_owned(), http.to_string()]);
            self.http = Some(http);
        }
        let child = Child::start(spec, dir)?;
        self.pids.extend(child.pid().map(|pid| pid.as_raw_nonzero().get().unsigned_abs()));
        self.state = State::Up(child);
        self.started = Some(Instant::now());
        // The process before it met the full disk, this one did not.
        self.cleared = None;
        if self.is_full {
            self.fill_disk()?;
        }
        Ok(())
    }

    /// Its child, if it is up.
    pub(super) const fn up(&mut self) -> Option<&mut Child> {
        match &mut self.state {
            State::Up(child) => Some(child),
            State::Frozen(..) | State::Terminating(..) | State::Down => None,
        }
    }

    /// Kills it with SIGKILL; false if it was not up.
    ///
    /// # Errors
    /// Its end could not be awaited.
    pub(super) async fn kill(&mut self) -> Result<bool, Error> {
        match std::mem::replace(&mut self.state, State::Down) {
            State::Up(child) => child.kill().await.map(|()| true),
            other => {
                self.state = other;
                Ok(false)
            }
        }
    }

    /// Freezes it with SIGSTOP; false if it was not up.
    pub(super) fn freeze(&mut self) -> bool {
        match std::mem::replace(&mut self.state, State::Down) {
            State::Up(child) => {
                child.freeze();
                self.state = State::Frozen(child, Instant::now());
                true
            }
            other => {
                self.state = other;
                false
            }
        }
    }

    /// Asks it to end with SIGTERM; false if it was not up.
    pub(super) fn terminate(&mut self) -> bool {
        match std::mem::replace(&mut self.state, State::Down) {
            State::Up(child) => {
                child.dismiss();
                self.state = State::Terminating(child, Instant::now());
                true
            }
            other => {
                self.state = other;
                false
            }
        }
    }

    /// Lets it go on if it was frozen.
    pub(super) fn thaw(&mut self) {
        match std::mem::replace(&mut self.state, State::Down) {
            State::Frozen(child, since) => {
                child.thaw();
                self.cleared = self.cleared.map(|cleared| cleared + cleared.max(since).elapsed());
                self.state = State::Up(child);
            }
            other => self.state = other,
        }
    }

    /// Fills its disk; false if it has no small one.
    ///
    /// # Errors
    /// It cannot be filled.
    pub(super) fn fill_disk(&mut self) -> Result<bool, Error> {
        let pid = self.pid();
        let Some(disk) = &self.disk else { return Ok(false) };
        disk.fill(pid).map_err(|source| Error::Disk { name: self.spec.name.clone(), source })?;
        self.is_full = true;
        Ok(true)
    }

    /// Gives the room on its disk back.
    ///
    /// # Errors
    /// It cannot be given back.
    pub(super) fn clear_disk(&mut self) -> Result<(), Error> {
        let pid = self.pid();
        if std::mem::take(&mut self.is_full) {
            self.cleared = Some(Instant::now());
        }
        let Some(disk) = &self.disk else { return Ok(()) };
        disk.clear(pid).map_err(|source| Error::Disk { name: self.spec.name.clone(), source })
    }

    /// Why it has ended since the last look, if it has.
    ///
    /// # Errors
    /// It ended by itself while there was room, or it was asked to end and failed, or did not end in time.
    pub(super) fn end_cause(&mut self) -> Result<Option<EndCause>, Error> {
        let (had_room, handles_sigterm) = (self.had_room(), self.handles_sigterm());
        let (child, since) = match &mut self.state {
            State::Up(child) => (child, None),
            State::Terminating(child, since) => (child, Some(*since)),
            State::Frozen(..) | State::Down => return Ok(None),
        };
        let status = child.ended()?;
        let cause = match (status, since) {
            (None, Some(since)) if since.elapsed() > STOP_PATIENCE => {
                let (name, log) = (self.spec.name.clone(), child.log().to_owned());
                return Err(Error::Stays { name, waited: STOP_PATIENCE, log });
            }
            (None, _) => return Ok(None),
            (Some(status), Some(_)) if status.success() => EndCause::Terminated,
            (Some(status), Some(_)) if !handles_sigterm && status.signal() == Some(Signal::TERM.as_raw()) => {
                EndCause::Terminated
            }
            _ if !had_room => EndCause::NoRoom,
            _ => return child.expect_running().map(|()| None),
        };
        self.state = State::Down;
        Ok(Some(cause))
    }

    /// Asks it to end and waits for that.
    ///
    /// # Errors
    /// Its end could not be awaited.
    pub(super) async fn stop(mut self) -> Result<(), Error> {
        self.thaw();
        match std::mem::replace(&mut self.state, State::Down) {
            State::Up(child) | State::Frozen(child, _) | State::Terminating(child, _) => {
                child.stop().await.map(drop)
            }
            State::Down => Ok(()),
        }
    }

    /// Whether it ended for another reason than its disk. A process that was asked to end earlier may still report the full
    /// disk at its end.
    fn had_room(&self) -> bool {
        let at = match &self.state {
            State::Terminating(_, since) => *since,
            _ => Instant::now(),
        };
        !self.is_full && self.cleared.is_none_or(|cleared| at >= cleared + ROOM_GRACE)
    }

    /// Whether it handled SIGTERM when it was asked to end.
    fn handles_sigterm(&self) -> bool {
        match (&self.state, self.started) {
            (State::Terminating(_, asked), Some(started)) => *asked >= started + HANDLES_SIGTERM_AFTER,
            _ => true,
        }
    }

    fn pid(&self) -> Option<Pid> {
        match &self.state {
            State::Up(child) | State::Frozen(child, _) | State::Terminating(child, _) => child.pid(),
            State::Down => None,
        }
    }
}

#[cfg(test)]
mod tests;
