//! The fault schedule, drawn from a seed. Pure: it reads no clock and starts no process. Each kind of fault has a random
//! stream of its own, so that another kind does not change the others.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;
use std::time::Duration;

/// Ingests, and rollups: one works, the other stands by.
pub(super) const REPLICAS: usize = 2;

/// The role of a process under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Role {
    /// nats-server.
    Server,
    /// One of the [`REPLICAS`] of muster-ingest.
    Ingest(usize),
    /// One of the [`REPLICAS`] of muster-rollup.
    Rollup(usize),
    /// muster-publisher.
    Publisher,
    /// muster-planner.
    Planner,
    /// The agent of a device, by its index.
    Agent(usize),
}

impl Role {
    /// The services, in the order of their start.
    pub(super) const SERVICES: [Self; 2 * REPLICAS + 2] =
        [Self::Ingest(0), Self::Ingest(1), Self::Rollup(0), Self::Rollup(1), Self::Publisher, Self::Planner];

    /// The word for processes of this kind in counts.
    pub(super) const fn kind(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Ingest(_) => "ingest",
            Self::Rollup(_) => "rollup",
            Self::Publisher => "publisher",
            Self::Planner => "planner",
            Self::Agent(_) => "agent",
        }
    }

    /// Its program.
    pub(super) const fn program(self) -> &'static str {
        match self {
            Self::Server => "nats-server",
            Self::Ingest(_) => "muster-ingest",
            Self::Rollup(_) => "muster-rollup",
            Self::Publisher => "muster-publisher",
            Self::Planner => "muster-planner",
            Self::Agent(_) => "muster-agent",
        }
    }

    /// The name of its process: unlike any other's, but for agents, which are named after their devices.
    pub(super) fn name(self) -> String {
        match self {
            Self::Ingest(at) | Self::Rollup(at) => format!("{}-{}", self.program(), at + 1),
            _ => self.program().to_owned(),
        }
    }

    /// Its place in the order of the start.
    pub(super) const fn index(self) -> usize {
        match self {
            Self::Server => 0,
            Self::Ingest(at) => 1 + at,
            Self::Rollup(at) => 1 + REPLICAS + at,
            Self::Publisher => 1 + 2 * REPLICAS,
            Self::Planner => 2 + 2 * REPLICAS,
            Self::Agent(at) => 3 + 2 * REPLICAS + at,
        }
    }

    /// The other replica, where there is one.
    pub(super) const fn standby(self) -> Option<Self> {
        match self {
            Self::Ingest(at) => Some(Self::Ingest(REPLICAS - 1 - at)),
            Self::Rollup(at) => Some(Self::Rollup(REPLICAS - 1 - at)),
            Self::Server | Self::Publisher | Self::Planner | Self::Agent(_) => None,
        }
    }
}

/// Something that is done to the system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProcessFault {
    /// kill -9, and a start after a while.
    Kill(Role, Duration),
    /// The same, and the process loses its own files: a snapshot, the publisher's mirror, an agent's database.
    KillAndWipe(Role, Duration),
    /// SIGTERM, in whatever state it is, and a start a while after its end.
    Terminate(Role, Duration),
    /// SIGSTOP, and SIGCONT after a while.
    Freeze(Role, Duration),
    /// The disk of a device is full for a while.
    FillDisk(usize, Duration),
    /// kill -9 of a real process that a device runs; the number picks one of those that run.
    KillWorkload(usize),
    /// A commit to the fleet's repository.
    Commit,
}

/// Kinds of faults, each with the time between two of them and how long one lasts, in milliseconds. A service may be down for
/// longer than its standby waits for it.
const STREAMS: [Stream; 9] = [
    Stream { kind: FaultKind::KillAgent, every_ms: 300..2_500, lasts_ms: 0..5_000 },
    Stream { kind: FaultKind::KillService, every_ms: 500..6_000, lasts_ms: 0..9_000 },
    Stream { kind: FaultKind::KillServer, every_ms: 5_000..20_000, lasts_ms: 0..5_000 },
    Stream { kind: FaultKind::Terminate, every_ms: 3_000..12_000, lasts_ms: 0..2_000 },
    Stream { kind: FaultKind::Freeze, every_ms: 1_500..8_000, lasts_ms: 500..9_000 },
    Stream { kind: FaultKind::FillDisk, every_ms: 4_000..12_000, lasts_ms: 2_000..9_000 },
    Stream { kind: FaultKind::Commit, every_ms: 1_500..6_000, lasts_ms: 0..1 },
    Stream { kind: FaultKind::KillWorkload, every_ms: 1_000..5_000, lasts_ms: 0..1 },
    Stream { kind: FaultKind::Planner, every_ms: 1_000..6_000, lasts_ms: 0..4_000 },
];

/// The services that faults of services draw from, as many as when the first seeds were chosen; the planner has faults of its own.
const DRAWN: usize = 2 * REPLICAS + 1;

/// One service killed in so many loses its own files.
const WIPE_SERVICE_ONE_IN: usize = 4;
/// One agent killed in so many does.
const WIPE_AGENT_ONE_IN: usize = 10;

#[derive(Debug, Clone)]
struct Stream {
    kind: FaultKind,
    every_ms: Range<u64>,
    lasts_ms: Range<u64>,
}

/// In this order for ever, and new ones at the end: the order decides what a seed means.
#[derive(Debug, Clone, Copy)]
enum FaultKind {
    KillAgent,
    KillService,
    KillServer,
    Freeze,
    FillDisk,
    Commit,
    Terminate,
    KillWorkload,
    Planner,
}

impl Stream {
    /// The random numbers of this stream alone.
    fn rng(&self, seed: u64) -> fastrand::Rng {
        fastrand::Rng::with_seed(seed ^ (self.kind as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }
}

/// The schedule: faults in the order of their times, without an end.
#[derive(Debug)]
pub(super) struct FaultSchedule {
    agents: usize,
    disks: usize,
    rngs: Vec<fastrand::Rng>,
    next: BinaryHeap<Reverse<(Duration, usize)>>,
}

impl FaultSchedule {
    /// A schedule for so many agents and small disks (at least one of each).
    pub(super) fn new(seed: u64, agents: usize, disks: usize) -> Self {
        let mut rngs: Vec<_> = STREAMS.iter().map(|stream| stream.rng(seed)).collect();
        let first = |(at, stream): (usize, &Stream)| {
            Reverse((Duration::from_millis(rngs[at].u64(0..stream.every_ms.end)), at))
        };
        let next = STREAMS.iter().enumerate().map(first).collect();
        Self { agents: agents.max(1), disks: disks.max(1), rngs, next }
    }

    /// When the next fault is due, counted from the beginning.
    pub(super) fn due(&self) -> Duration {
        self.next.peek().map_or(Duration::MAX, |Reverse((due, _))| *due)
    }

    fn draw(&mut self, at: usize) -> ProcessFault {
        let (stream, rng) = (&STREAMS[at], &mut self.rngs[at]);
        let lasts = Duration::from_millis(rng.u64(stream.lasts_ms.clone()));
        let agent = Role::Agent(rng.usize(0..self.agents));
        let service = Role::SERVICES[rng.usize(0..DRAWN)];
        match stream.kind {
            FaultKind::KillAgent if rng.usize(0..WIPE_AGENT_ONE_IN) == 0 => {
                ProcessFault::KillAndWipe(agent, lasts)
            }
            FaultKind::KillAgent => ProcessFault::Kill(agent, lasts),
            FaultKind::KillService if rng.usize(0..WIPE_SERVICE_ONE_IN) == 0 => {
                ProcessFault::KillAndWipe(service, lasts)
            }
            FaultKind::KillService => ProcessFault::Kill(service, lasts),
            FaultKind::KillServer => ProcessFault::Kill(Role::Server, lasts),
            FaultKind::Terminate => ProcessFault::Terminate([agent, agent, service][rng.usize(0..3)], lasts),
            FaultKind::Freeze => {
                let role = [agent, agent, service, service, service, Role::Server][rng.usize(0..6)];
                ProcessFault::Freeze(role, lasts)
            }
            FaultKind::FillDisk => ProcessFault::FillDisk(rng.usize(0..self.disks), lasts),
            FaultKind::KillWorkload => ProcessFault::KillWorkload(rng.usize(..)),
            FaultKind::Commit => ProcessFault::Commit,
            FaultKind::Planner => match rng.u8(0..4) {
                0 => ProcessFault::Freeze(Role::Planner, lasts),
                1 => ProcessFault::KillAndWipe(Role::Planner, lasts),
                _ => ProcessFault::Kill(Role::Planner, lasts),
            },
        }
    }
}

impl Iterator for FaultSchedule {
    type Item = (Duration, ProcessFault);

    fn next(&mut self) -> Option<Self::Item> {
        let Reverse((due, at)) = self.next.pop()?;
        let fault = self.draw(at);
        let pause = Duration::from_millis(self.rngs[at].u64(STREAMS[at].every_ms.clone()));
        self.next.push(Reverse((due + pause, at)));
        Some((due, fault))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_seed_repeats_its_schedule() {
        let draw = |seed| FaultSchedule::new(seed, 20, 3).take(500).collect::<Vec<_>>();
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn every_process_is_killed_and_frozen_in_the_end() {
        let mut schedule = FaultSchedule::new(1, 5, 2);
        let (mut last, mut killed, mut frozen, mut filled) =
            (Duration::ZERO, BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for _ in 0..20_000 {
            let due = schedule.due();
            let (at, fault) = schedule.next().unwrap();
            assert!(at >= last && at == due);
            last = at;
            match fault {
                ProcessFault::Kill(role, _) | ProcessFault::KillAndWipe(role, _) => _ = killed.insert(role),
                ProcessFault::Terminate(role, _) => assert_ne!(role, Role::Server),
                ProcessFault::Freeze(role, _) => _ = frozen.insert(role),
                ProcessFault::FillDisk(at, _) => _ = filled.insert(at),
                ProcessFault::KillWorkload(_) | ProcessFault::Commit => {}
            }
        }
        let agents = (0..5).map(Role::Agent);
        let all: BTreeSet<_> = std::iter::once(Role::Server).chain(Role::SERVICES).chain(agents).collect();
        assert_eq!((killed, frozen, filled), (all.clone(), all, BTreeSet::from([0, 1])));
    }

    #[test]
    fn every_role_has_an_index_and_a_name_of_its_own() {
        let roles: Vec<_> = std::iter::once(Role::Server).chain(Role::SERVICES).collect();
        let indices: Vec<_> = roles.iter().map(|role| role.index()).collect();
        assert_eq!(indices, (0..Role::Agent(0).index()).collect::<Vec<_>>());
        assert_eq!(roles.iter().map(|role| role.name()).collect::<BTreeSet<_>>().len(), roles.len());
        assert_eq!(Role::Ingest(0).standby(), Some(Role::Ingest(1)));
    }
}
