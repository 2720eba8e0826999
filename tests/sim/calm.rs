//! The end of every story: no report is missing, every view is like the devices, and every reader of LEDGER gets the same
//! views. The world runs up to a limit of virtual time for it.

use muster_agent::outbox::Summary;
use muster_contract::State;
use muster_contract::query::Output;
use muster_contract::status::TargetStatus;
use muster_contract::view::{Freshness, Standing};

use super::agenda::{MINUTE, Millis};
use super::law::{Breach, Lawful};
use super::rollup::{digests, rebuilt};
use super::rows::now;
use super::world::World;

/// How long it may take: the longest of all waits is that of a device which was told twice that it is an old copy, and
/// those of reports sent long ago that nobody ever mentioned.
const LIMIT: Millis = 3 * 60 * MINUTE;

impl World {
    /// True once everything is right; a breach if it never becomes so.
    pub(crate) fn review(&mut self) -> Lawful<bool> {
        self.report_forked_anew();
        match self.wrong() {
            None => {
                self.compare()?;
                Ok(true)
            }
            Some(seen) if self.agenda.now() > self.profile.storm + LIMIT => {
                Err(Breach { law: "after a calm nothing is missing and every view is the truth", seen })
            }
            Some(_) => Ok(false),
        }
    }

    /// A report whose number the hub holds with another content is known to nobody, until its deployment is reported anew.
    fn report_forked_anew(&mut self) {
        for at in 0..self.devices.len() {
            if self.law.is_forked(at) && !std::mem::replace(&mut self.devices[at].reported_anew, true) {
                (0..self.devices[at].running.len()).for_each(|_| self.workload_exits(at));
            }
        }
    }

    /// The first deviation from the final state, if any is left.
    fn wrong(&self) -> Option<String> {
        let waits = |part: &usize| !self.owners[*part].is_idle() || self.waiting(*part) > 0;
        if let Some(part) = (0..self.owners.len()).find(waits) {
            return Some(format!("partition {part} is not done: {} reports wait", self.waiting(part)));
        }
        if let Some(wrong) = (0..self.devices.len()).find_map(|device| self.wrong_at(device)) {
            return Some(wrong);
        }
        let rebuilt = rebuilt(&self.hub);
        let expected = digests(&rebuilt, &self.views);
        let differs = |rollup: &super::rollup::Rollup| digests(&rollup.fleet, &self.views) != expected;
        if self.rollups.iter().any(differs) {
            return Some("a rollup says something else than LEDGER".to_owned());
        }
        (0..self.devices.len()).find_map(|device| self.shown_wrong(&rebuilt, device))
    }

    /// Reports that are not acknowledged.
    fn waiting(&self, part: usize) -> usize {
        let after = self.hub.uplink.range(self.hub.floors[part] + 1..);
        after.filter(|(_, stored)| self.hub.partition(stored.device) == part).count()
    }

    /// The deviation of a device, its workloads and its account.
    fn wrong_at(&self, at: usize) -> Option<String> {
        let (device, wanted) = (&self.devices[at], &self.wanted[at]);
        let Some(agent) = &device.agent else { return Some(format!("{} has no agent", device.key)) };
        let accepted = agent.accepted.as_ref().map_or(0, |accepted| accepted.generation.get());
        if accepted != wanted.generation {
            return Some(format!("{} holds generation {accepted} of {}", device.key, wanted.generation));
        }
        let runs = device.running.iter().map(|(id, digest)| (id.clone(), *digest));
        let shall: Vec<_> = wanted.entries.values().map(|it| (it.id.clone(), it.digest)).collect();
        if !runs.eq(shall.iter().cloned()) {
            return Some(format!("{} runs {:?}, not {shall:?}", device.key, device.running));
        }
        let Summary { epoch, head, unsent, .. } = now(agent.outbox.summary()).unwrap();
        let epoch = epoch.map_or(0, |epoch| epoch.get());
        let missing = self.law.missing(at, epoch, head);
        // A retired device speaks no more: what a hub that was set back lacks of it, it never hears again.
        let complete = missing.is_empty() || wanted.retired;
        let done = unsent == 0 && complete && agent.waiting.is_empty();
        (!done)
            .then(|| format!("{} epoch {epoch} head {head}: unsent {unsent}, missing {missing}", device.key))
    }

    /// A device's answer where it deviates from the device.
    fn shown_wrong(&self, fleet: &muster_domain::fold::Fleet, at: usize) -> Option<String> {
        let (device, wanted) = (&self.devices[at], &self.wanted[at]);
        let answer = fleet.device_answer(&device.key, Output::All)?;
        if wanted.retired {
            return (!answer.device.retired).then(|| format!("{} is retired", device.key));
        }
        let mut targets: Vec<_> = answer.deployments.iter().filter(|line| !line.leaving).collect();
        targets.sort_by(|one, other| one.deployment.cmp(&other.deployment));
        // That it is removed may be what a message says that nobody can read; then it is shown as leaving, and not as known. It
        // may also be what the second report of a number says, and no later one comes of what is gone.
        let forked = self.law.is_forked(at);
        // A hub that was set back lacks what it held once; a device that is short of room has folded it away meanwhile.
        let forgotten = self.profile.is_short_of_room() && self.hub.origin > 1;
        let hidden =
            |line: &TargetStatus| forked || forgotten || !line.known && !answer.device.in_doubt.is_empty();
        let leaving = answer.deployments.iter().filter(|line| line.leaving && !hidden(line)).count();
        let right = leaving == 0
            && answer.device.freshness == Freshness::Fresh
            && answer.device.account.missing.is_empty()
            && answer.device.refused.is_none()
            && targets.iter().map(|line| &line.deployment).eq(wanted.entries.values().map(|entry| &entry.id))
            && targets.iter().all(|line| line.standing == Standing::Installed && line.known)
            && targets.iter().all(|line| line.report.as_ref().is_some_and(|it| it.state == State::Installed));
        (!right).then(|| format!("{answer:?}"))
    }
}
