//! The invariants of the architecture, checked from outside. It keeps its own, naive account of LEDGER and of what each
//! device was like at each of its numbers, and holds everything the cores say against that.

use std::collections::{BTreeMap, BTreeSet};

use muster_agent::report::Body;
use muster_contract::desired_refusal::DesiredRefusal;
use muster_contract::fact::{Fact, Hearing, IncidentKind, Liveness};
use muster_contract::partition::partition_of;
use muster_contract::query::{DeviceLine, Output};
use muster_contract::receipt::Receipt;
use muster_contract::status::{StatusAnswer, StatusQuery, TargetStatus};
use muster_contract::subjects::{LedgerSubject, ViewKey};
use muster_contract::view::{Freshness, Split, Standing};
use muster_contract::{DeploymentId, DeviceKey, Generation, SeqRanges, State};
use muster_domain::fold::{Fleet, Page};

use super::hostile::Inventions;
use super::hub::StoredFact;
use super::profile::{Fault, Profile};
use super::retries::{Attempted, StartOfTrials};
use super::verdicts::bounds;

/// An invariant that does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Breach {
    /// Which.
    pub(crate) law: &'static str,
    /// The observation that breaks it.
    pub(crate) seen: String,
}

/// Lawful, or not.
pub(crate) type Lawful<T = ()> = Result<T, Breach>;

/// Holds a law against what is seen.
pub(crate) fn must(holds: bool, law: &'static str, seen: impl FnOnce() -> String) -> Lawful {
    if holds { Ok(()) } else { Err(Breach { law, seen: seen() }) }
}

/// The numbers of one epoch of a device in LEDGER.
#[derive(Debug, Default)]
pub(crate) struct EpochNumbers {
    received: SeqRanges,
    coalesced: SeqRanges,
    quarantined: SeqRanges,
    head: u64,
}

/// A device's state after one of its reports.
#[derive(Debug, Clone)]
struct ReportedState {
    deployment: DeploymentId,
    generation: Generation,
    state: State,
    /// The report lists a crash loop.
    in_loop: bool,
    /// The report's trial; `None` if the law did not see the device write the report.
    trial: Option<u64>,
}

/// One device as the law sees it.
#[derive(Debug, Default)]
struct ObservedDevice {
    /// By epoch.
    held: BTreeMap<u64, EpochNumbers>,
    /// By epoch, what LEDGER held before it was set back.
    held_once: BTreeMap<u64, SeqRanges>,
    liveness: Option<Liveness>,
    /// The epoch of `liveness`.
    liveness_epoch: u64,
    /// The newest desired state in LEDGER: its generation, whether it retires the device, targets.
    desired: Option<(Generation, bool, BTreeMap<DeploymentId, Generation>)>,
    /// Its state at each number of an epoch; the epoch yet to be fixed is 0.
    history: BTreeMap<u64, BTreeMap<u64, ReportedState>>,
    /// Generation of the desired state it accepted last.
    accepted: u64,
    /// Numbers that it has rightly forgotten, of its present epoch.
    forgotten: SeqRanges,
    /// The newest epoch that the hub has heard of.
    newest: u64,
    /// Epochs that the hub has heard of after a newer one.
    belated: BTreeSet<u64>,
    /// Epochs of which two histories exist, because its database was set back: what it was like in them is not known to
    /// anybody.
    doubtful: Vec<u64>,
    /// By epoch, what UPLINK has stored at some time.
    uplinked: BTreeMap<u64, SeqRanges>,
    /// The epoch of the hub's last receipt, if its agent has asked for it.
    asked: Option<Option<u64>>,
    /// The refusal of its desired state that stands, as LEDGER says.
    refusal: Option<DesiredRefusal>,
    /// LEDGER holds that two reports of it have one number: of the second it does not hold what it says.
    forked: bool,
    /// Its attempts as its reports list them.
    attempted: Attempted,
    /// When LEDGER first learned of each of its trials, and its deadlines.
    trials: StartOfTrials,
}

/// The observer.
#[derive(Debug, Default)]
pub(crate) struct Law {
    names: BTreeMap<DeviceKey, usize>,
    subjects: Vec<ObservedDevice>,
    /// Reports in LEDGER.
    pub(crate) reports: u64,
    /// Outboxes are small.
    short_of_room: bool,
    /// The hub's clock is corrected now and then, so its times cannot be compared.
    has_clock_steps: bool,
    inventions: Inventions,
    /// Partitions that the hub does not listen to, as LEDGER says.
    unheard: BTreeSet<u16>,
}

impl EpochNumbers {
    fn all(&self) -> SeqRanges {
        let mut all = self.received.clone();
        all.extend(&self.coalesced);
        all.extend(&self.quarantined);
        all
    }
}

impl ObservedDevice {
    /// An incident says something of the device.
    fn accused(&mut self, what: &IncidentKind) -> Lawful {
        self.refused(what)?;
        let IncidentKind::Clone { epoch, .. } = what else { return Ok(()) };
        let law = "a device is taken for a clone only if its past comes after its present";
        must(self.belated.contains(&epoch.get()), law, || format!("{what:?}"))
    }
}

impl ObservedDevice {
    /// A refusal of its desired state begins or ends.
    fn refused(&mut self, what: &IncidentKind) -> Lawful {
        match what {
            IncidentKind::DesiredRefused(refusal) => {
                let is_new = self.refusal.as_ref().is_none_or(|known| !known.is_same(refusal));
                self.refusal = Some(refusal.clone());
                must(is_new, "a refusal is in LEDGER once", || format!("{what:?}"))
            }
            IncidentKind::DesiredAccepted { .. } => {
                let was_refusing = self.refusal.take().is_some();
                must(was_refusing, "only a refusal in LEDGER ends", || format!("{what:?}"))
            }
            _ => Ok(()),
        }
    }
}

impl Law {
    /// The law for these devices.
    pub(crate) fn new(names: &BTreeMap<DeviceKey, usize>, profile: &Profile) -> Self {
        let subjects = names.iter().map(|_| ObservedDevice::default()).collect();
        let has_clock_steps = profile.faults.iter().any(|(fault, _)| *fault == Fault::HubClock);
        let short_of_room = profile.is_short_of_room();
        Self { names: names.clone(), subjects, short_of_room, has_clock_steps, ..Self::default() }
    }

    /// LEDGER was set back to this.
    pub(crate) fn set_back(&mut self, ledger: &[StoredFact]) -> Lawful {
        for subject in &mut self.subjects {
            for (epoch, held) in std::mem::take(&mut subject.held) {
                subject.held_once.entry(epoch).or_default().extend(&held.all());
            }
            subject.liveness = None;
            subject.desired = None;
            subject.refusal = None;
            subject.trials = StartOfTrials::default();
        }
        self.reports = 0;
        self.inventions = Inventions::default();
        self.unheard.clear();
        ledger.iter().try_for_each(|said| self.stored(said))
    }

    /// LEDGER holds another fact. No number may be in it twice.
    pub(crate) fn stored(&mut self, said: &StoredFact) -> Lawful {
        if let (LedgerSubject::Hearing(partition), Fact::Hearing(fact)) = (&said.subject, &said.fact) {
            match fact.state {
                Hearing::Stopped => _ = self.unheard.insert(*partition),
                Hearing::Resumed => _ = self.unheard.remove(partition),
            }
        }
        let Some(device) = said.subject.device().and_then(|key| self.names.get(key)).copied() else {
            return self.inventions.stored(said);
        };
        let subject = &mut self.subjects[device];
        let (epoch, seq, head, coalesced, again) = match &said.fact {
            Fact::Status(fact) => {
                let number = (fact.epoch.get(), fact.seq.get());
                let told = subject.history.get(&number.0).and_then(|told| told.get(&number.1));
                subject.trials.reported(fact, told.and_then(|told| told.trial));
                (fact.epoch, fact.seq, fact.head, &fact.coalesced, fact.reasserted)
            }
            Fact::Device(fact) => (fact.epoch, fact.seq, fact.head, &fact.coalesced, fact.reasserted),
            Fact::Quarantine(fact) => {
                let law = "no honest device is refused for what its reports speak of";
                must(!fact.reason.starts_with("deployment "), law, || fact.reason.clone())?;
                if let Some((epoch, seqs)) = fact.numbers() {
                    subject.held.entry(epoch.get()).or_default().quarantined.extend(&seqs);
                }
                return Ok(());
            }
            Fact::Liveness(fact) => {
                let held = subject.held.entry(fact.epoch.get()).or_default();
                held.head = held.head.max(fact.head);
                if subject.liveness_epoch <= fact.epoch.get() || subject.liveness.is_none() {
                    (subject.liveness, subject.liveness_epoch) = (Some(fact.state), fact.epoch.get());
                }
                return Ok(());
            }
            Fact::Desired(fact) => {
                if subject.desired.as_ref().is_none_or(|(known, ..)| *known < fact.generation) {
                    let entries = fact.deployments.iter();
                    let targets = entries.map(|entry| (entry.id.clone(), entry.target_generation)).collect();
                    subject.desired = Some((fact.generation, fact.retired, targets));
                }
                return Ok(());
            }
            Fact::Incident(fact) => {
                subject.forked |= matches!(fact.what, IncidentKind::SequenceFork { .. });
                return subject.accused(&fact.what);
            }
            Fact::Deadline(fact) => {
                let LedgerSubject::Deadline(_, id) = &said.subject else { return Ok(()) };
                return subject.trials.deadline(id, fact, self.has_clock_steps);
            }
            Fact::Verdict(_) | Fact::Ownership(_) | Fact::Pulse(_) | Fact::Hearing(_) => {
                return Ok(());
            }
        };
        let held = subject.held.entry(epoch.get()).or_default();
        let new = held.received.insert(seq.get());
        held.coalesced.extend(coalesced);
        held.head = held.head.max(head.get());
        self.reports += u64::from(new);
        must(new || again, "a number is in LEDGER at most once", || format!("{} {epoch} {seq}", said.subject))
    }

    /// The bus has stored something of an epoch of a device.
    pub(crate) fn heard(&mut self, device: usize, epoch: u64) {
        let subject = &mut self.subjects[device];
        subject.newest = subject.newest.max(epoch);
        if epoch < subject.newest {
            subject.belated.insert(epoch);
        }
    }

    /// Ingest acknowledges a report: LEDGER or quarantine holds it.
    pub(crate) fn acknowledged(&self, device: usize, (epoch, seq): (u64, u64)) -> Lawful {
        let held = self.subjects[device].held.get(&epoch).is_some_and(|held| held.all().contains(seq));
        must(held, "what ingest acknowledges is in LEDGER", || format!("device {device} {epoch} {seq}"))
    }

    /// The hub tells a device what it holds: LEDGER or quarantine holds all of it.
    pub(crate) fn receipt(&self, device: usize, receipt: &Receipt) -> Lawful {
        let held =
            self.subjects[device].held.get(&receipt.epoch.get()).map(EpochNumbers::all).unwrap_or_default();
        let mut wrong = SeqRanges::new();
        for (from, to) in receipt.covered().iter() {
            wrong.extend(&held.missing_within(from, to));
        }
        must(wrong.is_empty(), "a receipt covers what LEDGER holds", || format!("device {device} {wrong}"))
    }

    /// Checks the numbers that a device keeps up to `head`: all others must have been in LEDGER when it deleted them. A device
    /// that is short of room may delete reports that it keeps only for a hub that is set back: these were in LEDGER once.
    pub(crate) fn kept(&mut self, device: usize, epoch: Option<u64>, head: u64, kept: &SeqRanges) -> Lawful {
        let subject = &mut self.subjects[device];
        let mut held =
            epoch.and_then(|epoch| subject.held.get(&epoch)).map(EpochNumbers::all).unwrap_or_default();
        if let Some(once) =
            epoch.and_then(|epoch| subject.held_once.get(&epoch)).filter(|_| self.short_of_room)
        {
            held.extend(once);
        }
        let mut known = kept.clone();
        known.extend(&subject.forgotten);
        let gone = known.missing(head);
        let mut lost = SeqRanges::new();
        for (from, to) in gone.iter() {
            lost.extend(&held.missing_within(from, to));
        }
        subject.forgotten.extend(&gone);
        must(lost.is_empty(), "what a device has forgotten is in LEDGER", || {
            format!("device {device} {lost}")
        })
    }

    /// A device gave a number to a report.
    pub(crate) fn told(&mut self, device: usize, epoch: Option<u64>, seq: u64, body: &Body) -> Lawful {
        let Body::Status(body) = body else { return Ok(()) };
        let subject = &mut self.subjects[device];
        let (generation, state) = (body.generation, body.status.state);
        let in_loop = body.retries.iter().any(|retry| retry.crash_loop);
        let trial = Some(subject.attempted.told(body)?);
        let told = ReportedState { deployment: body.deployment.clone(), generation, state, in_loop, trial };
        subject.history.entry(epoch.unwrap_or_default()).or_default().insert(seq, told);
        Ok(())
    }

    /// Records the state in a report of the history that LEDGER holds at the beginning.
    pub(crate) fn reported_earlier(
        &mut self,
        device: usize,
        (epoch, seq): (u64, u64),
        deployment: DeploymentId,
        state: State,
    ) {
        let (generation, in_loop, trial) = (Generation::FIRST, false, None);
        let told = ReportedState { deployment, generation, state, in_loop, trial };
        self.subjects[device].history.entry(epoch).or_default().insert(seq, told);
    }

    /// A device has fixed its epoch: what it told before belongs to it.
    pub(crate) fn epoch_fixed(&mut self, device: usize, epoch: u64, is_new: bool) -> Lawful {
        let subject = &mut self.subjects[device];
        if let Some(early) = subject.history.remove(&0) {
            subject.history.insert(epoch, early);
        }
        let is_above = subject.asked.is_some_and(|known| known.is_none_or(|known| known < epoch));
        let law = "an epoch is fixed and a report goes after the hub's receipt";
        must(is_above || !is_new, law, || format!("device {device} {epoch}, {:?}", subject.asked))
    }

    /// Checks that a device has asked for the hub's receipt when it sends a report.
    pub(crate) fn sends_report(&self, device: usize) -> Lawful {
        let law = "an epoch is fixed and a report goes after the hub's receipt";
        must(self.subjects[device].asked.is_some(), law, || format!("device {device}"))
    }

    /// An agent starts: it has not asked for a receipt yet.
    pub(crate) fn starts(&mut self, device: usize) {
        self.subjects[device].asked = None;
    }

    /// An agent has asked for the hub's last receipt, which was of this epoch.
    pub(crate) fn asked(&mut self, device: usize, epoch: Option<u64>) {
        self.subjects[device].asked = Some(epoch);
    }

    /// UPLINK has stored a report that was sent under this number, at some time.
    pub(crate) fn uplinked(&mut self, device: usize, (epoch, seq): (u64, u64)) {
        self.subjects[device].uplinked.entry(epoch).or_default().insert(seq);
    }

    /// Checks that UPLINK has stored all rows that a device marks as sent.
    pub(crate) fn marked(&self, device: usize, epoch: u64, seqs: &[u64]) -> Lawful {
        let stored = self.subjects[device].uplinked.get(&epoch);
        let lacks = |seq: &&u64| !stored.is_some_and(|stored| stored.contains(**seq));
        let lacking: Vec<_> = seqs.iter().filter(lacks).collect();
        must(lacking.is_empty(), "a device marks as sent what UPLINK has stored", || {
            format!("device {device} {epoch} {lacking:?}")
        })
    }

    /// A device accepts a desired state: none that is older than one it has accepted before.
    pub(crate) fn accepted(&mut self, device: usize, generation: u64) -> Lawful {
        let before = std::mem::replace(&mut self.subjects[device].accepted, generation);
        must(before < generation, "a device accepts only what is newer", || {
            format!("device {device} accepted {generation} after {before}")
        })
    }

    /// A device loses its memory.
    pub(crate) fn forgets_all(&mut self, device: usize) {
        self.subjects[device].accepted = 0;
        self.subjects[device].attempted.forget();
        self.counts_anew(device);
    }

    /// A device begins to count anew.
    pub(crate) fn counts_anew(&mut self, device: usize) {
        self.subjects[device].history.remove(&0);
        self.subjects[device].forgotten = SeqRanges::new();
    }

    /// A device's database is an older copy: it has given numbers up to `head` and will give the next ones again.
    pub(crate) fn set_device_back(&mut self, device: usize, epoch: Option<u64>, head: u64) {
        let subject = &mut self.subjects[device];
        subject.accepted = 0;
        subject.attempted.set_back();
        subject.forgotten.remove_span(head + 1, u64::MAX);
        subject.history.remove(&0);
        let newest = subject.history.keys().last().copied();
        subject.doubtful.extend(epoch.into_iter().chain(newest));
    }

    /// Ingest could hear for longer than a lease and this device was silent: LEDGER must not call it fresh.
    pub(crate) fn silent(&self, device: usize) -> Lawful {
        let fresh = self.subjects[device].liveness == Some(Liveness::Fresh);
        must(!fresh, "a silent device is not fresh", || format!("device {device}"))
    }

    /// A device has been silent for so long that no restart of ingest excuses that readers of LEDGER take it for fresh.
    pub(crate) fn silent_for_long(&self, device: usize, key: &DeviceKey) -> Lawful {
        let fresh = self.subjects[device].liveness == Some(Liveness::Fresh) && !self.is_unheard(key);
        must(!fresh, "no restart keeps a silent device fresh", || format!("device {device}"))
    }

    /// Whether a number of a device stands for two reports, as LEDGER says.
    pub(crate) fn is_forked(&self, device: usize) -> bool {
        self.subjects[device].forked
    }

    /// Whether the hub listens to a device's partition, as LEDGER says.
    fn is_unheard(&self, key: &DeviceKey) -> bool {
        self.unheard.contains(&partition_of(key))
    }

    /// Numbers that LEDGER lacks of an epoch, up to a head.
    pub(crate) fn missing(&self, device: usize, epoch: u64, head: u64) -> SeqRanges {
        let held = self.subjects[device].held.get(&epoch).map(EpochNumbers::all).unwrap_or_default();
        held.missing(head)
    }

    /// A rollup that has read all of LEDGER: its accounts, counts and bounds.
    pub(crate) fn fold(&self, fleet: &Fleet, changed: impl Iterator<Item = ViewKey>) -> Lawful {
        let page = Page { after: None, limit: usize::MAX };
        let lines =
            fleet.devices_answer(&Default::default(), &page).map(|answer| answer.devices).unwrap_or_default();
        lines.iter().try_for_each(|line| self.account(line))?;
        for line in lines.iter().filter(|line| self.is_unheard(&line.key)) {
            let law = "no device is fresh that the hub does not listen to";
            must(line.freshness != Freshness::Fresh, law, || format!("{line:?}"))?;
        }
        let lines: BTreeMap<_, _> = lines.into_iter().map(|line| (line.key.clone(), line)).collect();
        for key in changed {
            if let ViewKey::Deployment(id) = key {
                self.view(fleet, &id, &lines)?;
            }
        }
        Ok(())
    }

    /// The account of a device adds up, and is the naive one.
    fn account(&self, line: &DeviceLine) -> Lawful {
        let account = &line.account;
        let sum = account.received + account.coalesced + account.quarantined + account.missing.count();
        let seen = || format!("{} head {} {account:?}", line.key, line.head);
        must(sum == line.head, "head = received + coalesced + quarantined + missing", seen)?;
        let Some((epoch, device)) = line.epoch.zip(self.names.get(&line.key)) else { return Ok(()) };
        let missing = self.missing(*device, epoch.get(), line.head);
        must(missing == account.missing, "missing is what LEDGER lacks", || {
            format!("{} says {}, LEDGER lacks {missing}", line.key, account.missing)
        })
    }

    fn view(&self, fleet: &Fleet, id: &DeploymentId, devices: &BTreeMap<DeviceKey, DeviceLine>) -> Lawful {
        let query = StatusQuery { id: Some(id.clone()), output: Output::Brief, ..StatusQuery::default() };
        let lines = fleet.status_answer(&query, None, usize::MAX);
        let targets = self.subjects.iter().filter(|subject| subject.targets(id).is_some()).count() as u64;
        let (Some(view), Ok(StatusAnswer { targets: lines, next: None, .. })) =
            (fleet.deployment_view(id), lines)
        else {
            return must(targets == 0, "a deployment that is wanted has a view", || id.to_string());
        };
        let counted: u64 = view.counts.values().copied().map(Split::total).sum();
        must(counted == targets && view.targets == targets, "counts add up to targets", || {
            format!("{id} {targets} targets, {view:?}")
        })?;
        bounds(&view, &lines)?;
        lines.iter().filter(|line| !line.leaving).try_for_each(|line| self.truth(line, &devices[&line.key]))
    }

    /// A known standing is the device's state at the number up to which it has reported.
    fn truth(&self, line: &TargetStatus, device: &DeviceLine) -> Lawful {
        let (Some(epoch), Some(at)) = (device.epoch, self.names.get(&line.key)) else { return Ok(()) };
        let subject = &self.subjects[*at];
        let doubtful = subject.doubtful.contains(&epoch.get());
        if !line.known || line.freshness != Freshness::Fresh || doubtful {
            return Ok(());
        }
        let told = subject.history.get(&epoch.get()).and_then(|told| {
            let up_to = told.range(..=device.head).rev();
            up_to.map(|(_, told)| told).find(|told| told.deployment == line.deployment)
        });
        let target = line.target_generation;
        let is = |state| told.is_some_and(|told| told.state == state && Some(told.generation) >= target);
        // A crash loop counts as failed in any state.
        let in_loop = told.is_some_and(|told| told.in_loop && Some(told.generation) >= target);
        let right = match line.standing {
            Standing::Installed => is(State::Installed) && !in_loop,
            Standing::Failed => is(State::Failed) || in_loop,
            _ => !is(State::Installed) && !in_loop,
        };
        must(right, "lo ≤ truth ≤ hi", || format!("the view says {line:?}, the device was {told:?}"))
    }
}

impl ObservedDevice {
    fn targets(&self, id: &DeploymentId) -> Option<Generation> {
        let (_, retired, targets) = self.desired.as_ref()?;
        targets.get(id).copied().filter(|_| !retired)
    }
}
