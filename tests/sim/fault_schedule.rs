//! When faults occur, what each does, and how each ends.

use super::agenda::{MINUTE, Millis, SECOND};
use super::ingest::EndKind;
use super::law::Lawful;
use super::profile::Fault;
use super::rows::{self, Image, now};
use super::world::{Event, World};

/// Times that a workload ends in a row.
const FLAPS: u32 = 8;
/// Times that ingest restarts in a row.
const INGEST_FLAPS: u32 = 16;
/// How long a device is silent meanwhile.
const SILENT_FOR: Millis = 12 * MINUTE;
/// Times that a device loses its memory.
const LOSSES_MAX: u32 = 3;

impl World {
    /// When a fault occurs next: any moment is as likely as any other.
    pub(crate) fn next_strike(&mut self, fault: Fault, mean: Millis) {
        let crowd = if fault.is_a_devices() { self.devices.len() as f64 } else { 1.0 };
        let wait = -(1.0 - self.chance.f64()).ln() * mean as f64 / crowd;
        self.agenda.after(wait as Millis + 1, Event::Strike(fault, mean));
    }

    /// A fault occurs.
    pub(crate) fn strike(&mut self, fault: Fault) -> Lawful {
        let device = self.chance.usize(0..self.devices.len());
        if !fault.is_a_devices() && fault != Fault::Partition {
            return self.strike_hub(fault, device);
        }
        let now_is = self.agenda.now();
        match fault {
            Fault::Cut => self.cut(device),
            Fault::Partition => {
                let site = self.devices[device].key.site.clone();
                for at in 0..self.devices.len() {
                    if self.devices[at].key.site == site {
                        self.cut(at);
                    }
                }
            }
            Fault::AgentCrash => self.crash_agent(device),
            Fault::PowerCut => {
                self.devices[device].running.clear();
                self.crash_agent(device);
            }
            // More new epochs within an hour are refused for a while.
            Fault::Amnesia | Fault::SetBack if self.devices[device].losses >= LOSSES_MAX => {}
            Fault::Amnesia => {
                self.devices[device].losses += 1;
                self.crash_agent(device);
                self.devices[device].disk = rows::fresh();
                self.devices[device].full = false;
                self.law.forgets_all(device);
            }
            Fault::SetBack => self.set_back(device),
            Fault::DiskFull => {
                self.devices[device].full = true;
                rows::set_full(&self.devices[device].disk, true);
                let delay = self.chance.i64(SECOND..2 * MINUTE);
                self.agenda.after(delay, Event::DiskFree(device));
            }
            Fault::ClockJump => {
                self.devices[device].clock = self.chance.i64(-3 * 60 * MINUTE..3 * 60 * MINUTE);
            }
            Fault::WorkloadExit => self.workload_exits(device),
            Fault::Flap => self.flap(device, FLAPS),
            Fault::RetryLoop => {
                self.devices[device].fails_until = now_is + self.chance.i64(MINUTE..5 * MINUTE);
            }
            Fault::Spoil => self.devices[device].spoil = true,
            _ => {}
        }
        Ok(())
    }

    /// A fault of the hub. A hostile device is in the partition of one that is not.
    fn strike_hub(&mut self, fault: Fault, device: usize) -> Lawful {
        let part = self.chance.usize(0..self.owners.len());
        let now_is = self.agenda.now();
        match fault {
            Fault::Refusal => {
                let until = now_is + self.chance.i64(SECOND..30 * SECOND);
                if self.chance.bool() {
                    self.hub.refuses_until.0 = until;
                } else {
                    self.hub.refuses_until.1 = until;
                    self.monitor.is_disturbed(until);
                }
            }
            Fault::BusRestart => self.restart_bus(),
            Fault::Restore => self.restore()?,
            Fault::HubClock => {
                self.hub.clock = self.chance.i64(-MINUTE..10 * MINUTE);
                self.monitor.clock_stepped(now_is);
            }
            Fault::IngestStall => self.stall_owner(part),
            Fault::IngestDead => {
                // One that is sure to strike outlives a lease.
                let shortest = if self.profile.is_certain(fault) { 2 * MINUTE } else { MINUTE };
                let delay = self.chance.i64(shortest..5 * MINUTE);
                self.kill_owner_for(part, delay);
            }
            Fault::IngestFlap => {
                self.disconnect(device);
                self.agenda.after(SILENT_FOR, Event::Connect(device));
                self.flap_ingest(self.hub.partition(device), INGEST_FLAPS);
            }
            Fault::IngestCrash => self.owners[part].end_kind = Some(EndKind::Crash),
            Fault::IngestCut => self.owners[part].end_kind = Some(EndKind::Cut),
            Fault::Redeliver => self.redeliver(part),
            Fault::RollupCrash => {
                self.monitor.is_disturbed(now_is);
                self.crash_rollup(part % 2)?;
            }
            Fault::QuarantineFull => {
                self.hub.quarantine.full_until = now_is + self.chance.i64(10 * SECOND..3 * MINUTE);
            }
            Fault::Invention => self.invent(device),
            _ => {}
        }
        Ok(())
    }

    /// A link breaks, mostly for a moment.
    pub(crate) fn cut(&mut self, device: usize) {
        let longest = [2 * SECOND, 30 * SECOND, 5 * MINUTE][self.chance.usize(0..3)];
        self.disconnect(device);
        self.agenda.after(self.chance.i64(100..longest), Event::Connect(device));
    }

    /// An agent dies, and is started again.
    pub(crate) fn crash_agent(&mut self, device: usize) {
        if self.devices[device].agent.is_some() {
            self.kill_agent(device);
            self.agenda.after(self.chance.i64(100..30 * SECOND), Event::StartAgent(device));
        }
    }

    /// An agent starts on its disk.
    pub(crate) fn start_device(&mut self, device: usize) -> Lawful {
        if self.devices[device].agent.is_some() {
            return Ok(());
        }
        let is_new_version = self.planned_agent_end.is_none() && self.chance.u8(0..8) == 0;
        self.devices[device].version += u64::from(is_new_version);
        if is_new_version || self.planned_agent_end.is_some() {
            // The file is all there is: the agent that starts on it has nothing from memory.
            self.devices[device].disk = Image::of(&self.devices[device].disk).restore();
            rows::set_full(&self.devices[device].disk, self.devices[device].full);
        }
        let outbox =
            muster_agent::outbox::Outbox::open(self.devices[device].disk.clone(), Default::default());
        let summary = now(now(outbox).unwrap().summary()).unwrap();
        self.devices[device].count = (summary.epoch.map(|epoch| epoch.get()), summary.head);
        self.start_agent(device)?;
        self.agenda.after(self.chance.i64(10..5 * SECOND), Event::Connect(device));
        Ok(())
    }

    /// A device is set back to a copy of its database.
    fn set_back(&mut self, device: usize) {
        let Some((image, epoch)) = self.devices[device].copy.take() else { return };
        self.devices[device].losses += 1;
        self.crash_agent(device);
        self.devices[device].disk = image.restore();
        self.devices[device].full = false;
        let outbox =
            muster_agent::outbox::Outbox::open(self.devices[device].disk.clone(), Default::default());
        let head = now(now(outbox).unwrap().summary()).unwrap().head;
        self.law.set_device_back(device, epoch, head);
    }

    /// A copy of a device's database is made, for worse times.
    pub(crate) fn copy(&mut self, device: usize) {
        if self.has(Fault::SetBack) && self.storm {
            let device = &mut self.devices[device];
            device.copy = Some((Image::of(&device.disk), device.count.0));
        }
    }

    /// A disk has room again.
    pub(crate) fn free_disk(&mut self, device: usize) {
        self.devices[device].full = false;
        rows::set_full(&self.devices[device].disk, false);
    }

    /// A workload ends, and will end again once it was ready for a moment.
    pub(crate) fn flap(&mut self, device: usize, times: u32) {
        self.workload_exits(device);
        if times > 1 && self.storm {
            let again = self.chance.i64(5 * SECOND..30 * SECOND);
            self.agenda.after(again, Event::Flap(device, times - 1));
        }
    }

    /// Ingest restarts, and will restart again before a lease has passed.
    pub(crate) fn flap_ingest(&mut self, part: usize, times: u32) {
        if times > 0 && self.storm {
            let (delay, again) =
                (self.chance.i64(SECOND..5 * SECOND), self.chance.i64(20 * SECOND..70 * SECOND));
            self.kill_owner_for(part, delay);
            self.agenda.after(again, Event::FlapIngest(part, times - 1));
        }
    }

    fn break_connections(&mut self) {
        for device in 0..self.devices.len() {
            self.disconnect(device);
            let delay = self.chance.i64(SECOND..20 * SECOND);
            self.agenda.after(delay, Event::Connect(device));
            // PRESENCE is in memory.
            self.devices[device].beat_at = None;
        }
        // A session without anything under way goes on, once LEDGER is seen; a LEDGER that is another ends the process.
        (0..self.owners.len()).for_each(|part| self.cut_owner(part));
    }

    fn restart_bus(&mut self) {
        self.hub.restart();
        let until = self.agenda.now() + self.chance.i64(0..5 * SECOND);
        self.hub.refuses_until = (until, until);
        self.break_connections();
    }

    fn restore(&mut self) -> Lawful {
        self.hub.restore();
        self.high_water = Default::default();
        self.law.set_back(&self.hub.ledger)?;
        self.monitor.set_back(&self.hub.ledger, self.agenda.now());
        self.break_connections();
        for device in 0..self.devices.len() {
            if let Some((bytes, _)) = self.hub.desired[device].last().cloned() {
                self.agenda.after(SECOND, Event::Source(device, bytes));
            }
        }
        self.ledger_grew();
        Ok(())
    }

    /// Everything that is broken is mended, and nothing breaks any more.
    pub(crate) fn clear_up(&mut self) -> Lawful {
        self.storm = false;
        self.hub.refuses_until = (0, 0);
        self.hub.quarantine.full_until = 0;
        for device in 0..self.devices.len() {
            self.free_disk(device);
            self.devices[device].spoil = false;
            // A clock that is wrong stays so; one that was set back makes the next epoch the harder.
            self.start_device(device)?;
            self.connect(device);
            // A deployment in an unreadable report is known again only with its next report.
            while self.devices[device].hidden && !self.devices[device].running.is_empty() {
                self.workload_exits(device);
            }
        }
        self.agenda.after(SECOND, Event::Review);
        Ok(())
    }
}
