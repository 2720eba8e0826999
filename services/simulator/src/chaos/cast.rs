//! Who takes part: the server, the services and the agents, each a process of its own that can be killed, halted and
//! started again, and each but the server behind a link of its own.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use muster_contract::DeviceKey;
use rustix::process::Signal;
use tokio::time::Instant;

use super::plan::Role;
use crate::child::{Child, STOP_PATIENCE, Spec};
use crate::config::chaos::Config;
use crate::disk::{Disk, UNSHOCKED};
use crate::error::Error;
use crate::fleet::{
    Sign, Tempo, agent_args, agent_name, await_ready, common_args, device_dir, find_program, open_link,
    server_spec, services_of,
};
use crate::link::Link;
use crate::places::Places;
use crate::repository::Repository;

/// The tempo of a trial: minutes of a real fleet are seconds, and a snapshot is taken often enough to be killed in.
const TEMPO: Tempo = Tempo {
    heartbeat: "2s",
    lease: "8s",
    reconnect_max: "3s",
    retry_min: "500ms",
    retry_max: "3s",
    git_poll: "300ms",
    snapshot_every: "2s",
};
/// Below the range from which the kernel takes ports of outgoing connections: a killed process's port stays free.
const PORTS: std::ops::Range<u16> = 10_240..32_000;
/// Ports tried before giving up.
const PORT_TRIES: usize = 1000;
/// The files of an agent's database.
const AGENT_FILES: [&str; 2] = ["agent.db", "agent.db-wal"];
/// Pause between two agents that are started: together they would only wait for each other.
const SPREAD: Duration = Duration::from_millis(20);

/// Time within which one who met a full disk has ended and was seen to have, counted from when there was room again: enough
/// for a process that was being started to get as far as its database on a busy machine, and for what may lie between two
/// looks. Later ends have another reason.
const ROOM_GRACE: Duration = Duration::from_secs(30);

/// Time within which a process that was started can be asked to end. Before, the request itself ends it.
const HEARS_WITHIN: Duration = Duration::from_secs(2);

/// Everybody.
#[derive(Debug)]
pub(super) struct Cast {
    /// Where things are.
    pub(super) places: Places,
    /// Where the server listens, not behind any link.
    pub(super) nats: SocketAddr,
    /// The devices, in the order of [`Role::Agent`].
    pub(super) devices: Vec<DeviceKey>,
    /// The devices whose agents have lost their databases, and how often.
    pub(super) forgotten: BTreeMap<DeviceKey, u64>,
    members: Vec<Member>,
}

/// One of them.
#[derive(Debug)]
pub(super) struct Member {
    /// Who it is.
    pub(super) role: Role,
    /// Its link; the server has none.
    pub(super) link: Option<Arc<Link>>,
    /// Its disk, if it has a small one.
    pub(super) disk: Option<Disk>,
    /// Its disk is full now.
    pub(super) full: bool,
    /// Since when there is room again on its disk, if it met a full one; time in which it was halted does not count.
    cleared: Option<Instant>,
    /// When it was started last.
    started: Option<Instant>,
    /// Where it serves its metrics; the server does not.
    pub(super) http: Option<SocketAddr>,
    spec: Spec,
    state: State,
}

#[derive(Debug)]
enum State {
    Up(Child),
    /// Halted, since when.
    Frozen(Child, Instant),
    /// Asked to end, since when.
    Leaving(Child, Instant),
    Down,
}

/// How somebody came to be down without having been killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fall {
    /// It was asked to.
    Dismissed,
    /// For want of room on its disk.
    NoRoom,
}

impl Cast {
    /// Starts the server, then the services, then the agents.
    ///
    /// # Errors
    /// Something could not be started. What was started ends with the error.
    pub(super) async fn start(
        config: &Config,
        places: Places,
        repository: &Repository,
    ) -> Result<Self, Error> {
        let nats = free_address()?;
        let devices = config.device_keys();
        let server = Member::new(Role::Server, server_spec(&places, nats)?, None);
        let dir = places.dir.clone();
        let mut cast = Self { places, nats, devices, forgotten: BTreeMap::new(), members: vec![server] };
        cast.member(Role::Server).start(&dir)?;
        cast.ready(Role::Server).await?;
        let roles = [Role::Ingest, Role::Rollup, Role::Publisher];
        let services = services_of(&cast.places, repository, &TEMPO);
        for (role, (program, args)) in roles.into_iter().zip(services) {
            let spec = Spec {
                name: program.to_owned(),
                program: find_program(&cast.places.programs, program)?,
                args,
            };
            cast.enter(role, spec, None).await?;
            cast.ready(role).await?;
        }
        let small = config.small_disks();
        for at in 0..cast.devices.len() {
            cast.enter_agent(at, at < config.process_agents(), small.contains(&at)).await?;
            tokio::time::sleep(SPREAD).await;
        }
        Ok(cast)
    }

    async fn enter(&mut self, role: Role, spec: Spec, disk: Option<Disk>) -> Result<(), Error> {
        let link = Arc::new(open_link(&spec.name, self.nats).await?);
        let mut member = Member::new(role, spec, Some(link));
        member.disk = disk;
        member.start(&self.places.dir)?;
        self.members.push(member);
        Ok(())
    }

    async fn enter_agent(&mut self, at: usize, real: bool, small_disk: bool) -> Result<(), Error> {
        let key = &self.devices[at];
        let data = device_dir(&self.places, key);
        let disk = small_disk.then(|| Disk::small(&data)).transpose();
        let disk = disk.map_err(|source| Error::Prepare { path: data.clone(), source })?;
        let runtime = if real { "process" } else { "simulated" };
        let mut args = agent_args(key, &data, runtime, &TEMPO);
        let mut program = find_program(&self.places.programs, "muster-agent")?;
        if let Some(Disk::Limited) = disk {
            tracing::warn!(
                device = %key,
                "NOT A REAL FULL DISK: without the right to mount one, the agent's file size limit stands for it"
            );
            let [shell, rest @ ..] = UNSHOCKED;
            let before = rest.iter().map(|&arg| arg.to_owned()).chain([program.display().to_string()]);
            args = before.chain(args).collect();
            program = shell.into();
        }
        let spec = Spec { name: agent_name(key), program, args };
        self.enter(Role::Agent(at), spec, disk).await
    }

    /// Waits until somebody is ready.
    async fn ready(&mut self, role: Role) -> Result<(), Error> {
        let nats = self.nats;
        let member = self.member(role);
        let sign = member.http.map_or(Sign::Port(nats), Sign::Ready);
        match &mut member.state {
            State::Up(child) => await_ready(child, sign).await,
            State::Frozen(..) | State::Leaving(..) | State::Down => Ok(()),
        }
    }

    /// Somebody.
    pub(super) fn member(&mut self, role: Role) -> &mut Member {
        let at = match role {
            Role::Server => 0,
            Role::Ingest => 1,
            Role::Rollup => 2,
            Role::Publisher => 3,
            Role::Agent(at) => 4 + at,
        };
        &mut self.members[at]
    }

    /// Removes what somebody who is down keeps for itself. A service must lose nothing by that; an agent begins anew, and
    /// says so.
    ///
    /// # Errors
    /// It cannot be removed.
    pub(super) fn forget(&mut self, role: Role) -> Result<(), Error> {
        match role {
            Role::Rollup => self.set_aside("rollup"),
            Role::Publisher => self.set_aside("publisher"),
            Role::Agent(at) => {
                let key = &self.devices[at];
                *self.forgotten.entry(key.clone()).or_default() += 1;
                let dir = device_dir(&self.places, key);
                AGENT_FILES
                    .iter()
                    .try_for_each(|file| gone(&dir.join(file), std::fs::remove_file(dir.join(file))))
            }
            Role::Server | Role::Ingest => Ok(()),
        }
    }

    /// Moves a directory away: a child of the process that was killed may still write there.
    fn set_aside(&self, name: &str) -> Result<(), Error> {
        let (from, aside) = (self.places.dir.join(name), self.places.dir.join("forgotten"));
        let made = std::fs::create_dir_all(&aside);
        made.map_err(|source| Error::Prepare { path: aside.clone(), source })?;
        gone(&from, std::fs::rename(&from, aside.join(format!("{name}-{:016x}", fastrand::u64(..)))))
    }

    /// Everybody.
    pub(super) fn members(&mut self) -> impl Iterator<Item = &mut Member> {
        self.members.iter_mut()
    }

    /// Lets everybody go on, also who was halted or is down.
    ///
    /// # Errors
    /// Somebody could not be started.
    pub(super) fn raise_all(&mut self) -> Result<(), Error> {
        let dir = self.places.dir.clone();
        self.members.iter_mut().try_for_each(|member| {
            member.clear_disk()?;
            member.thaw();
            member.start(&dir)
        })
    }

    /// Stops the agents with their workloads, then the services in the reverse order of their start, then the server.
    ///
    /// # Errors
    /// The first process whose end could not be awaited; all are asked to end.
    pub(super) async fn stop(self) -> Result<(), Error> {
        let (mut first, mut members) = (Ok(()), self.members);
        let agents = members.split_off(4);
        for result in join_all(agents.into_iter().map(Member::stop)).await {
            first = first.and(result);
        }
        for member in members.into_iter().rev() {
            first = first.and(member.stop().await);
        }
        first
    }
}

impl Member {
    const fn new(role: Role, spec: Spec, link: Option<Arc<Link>>) -> Self {
        let (disk, full, cleared, started, http) = (None, false, None, None, None);
        Self { role, link, disk, full, cleared, started, http, spec, state: State::Down }
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
        if let Some(link) = &self.link {
            // A new port each time: the last one may be somebody else's by now.
            let http = free_address()?;
            spec.args.extend(common_args(link.address(), http));
            self.http = Some(http);
        }
        self.state = State::Up(Child::start(spec, dir)?);
        self.started = Some(Instant::now());
        // Whatever the one before it met, this one did not.
        self.cleared = None;
        if self.full {
            self.fill_disk()?;
        }
        Ok(())
    }

    /// Kills it where it stands; false if it was not up.
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

    /// Halts it where it stands; false if it was not up.
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

    /// Asks it to end; false if it was not up.
    pub(super) fn dismiss(&mut self) -> bool {
        match std::mem::replace(&mut self.state, State::Down) {
            State::Up(child) => {
                child.dismiss();
                self.state = State::Leaving(child, Instant::now());
                true
            }
            other => {
                self.state = other;
                false
            }
        }
    }

    /// Lets it go on if it was halted.
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
        self.full = true;
        Ok(true)
    }

    /// Gives the room on its disk back.
    ///
    /// # Errors
    /// It cannot be given back.
    pub(super) fn clear_disk(&mut self) -> Result<(), Error> {
        let pid = self.pid();
        if std::mem::take(&mut self.full) {
            self.cleared = Some(Instant::now());
        }
        let Some(disk) = &self.disk else { return Ok(()) };
        disk.clear(pid).map_err(|source| Error::Disk { name: self.spec.name.clone(), source })
    }

    /// Whether it has come to be down since the last look, by being asked to or for want of room.
    ///
    /// # Errors
    /// It ended by itself while there was room, or did not end well or in time when it was asked to.
    pub(super) fn has_fallen(&mut self) -> Result<Option<Fall>, Error> {
        let (room, hears) = (self.had_room(), self.hears());
        let (child, since) = match &mut self.state {
            State::Up(child) => (child, None),
            State::Leaving(child, since) => (child, Some(*since)),
            State::Frozen(..) | State::Down => return Ok(None),
        };
        let status = child.ended()?;
        let fall = match (status, since) {
            (None, Some(since)) if since.elapsed() > STOP_PATIENCE => {
                let (name, log) = (self.spec.name.clone(), child.log().to_owned());
                return Err(Error::Stays { name, waited: STOP_PATIENCE, log });
            }
            (None, _) => return Ok(None),
            (Some(status), Some(_)) if status.success() => Fall::Dismissed,
            (Some(status), Some(_)) if !hears && status.signal() == Some(Signal::TERM.as_raw()) => {
                Fall::Dismissed
            }
            _ if !room => Fall::NoRoom,
            _ => return child.expect_running().map(|()| None),
        };
        self.state = State::Down;
        Ok(Some(fall))
    }

    /// Whether its disk was not what it ended for. One that was asked to end before may say at its end what it met then.
    fn had_room(&self) -> bool {
        let at = match &self.state {
            State::Leaving(_, since) => *since,
            _ => Instant::now(),
        };
        !self.full && self.cleared.is_none_or(|cleared| at >= cleared + ROOM_GRACE)
    }

    /// Whether it had been there long enough to hear what it was asked.
    fn hears(&self) -> bool {
        match (&self.state, self.started) {
            (State::Leaving(_, asked), Some(started)) => *asked >= started + HEARS_WITHIN,
            _ => true,
        }
    }

    fn pid(&self) -> Option<rustix::process::Pid> {
        match &self.state {
            State::Up(child) | State::Frozen(child, _) | State::Leaving(child, _) => child.pid(),
            State::Down => None,
        }
    }

    async fn stop(mut self) -> Result<(), Error> {
        self.thaw();
        match std::mem::replace(&mut self.state, State::Down) {
            State::Up(child) | State::Frozen(child, _) | State::Leaving(child, _) => {
                child.stop().await.map(drop)
            }
            State::Down => Ok(()),
        }
    }
}

/// It was there and is gone, or was not there at all.
fn gone(path: &Path, done: std::io::Result<()>) -> Result<(), Error> {
    match done {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::Prepare { path: path.to_owned(), source })
        }
        _ => Ok(()),
    }
}

/// An address that is free now and that no outgoing connection takes.
fn free_address() -> Result<SocketAddr, Error> {
    let mut last = Ok(());
    for _ in 0..PORT_TRIES {
        match TcpListener::bind((Ipv4Addr::LOCALHOST, fastrand::u16(PORTS)))
            .and_then(|bound| bound.local_addr())
        {
            Ok(address) => return Ok(address),
            Err(error) => last = Err(error),
        }
    }
    let error = last.err().unwrap_or_else(|| std::io::ErrorKind::AddrInUse.into());
    Err(Error::Network { what: "a free port".to_owned(), source: error })
}

#[cfg(test)]
mod tests;
