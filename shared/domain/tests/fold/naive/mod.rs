//! Reimplements the rollup's rules for readability: everything is computed from the whole list of facts, with
//! sets and loops, each time. The fold's incremental state must equal this.

mod errors;
mod evidence;
mod groups;
pub(crate) mod lists;
mod times;

use std::collections::{BTreeMap, BTreeSet};

use muster_contract::canonical::Digest;
use muster_contract::desired::DesiredState;
use muster_contract::fact::{DeadlineFact, Fact, Hearing, Liveness, LivenessFact, StatusFact};
use muster_contract::labels::Labels;
use muster_contract::partition::partition_of;
use muster_contract::pulse::{HubHearing, UnheardPartition};
use muster_contract::quarantine::{self, QuarantineVerdict};
use muster_contract::subjects::LedgerSubject;
use muster_contract::view::{
    AsOf, Bounds, Complete, Counts, DeploymentView, FleetView, Freshness, Retried, SiteView, Split, Standing,
    Tally, Verdict, content_digest,
};
use muster_contract::{
    ComponentName, DeploymentId, DeviceKey, Epoch, Generation, Seq, SeqRanges, SiteId, State, Timestamp,
};

use self::times::Times;
use crate::ledger::{Entry, stored_at};

/// A device and a deployment, as far as views care.
#[derive(Clone)]
struct Pair {
    device: DeviceKey,
    deployment: DeploymentId,
    is_target: bool,
    standing: Standing,
    freshness: Freshness,
    known: bool,
    overdue: bool,
    retried: bool,
    /// The attempts of its worst retry.
    attempts: u32,
    missing: u64,
    report: Option<StatusFact>,
}

#[derive(Clone)]
struct Machine {
    key: DeviceKey,
    freshness: Freshness,
    is_masked: bool,
    missing: u64,
    complete: bool,
    labels: Labels,
    version: Option<String>,
}

/// Since when the hub does not listen to which partitions.
type Unheard = BTreeMap<u16, Timestamp>;

/// All that views are made of.
pub(crate) struct World {
    pairs: Vec<Pair>,
    machines: Vec<Machine>,
    as_of: AsOf,
    unheard: Unheard,
    times: Times,
}

impl World {
    pub(crate) fn of(entries: &[Entry]) -> Self {
        let stays = |entry: &Entry| !matches!(entry.subject, LedgerSubject::Hub(_));
        let last = entries.iter().rposition(stays).map_or(0, |at| at as u64 + 1);
        let at = if last == 0 { muster_contract::Timestamp::UNIX_EPOCH } else { stored_at(last) };
        let mut world = Self {
            pairs: Vec::new(),
            machines: Vec::new(),
            as_of: AsOf { ledger_seq: last, at },
            unheard: unheard(entries),
            times: Times::of(entries),
        };
        let keys: BTreeSet<&DeviceKey> = entries.iter().filter_map(|entry| entry.subject.device()).collect();
        for key in keys {
            let own: Vec<&Entry> =
                entries.iter().filter(|entry| entry.subject.device() == Some(key)).collect();
            world.add_device(key, &own);
        }
        world
    }

    fn add_device(&mut self, key: &DeviceKey, own: &[&Entry]) {
        let desired = own
            .iter()
            .filter_map(|entry| if let Fact::Desired(fact) = &entry.fact { Some(fact) } else { None })
            .max_by_key(|fact| fact.generation);
        if desired.is_some_and(|desired| desired.retired) {
            return;
        }
        let (epoch, head, held) = numbers(own);
        let missing: BTreeSet<u64> = (1..=head).filter(|number| !held.contains(number)).collect();
        let freshness = self.freshness(key, own);
        let doubted = doubted(own, epoch);
        let is_mute = || newest_liveness(own).is_some_and(|fact| !fact.storing);
        let dark = unread(own, epoch, head, &doubted) || is_mute();
        let first_pair = self.pairs.len();
        for id in deployments(desired, own) {
            let target = desired
                .and_then(|fact| fact.deployments.iter().find(|entry| entry.id == id))
                .map(|entry| entry.target_generation);
            let report = newest_report(own, &id);
            let Some(standing) = standing(report.as_ref().map(|(fact, _)| fact), target) else { continue };
            let settled = match &report {
                Some((fact, current_head)) if fact.epoch.get() == epoch => fact.seq.get().max(*current_head),
                _ => 0,
            };
            let hidden = doubted.range(..=head).next_back().is_some_and(|news| *news > settled);
            let forgotten = report.as_ref().is_some_and(|(fact, _)| fact.epoch.get() < epoch)
                && missing.is_empty()
                && !hidden
                && !unread(own, epoch, head, &doubted);
            if target.is_none() && (standing == Standing::Removed || forgotten) {
                continue;
            }
            let has_last = match (&report, epoch) {
                (_, 0) => true,
                (Some((fact, _)), epoch) if fact.epoch.get() < epoch => false,
                (Some((_, current_head)), _) => missing.is_empty() || *current_head >= head,
                (None, _) => missing.is_empty(),
            };
            let tried = report.as_ref().map(|(fact, _)| fact).filter(|fact| Some(fact.generation) >= target);
            let retried = tried.is_some_and(|fact| !fact.retries.is_empty());
            let worst = tried
                .and_then(|fact| fact.retries.iter().map(|retry| (retry.crash_loop, retry.attempt)).max());
            let late = is_late(newest_deadline(own, &id), tried, target);
            let at_end = matches!(standing, Standing::Installed | Standing::Failed) && !retried;
            self.pairs.push(Pair {
                device: key.clone(),
                deployment: id,
                is_target: target.is_some(),
                standing,
                freshness,
                known: has_last && !hidden && !dark,
                overdue: late && !at_end,
                retried: retried && target.is_some(),
                attempts: worst.filter(|_| target.is_some()).map_or(0, |(_, attempt)| attempt),
                missing: missing.len() as u64,
                report: report.map(|(fact, _)| fact),
            });
        }
        let all_known = self.pairs[first_pair..].iter().all(|pair| pair.known || !pair.is_target);
        self.machines.push(Machine {
            key: key.clone(),
            freshness,
            is_masked: freshness == Freshness::Stale && self::freshness(own) == Freshness::Fresh,
            missing: missing.len() as u64,
            complete: missing.is_empty() && !dark && all_known,
            labels: desired.map(|desired| desired.labels.clone()).unwrap_or_default(),
            version: lists::version(own),
        });
    }

    /// Nobody is fresh whom the hub does not hear.
    fn freshness(&self, key: &DeviceKey, own: &[&Entry]) -> Freshness {
        match freshness(own) {
            Freshness::Fresh if self.unheard.contains_key(&partition_of(key)) => Freshness::Stale,
            freshness => freshness,
        }
    }

    pub(crate) fn deployment_view(&self, id: &DeploymentId) -> Option<DeploymentView> {
        let pairs: Vec<&Pair> = self.pairs.iter().filter(|pair| pair.deployment == *id).collect();
        let targets: Vec<&Pair> = pairs.iter().copied().filter(|pair| pair.is_target).collect();
        let verdict = verdict(&pairs)?;
        let is = |pair: &Pair, standing| pair.standing == standing;
        let count = |keep: &dyn Fn(&Pair) -> bool| targets.iter().filter(|pair| keep(pair)).count() as u64;
        let now = |pair: &Pair| pair.freshness == Freshness::Fresh && pair.known;
        let lost = count(&|pair| is(pair, Standing::Failed) && now(pair));
        let sure = |pair: &Pair| is(pair, Standing::Installed) && now(pair);
        let mut view = DeploymentView {
            api_version: Default::default(),
            kind: Default::default(),
            deployment: id.clone(),
            // Ids are names in these ledgers.
            deployment_name: String::new(),
            as_of: self.as_of,
            verdict,
            message: String::new(),
            changed_at: self.changed_at(&|_, of| of == id),
            last_heard_at: self.heard_at(pairs.iter().map(|pair| &pair.device)),
            targets: targets.len() as u64,
            leaving: (pairs.len() - targets.len()) as u64,
            overdue: count(&|pair| pair.overdue),
            retried: retried(&targets),
            counts: counts(&targets),
            evidence: evidence::counts(&targets),
            converged: Bounds { lo: count(&sure), hi: targets.len() as u64 - lost },
            complete: Complete {
                devices: count(&|pair| pair.known),
                of: targets.len() as u64,
                missing_reports: targets.iter().map(|pair| pair.missing).sum(),
            },
            components: components(&targets),
            errors: errors::errors(&targets),
            omitted: Default::default(),
            hub: self.hub(pairs.iter().map(|pair| &pair.device)),
            digest: Digest::of_bytes(b"not yet"),
        };
        view.message = view.words();
        view.digest = content_digest(&view);
        Some(view)
    }

    pub(crate) fn site_view(&self, site: &SiteId) -> Option<SiteView> {
        let tally = self.tally(&|key| key.site == *site);
        let mut view =
            SiteView { api_version: Default::default(), kind: Default::default(), site: site.clone(), tally };
        view.tally.digest = content_digest(&view);
        (view.tally.devices.total() > 0).then_some(view)
    }

    pub(crate) fn fleet_view(&self) -> FleetView {
        let tally = self.tally(&|_| true);
        let mut view = FleetView { api_version: Default::default(), kind: Default::default(), tally };
        view.tally.digest = content_digest(&view);
        view
    }

    /// The partitions of some devices that the hub does not listen to.
    pub(crate) fn hub<'a>(&self, devices: impl Iterator<Item = &'a DeviceKey>) -> HubHearing {
        let partitions: BTreeSet<u16> = devices.map(partition_of).collect();
        let unheard = partitions.into_iter().filter_map(|partition| {
            let since = *self.unheard.get(&partition)?;
            Some(UnheardPartition { hub: None, partition, since, ledger_seq: None })
        });
        HubHearing { unheard: unheard.collect(), omitted: 0 }
    }

    fn tally(&self, within: &dyn Fn(&DeviceKey) -> bool) -> Tally {
        let machines: Vec<&Machine> = self.machines.iter().filter(|one| within(&one.key)).collect();
        let pairs: Vec<&Pair> = self.pairs.iter().filter(|pair| within(&pair.device)).collect();
        let targets: Vec<&Pair> = pairs.iter().copied().filter(|pair| pair.is_target).collect();
        let mut devices = Split::default();
        machines.iter().for_each(|one| *devices.get_mut(one.freshness) += 1);
        let mut deployments: BTreeMap<Verdict, u64> = BTreeMap::new();
        let ids: BTreeSet<&DeploymentId> = pairs.iter().map(|pair| &pair.deployment).collect();
        for id in ids {
            let part: Vec<&Pair> = pairs.iter().copied().filter(|pair| pair.deployment == *id).collect();
            verdict(&part).into_iter().for_each(|verdict| *deployments.entry(verdict).or_default() += 1);
        }
        let mut tally = Tally {
            as_of: self.as_of,
            message: String::new(),
            changed_at: self.changed_at(&|key, _| within(key)),
            last_heard_at: self.heard_at(machines.iter().map(|one| &one.key)),
            devices,
            targets: targets.len() as u64,
            leaving: (pairs.len() - targets.len()) as u64,
            overdue: targets.iter().filter(|pair| pair.overdue).count() as u64,
            retried: retried(&targets),
            counts: counts(&targets),
            evidence: evidence::counts(&targets),
            deployments,
            complete: Complete {
                devices: machines.iter().filter(|one| one.complete).count() as u64,
                of: machines.len() as u64,
                missing_reports: machines.iter().map(|one| one.missing).sum(),
            },
            hub: self.hub(machines.iter().map(|one| &one.key)),
            digest: Digest::of_bytes(b"not yet"),
        };
        tally.message = tally.words();
        tally
    }
}

/// By the newest word on each partition.
fn unheard(entries: &[Entry]) -> Unheard {
    let mut newest = BTreeMap::new();
    for entry in entries {
        if let (LedgerSubject::Hearing(partition), Fact::Hearing(fact)) = (&entry.subject, &entry.fact) {
            newest.insert(*partition, fact);
        }
    }
    let stopped = newest.into_iter().filter(|(_, fact)| fact.state == Hearing::Stopped);
    stopped.map(|(partition, fact)| (partition, fact.since)).collect()
}

/// Whatever the device shall run or has reported.
fn deployments(desired: Option<&DesiredState>, own: &[&Entry]) -> BTreeSet<DeploymentId> {
    let mut ids: BTreeSet<DeploymentId> =
        desired.iter().flat_map(|fact| &fact.deployments).map(|entry| entry.id.clone()).collect();
    ids.extend(own.iter().filter_map(|entry| match &entry.subject {
        LedgerSubject::Status(_, id) => Some(id.clone()),
        _ => None,
    }));
    ids
}

/// The device's epoch (0 for none), the head it advertised in it, and the numbers the hub holds of it.
fn numbers(own: &[&Entry]) -> (u64, u64, BTreeSet<u64>) {
    let epochs = own.iter().filter_map(|entry| match &entry.fact {
        Fact::Status(fact) => Some(fact.epoch.get()),
        Fact::Device(fact) => Some(fact.epoch.get()),
        Fact::Liveness(fact) => Some(fact.epoch.get()),
        _ => None,
    });
    let epoch = epochs.max().unwrap_or(0);
    let (mut head, mut held) = (0, BTreeSet::new());
    for entry in own {
        match &entry.fact {
            Fact::Status(fact) if fact.epoch.get() == epoch => {
                head = head.max(fact.head.get());
                held.insert(fact.seq.get());
                held.extend(fact.coalesced.iter().flat_map(|(from, to)| from..=to));
            }
            Fact::Device(fact) if fact.epoch.get() == epoch => {
                head = head.max(fact.head.get());
                held.insert(fact.seq.get());
            }
            Fact::Liveness(fact) if fact.epoch.get() == epoch => head = head.max(fact.head),
            Fact::Quarantine(fact) => held.extend(of_epoch(fact.numbers(), epoch)),
            Fact::Verdict(fact) if is_dropped(fact) => held.extend(of_epoch(fact.numbers(), epoch)),
            _ => {}
        }
    }
    (epoch, head, held)
}

/// The numbers of the epoch in quarantine that are not in otherwise and that nobody has dropped.
fn doubted(own: &[&Entry], epoch: u64) -> BTreeSet<u64> {
    let (mut doubted, mut good) = (BTreeSet::new(), BTreeSet::new());
    for entry in own {
        match &entry.fact {
            Fact::Quarantine(fact) => doubted.extend(of_epoch(fact.numbers(), epoch)),
            Fact::Verdict(fact) if is_dropped(fact) => good.extend(of_epoch(fact.numbers(), epoch)),
            Fact::Status(fact) if fact.epoch.get() == epoch => {
                good.insert(fact.seq.get());
                good.extend(fact.coalesced.iter().flat_map(|(from, to)| from..=to));
            }
            Fact::Device(fact) if fact.epoch.get() == epoch => {
                good.insert(fact.seq.get());
            }
            _ => {}
        }
    }
    &doubted - &good
}

/// Whether a message in quarantine may be anything: it came after the newest heartbeat, no verdict is on it, and its number
/// is none that the device has spoken of.
fn unread(own: &[&Entry], epoch: u64, head: u64, doubted: &BTreeSet<u64>) -> bool {
    let beats = own.iter().filter_map(|entry| match &entry.fact {
        Fact::Liveness(fact) => fact.beat_at,
        _ => None,
    });
    let beat_at = beats.max();
    own.iter().any(|entry| {
        let Fact::Quarantine(message) = &entry.fact else { return false };
        let number = message.epoch.zip(message.seq);
        let settled = own.iter().any(|entry| match &entry.fact {
            Fact::Verdict(verdict) if verdict.verdict != quarantine::QuarantineDecision::Expired => {
                let of = verdict.epoch.zip(verdict.seq);
                let same = (of, verdict.received_at) == (number, Some(message.received_at));
                let names =
                    |(of, seq): (Epoch, Seq)| of_epoch(verdict.numbers(), of.get()).contains(&seq.get());
                same || (number.is_some_and(names) && is_dropped(verdict))
            }
            _ => false,
        });
        let spoken_of = match number.map(|(of, seq)| (of.get(), seq.get())) {
            None => false,
            Some((of, _)) if of < epoch => true,
            Some((of, seq)) if of == epoch => seq <= head || !doubted.contains(&seq),
            Some(_) => false,
        };
        beat_at.is_none_or(|beat_at| message.received_at >= beat_at) && !settled && !spoken_of
    })
}

/// The numbers that are of this epoch.
fn of_epoch(numbers: Option<(Epoch, SeqRanges)>, epoch: u64) -> BTreeSet<u64> {
    let numbers = numbers.filter(|(of, _)| of.get() == epoch).map(|(_, numbers)| numbers).unwrap_or_default();
    numbers.iter().flat_map(|(from, to)| from..=to).collect()
}

fn is_dropped(verdict: &QuarantineVerdict) -> bool {
    verdict.verdict == quarantine::QuarantineDecision::Dropped
}

fn newest_liveness<'a>(own: &[&'a Entry]) -> Option<&'a LivenessFact> {
    own.iter()
        .filter_map(|entry| if let Fact::Liveness(fact) = &entry.fact { Some(fact) } else { None })
        // The last of several that are equal.
        .max_by_key(|fact| fact.epoch)
}

fn freshness(own: &[&Entry]) -> Freshness {
    let reported =
        own.iter().any(|entry| matches!(entry.fact, Fact::Status(_) | Fact::Device(_) | Fact::Quarantine(_)));
    match newest_liveness(own).map(|fact| fact.state) {
        Some(Liveness::Fresh) => Freshness::Fresh,
        Some(Liveness::Stale) => Freshness::Stale,
        None if reported => Freshness::Stale,
        None => Freshness::Never,
    }
}

fn standing(report: Option<&StatusFact>, target: Option<Generation>) -> Option<Standing> {
    Some(match (report, target) {
        (None, None) => return None,
        (None, Some(_)) => Standing::Waiting,
        (Some(fact), Some(target)) if fact.generation < target => Standing::Outdated,
        (Some(fact), Some(_)) if fact.retries.iter().any(|retry| retry.crash_loop) => Standing::Failed,
        (Some(fact), _) => fact.status.state.into(),
    })
}

/// Whether a deadline is one of the target, and of no attempt before the first that counts.
fn is_late(deadline: Option<&DeadlineFact>, tried: Option<&StatusFact>, target: Option<Generation>) -> bool {
    let first = tried.and_then(|fact| fact.first_attempt_at);
    deadline
        .is_some_and(|fact| Some(fact.generation) == target && first.is_none_or(|first| fact.since >= first))
}

/// The newest report and the highest head up to which it was said to be current.
fn newest_report(own: &[&Entry], id: &DeploymentId) -> Option<(StatusFact, u64)> {
    let reports = own.iter().filter_map(|entry| match (&entry.subject, &entry.fact) {
        (LedgerSubject::Status(_, of), Fact::Status(fact)) if of == id => Some(fact),
        _ => None,
    });
    let reports: Vec<&StatusFact> = reports.collect();
    let newest = reports.iter().map(|fact| (fact.epoch, fact.seq)).max()?;
    let same: Vec<&&StatusFact> = reports.iter().filter(|fact| (fact.epoch, fact.seq) == newest).collect();
    let current = same.iter().filter(|fact| fact.current).map(|fact| fact.head.get()).max();
    Some(((*same[0]).clone(), current.unwrap_or(0)))
}

fn newest_deadline<'a>(own: &[&'a Entry], id: &DeploymentId) -> Option<&'a DeadlineFact> {
    let deadlines = own.iter().filter_map(|entry| match (&entry.subject, &entry.fact) {
        (LedgerSubject::Deadline(_, of), Fact::Deadline(fact)) if of == id => Some(fact),
        _ => None,
    });
    deadlines.max_by_key(|fact| (fact.generation, fact.since))
}

fn verdict(pairs: &[&Pair]) -> Option<Verdict> {
    let targets: Vec<&&Pair> = pairs.iter().filter(|pair| pair.is_target).collect();
    let any = |keep: &dyn Fn(&Pair) -> bool| targets.iter().any(|pair| keep(pair));
    let in_any = |standings: &[Standing]| any(&|pair| standings.contains(&pair.standing));
    if pairs.is_empty() {
        return None;
    }
    use Standing::{Failed, Installing, Outdated, Pending, Removed, Removing, Waiting};
    let at_work = [Pending, Installing, Removing, Removed];
    Some(if targets.is_empty() {
        Verdict::Removing
    } else if in_any(&[Failed]) {
        Verdict::Failing
    } else if any(&|pair| pair.overdue) {
        Verdict::Overdue
    } else if any(&|pair| !pair.known) {
        Verdict::Incomplete
    } else if any(&|pair| at_work.contains(&pair.standing) && pair.freshness == Freshness::Fresh) {
        Verdict::Progressing
    } else if in_any(&[Waiting, Outdated]) || in_any(&at_work) {
        Verdict::Waiting
    } else if any(&|pair| pair.freshness != Freshness::Fresh) {
        Verdict::ConvergedStale
    } else {
        Verdict::Converged
    })
}

fn retried(targets: &[&Pair]) -> Retried {
    let attempts = targets.iter().map(|pair| u64::from(pair.attempts)).sum();
    Retried { targets: targets.iter().filter(|pair| pair.attempts > 0).count() as u64, attempts }
}

fn counts(targets: &[&Pair]) -> Counts {
    let mut counts = Counts::new();
    for pair in targets {
        *counts.entry(pair.standing).or_default().get_mut(pair.freshness) += 1;
    }
    counts
}

fn components(targets: &[&Pair]) -> BTreeMap<ComponentName, BTreeMap<State, u64>> {
    let mut components: BTreeMap<ComponentName, BTreeMap<State, u64>> = BTreeMap::new();
    for pair in targets.iter().filter(|pair| pair.standing != Standing::Outdated) {
        for component in pair.report.iter().flat_map(|fact| &fact.components) {
            *components.entry(component.name.clone()).or_default().entry(component.state).or_default() += 1;
        }
    }
    components
}
