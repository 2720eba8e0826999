//! The kind of world that a seed makes: its number of devices, its duration, its faults and their rates.

use fastrand::Rng;
use muster_agent::relay::budget::Rate;
use muster_contract::limits::UPLINK_SHARE;

use super::agenda::{MINUTE, Millis, SECOND};

/// A fault that a world injects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// A device's connection breaks, for a moment or for long.
    Cut,
    /// All devices of a site lose their connection.
    Partition,
    /// A device's agent dies, in the middle of something.
    AgentCrash,
    /// A device loses power: agent and workloads.
    PowerCut,
    /// A device's database is lost.
    Amnesia,
    /// A device's database is set back to an older copy.
    SetBack,
    /// A device's disk is full for a while.
    DiskFull,
    /// A device's clock jumps.
    ClockJump,
    /// A workload ends by itself.
    WorkloadExit,
    /// A workload of a device ends again and again, each time soon after it is ready.
    Flap,
    /// Every operation of a device fails and is retried, for minutes.
    RetryLoop,
    /// The next report of a device is spoilt on its way.
    Spoil,
    /// The hub refuses to store for a while: an election, a full stream.
    Refusal,
    /// The bus restarts: every connection breaks, PRESENCE is empty.
    BusRestart,
    /// The bus is set back to a backup; who works at the hub is restarted.
    Restore,
    /// The hub's clock is corrected.
    HubClock,
    /// Ingest dies.
    IngestCrash,
    /// Ingest loses its connection with facts under way.
    IngestCut,
    /// Ingest stands still until another process has taken its partition, and goes on then.
    IngestStall,
    /// Ingest is dead for minutes: nobody listens to its partition.
    IngestDead,
    /// Ingest restarts again and again, each time before a lease has passed, and a device is silent all the while.
    IngestFlap,
    /// UPLINK delivers again what is not acknowledged.
    Redeliver,
    /// A rollup dies.
    RollupCrash,
    /// QUARANTINE is full for a while.
    QuarantineFull,
    /// A hostile device invents deployments and epochs.
    Invention,
}

impl Fault {
    /// All of them, with the seconds from one to the next of a kind where it is as frequent as it gets, a device where
    /// it is a device's.
    pub(crate) const ALL: [(Self, Millis); 25] = [
        (Self::Cut, 90),
        (Self::Partition, 300),
        (Self::AgentCrash, 240),
        (Self::PowerCut, 400),
        (Self::Amnesia, 1_200),
        (Self::SetBack, 1_200),
        (Self::DiskFull, 500),
        (Self::ClockJump, 400),
        (Self::WorkloadExit, 200),
        (Self::Flap, 400),
        (Self::RetryLoop, 400),
        (Self::Spoil, 600),
        (Self::Refusal, 120),
        (Self::BusRestart, 300),
        (Self::Restore, 600),
        (Self::HubClock, 600),
        (Self::IngestCrash, 150),
        (Self::IngestCut, 60),
        (Self::IngestStall, 120),
        (Self::IngestDead, 300),
        (Self::IngestFlap, 300),
        (Self::Redeliver, 60),
        (Self::RollupCrash, 150),
        (Self::QuarantineFull, 200),
        (Self::Invention, 30),
    ];

    /// Whether it strikes devices one by one.
    pub(crate) const fn is_a_devices(self) -> bool {
        (self as u8) < Self::Refusal as u8 && !matches!(self, Self::Partition)
    }
}

/// Devices from which on a world is a fleet.
pub(crate) const FLEET: usize = 20;
/// Devices of the largest worlds.
pub(crate) const LARGEST: usize = 400;
/// Faults that every one of the largest worlds has, early in its storm and as often as they get: a fleet is too rare to leave
/// them to chance.
const OF_THE_LARGEST: [Fault; 6] = [
    Fault::RetryLoop,
    Fault::Flap,
    Fault::Spoil,
    Fault::QuarantineFull,
    Fault::IngestDead,
    Fault::IngestFlap,
];
/// How long faults are injected there.
const LARGEST_STORM: Millis = 3 * MINUTE;
/// Facts that LEDGER holds there at the beginning, at least.
pub(crate) const LARGEST_HISTORY: u64 = 4_000;

/// Shares of UPLINK that worlds have: the contract's, and such that are full again and again.
const SHARES: [usize; 3] = [UPLINK_SHARE as usize, 8, 3];

/// A world to be.
#[derive(Debug, Clone)]
pub(crate) struct Profile {
    /// Devices.
    pub(crate) devices: usize,
    /// Sites they belong to.
    pub(crate) sites: usize,
    /// Partitions of UPLINK.
    pub(crate) partitions: usize,
    /// Facts that LEDGER holds at the beginning.
    pub(crate) history: u64,
    /// Reports of one device that UPLINK holds.
    pub(crate) share: usize,
    /// Deployments there are to choose from.
    pub(crate) deployments: usize,
    /// How long faults are injected.
    pub(crate) storm: Millis,
    /// Time between two changes of a device's desired state.
    pub(crate) edits_every: Millis,
    /// Rows an outbox may have.
    pub(crate) outbox_rows: u64,
    /// Longest time a message takes on a device's link.
    pub(crate) latency: Millis,
    /// The bits a second that a device may send.
    pub(crate) uplink_limit: Option<Rate>,
    /// Whether receipts say that the hub reads batches.
    pub(crate) batches: bool,
    /// Time between two ticks of ingest.
    pub(crate) tick: Millis,
    /// The deadline of a deployment; `None` for the contract's default, which is longer than any world.
    pub(crate) deadline: Option<Millis>,
    /// Whether workloads fail to start now and then.
    pub(crate) failures: bool,
    /// The faults, and the mean time between two of a kind.
    pub(crate) faults: Vec<(Fault, Millis)>,
}

impl Profile {
    /// A world of one partition for a script: without faults, edits and history until `end`.
    pub(crate) const fn scripted(devices: usize, end: Millis) -> Self {
        Self {
            devices,
            sites: 1,
            partitions: 1,
            history: 0,
            share: UPLINK_SHARE as usize,
            deployments: 1,
            storm: end,
            edits_every: end,
            outbox_rows: 100_000,
            latency: 20,
            uplink_limit: None,
            batches: true,
            tick: SECOND,
            deadline: None,
            failures: false,
            faults: Vec::new(),
        }
    }

    /// Whether outboxes are so small that devices have to make room.
    pub(crate) const fn is_short_of_room(&self) -> bool {
        self.outbox_rows < 1_000
    }

    /// Whether a fault strikes within the first third of the storm in any case.
    pub(crate) fn is_certain(&self, fault: Fault) -> bool {
        self.devices == LARGEST && OF_THE_LARGEST.contains(&fault)
    }

    /// The same world with everything that the largest ones have.
    fn with_storms_of_the_largest(mut self) -> Self {
        self.faults.retain(|(fault, _)| !OF_THE_LARGEST.contains(fault));
        let often = Fault::ALL.into_iter().filter(|(fault, _)| OF_THE_LARGEST.contains(fault));
        self.faults.extend(often.map(|(fault, seconds)| (fault, seconds * SECOND)));
        let history = self.history.max(LARGEST_HISTORY);
        Self { storm: LARGEST_STORM, history, deadline: Some(MINUTE), failures: true, ..self }
    }

    /// The world of a seed.
    pub(crate) fn draw(chance: &mut Rng) -> Self {
        let devices = match chance.u32(0..1000) {
            0..500 => chance.usize(1..=3),
            500..700 => chance.usize(4..=12),
            700..970 => chance.usize(FLEET..=30),
            970..990 => chance.usize(31..=60),
            990..995 => chance.usize(61..=200),
            _ => LARGEST,
        };
        let minutes = (60 / devices as Millis).clamp(3, 12);
        let frequent = chance.i64(1..=4);
        let mut fault = |(fault, seconds): (Fault, Millis)| {
            let wanted = chance.u8(0..10) < 4;
            wanted.then(|| (fault, seconds * SECOND * frequent))
        };
        let profile = Self {
            devices,
            faults: Fault::ALL.into_iter().filter_map(&mut fault).collect(),
            sites: chance.usize(1..=3),
            partitions: chance.usize(1..=3),
            history: if chance.u8(0..8) == 0 { chance.u64(200..4_000) } else { 0 },
            share: SHARES[devices % SHARES.len()],
            deployments: chance.usize(1..=5),
            storm: if devices > 60 { MINUTE } else { chance.i64(2..=minutes) * MINUTE },
            edits_every: chance.i64(20..=240) * SECOND,
            outbox_rows: if chance.u8(0..4) == 0 { chance.u64(10..40) } else { 100_000 },
            latency: [20, 200, 2_000][chance.usize(0..3)],
            uplink_limit: (chance.u8(0..6) == 0).then(|| "32kbit".parse().unwrap()),
            batches: chance.u8(0..4) > 0,
            tick: chance.i64(1..=3) * SECOND,
            deadline: chance.bool().then(|| chance.i64(1..=3) * MINUTE),
            failures: chance.bool(),
        };
        if devices == LARGEST { profile.with_storms_of_the_largest() } else { profile }
    }
}
