//! What happens when: a schedule drawn from a seed. Pure: it asks no clock and knows no process. Each kind of blow has
//! a stream of its own, so that one kind more does not change the others.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;
use std::time::Duration;

/// Who may be struck.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Role {
    /// nats-server.
    Server,
    /// muster-ingest.
    Ingest,
    /// muster-rollup.
    Rollup,
    /// muster-publisher.
    Publisher,
    /// The agent of a device, by its place.
    Agent(usize),
}

/// Something that is done to the system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Blow {
    /// kill -9, and a start after a while.
    Kill(Role, Duration),
    /// The same, and it loses what it may lose: the rollup's snapshot, the publisher's mirror, an agent's database.
    KillAndForget(Role, Duration),
    /// SIGTERM, in whatever state it is, and a start a while after its end.
    Dismiss(Role, Duration),
    /// SIGSTOP, and SIGCONT after a while.
    Freeze(Role, Duration),
    /// The disk of a device is full for a while.
    FillDisk(usize, Duration),
    /// Somebody commits.
    Commit,
}

/// Kinds of blows, each with the time between two of them and how long one lasts, in milliseconds.
const STREAMS: [Stream; 7] = [
    Stream { kind: Kind::KillAgent, every_ms: 300..2_500, lasts_ms: 0..5_000 },
    Stream { kind: Kind::KillService, every_ms: 500..6_000, lasts_ms: 0..4_000 },
    Stream { kind: Kind::KillServer, every_ms: 5_000..20_000, lasts_ms: 0..5_000 },
    Stream { kind: Kind::Dismiss, every_ms: 3_000..12_000, lasts_ms: 0..2_000 },
    Stream { kind: Kind::Freeze, every_ms: 1_500..8_000, lasts_ms: 500..8_000 },
    Stream { kind: Kind::FillDisk, every_ms: 4_000..12_000, lasts_ms: 2_000..9_000 },
    Stream { kind: Kind::Commit, every_ms: 1_500..6_000, lasts_ms: 0..1 },
];

/// One service killed in so many forgets what it may forget.
const FORGET_ONE_IN: usize = 4;
/// One agent killed in so many does.
const FORGET_AGENT_ONE_IN: usize = 10;

#[derive(Debug, Clone)]
struct Stream {
    kind: Kind,
    every_ms: Range<u64>,
    lasts_ms: Range<u64>,
}

/// In this order for ever, and new ones at the end: the place decides what a seed means.
#[derive(Debug, Clone, Copy)]
enum Kind {
    KillAgent,
    KillService,
    KillServer,
    Freeze,
    FillDisk,
    Commit,
    Dismiss,
}

impl Stream {
    /// The chance of this stream alone.
    fn chance(&self, seed: u64) -> fastrand::Rng {
        fastrand::Rng::with_seed(seed ^ (self.kind as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }
}

/// The schedule: blows in the order of their times, without an end.
#[derive(Debug)]
pub(super) struct Plan {
    agents: usize,
    disks: usize,
    chances: Vec<fastrand::Rng>,
    next: BinaryHeap<Reverse<(Duration, usize)>>,
}

impl Plan {
    /// A schedule for so many agents and small disks (at least one of each).
    pub(super) fn new(seed: u64, agents: usize, disks: usize) -> Self {
        let mut chances: Vec<_> = STREAMS.iter().map(|stream| stream.chance(seed)).collect();
        let first = |(at, stream): (usize, &Stream)| {
            Reverse((Duration::from_millis(chances[at].u64(0..stream.every_ms.end)), at))
        };
        let next = STREAMS.iter().enumerate().map(first).collect();
        Self { agents: agents.max(1), disks: disks.max(1), chances, next }
    }

    /// When the next blow is due, counted from the beginning.
    pub(super) fn due(&self) -> Duration {
        self.next.peek().map_or(Duration::MAX, |Reverse((due, _))| *due)
    }

    fn blow(&mut self, at: usize) -> Blow {
        let (stream, chance) = (&STREAMS[at], &mut self.chances[at]);
        let lasts = Duration::from_millis(chance.u64(stream.lasts_ms.clone()));
        let agent = Role::Agent(chance.usize(0..self.agents));
        let service = [Role::Ingest, Role::Rollup, Role::Publisher][chance.usize(0..3)];
        match stream.kind {
            Kind::KillAgent if chance.usize(0..FORGET_AGENT_ONE_IN) == 0 => Blow::KillAndForget(agent, lasts),
            Kind::KillAgent => Blow::Kill(agent, lasts),
            Kind::KillService => {
                // What ingest knows is in LEDGER: it has nothing of its own to forget.
                let forgets = chance.usize(0..FORGET_ONE_IN) == 0 && service != Role::Ingest;
                if forgets { Blow::KillAndForget(service, lasts) } else { Blow::Kill(service, lasts) }
            }
            Kind::KillServer => Blow::Kill(Role::Server, lasts),
            Kind::Dismiss => Blow::Dismiss([agent, agent, service][chance.usize(0..3)], lasts),
            Kind::Freeze => {
                let who = [agent, agent, service, service, service, Role::Server][chance.usize(0..6)];
                Blow::Freeze(who, lasts)
            }
            Kind::FillDisk => Blow::FillDisk(chance.usize(0..self.disks), lasts),
            Kind::Commit => Blow::Commit,
        }
    }
}

impl Iterator for Plan {
    type Item = (Duration, Blow);

    fn next(&mut self) -> Option<Self::Item> {
        let Reverse((due, at)) = self.next.pop()?;
        let blow = self.blow(at);
        let pause = Duration::from_millis(self.chances[at].u64(STREAMS[at].every_ms.clone()));
        self.next.push(Reverse((due + pause, at)));
        Some((due, blow))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_seed_repeats_itself() {
        let draw = |seed| Plan::new(seed, 20, 3).take(500).collect::<Vec<_>>();
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn blows_come_in_order_and_everybody_is_struck_by_everything_in_the_end() {
        let mut plan = Plan::new(1, 5, 2);
        let (mut last, mut killed, mut frozen, mut filled) =
            (Duration::ZERO, BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for _ in 0..20_000 {
            let due = plan.due();
            let (at, blow) = plan.next().unwrap();
            assert!(at >= last && at == due);
            last = at;
            match blow {
                Blow::Kill(role, _) | Blow::KillAndForget(role, _) => _ = killed.insert(role),
                Blow::Dismiss(role, _) => assert_ne!(role, Role::Server),
                Blow::Freeze(role, _) => _ = frozen.insert(role),
                Blow::FillDisk(at, _) => _ = filled.insert(at),
                Blow::Commit => {}
            }
        }
        let agents = (0..5).map(Role::Agent);
        let all: BTreeSet<_> =
            [Role::Server, Role::Ingest, Role::Rollup, Role::Publisher].into_iter().chain(agents).collect();
        assert_eq!((killed, frozen, filled), (all.clone(), all, BTreeSet::from([0, 1])));
    }
}
