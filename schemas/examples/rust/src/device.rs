//! What the facts of LEDGER make of one device: which of its reports hold, which of its numbers are held, missing or in
//! doubt, and where it stands with each deployment. All of it can be written down and read again. What is counted over
//! many devices is in `views`.

use std::collections::BTreeMap;

use jiff::Timestamp;
use muster_contract::desired::DesiredState;
use muster_contract::fact::{DeadlineFact, Liveness, LivenessFact, QuarantineFact, StatusFact};
use muster_contract::labels::Labels;
use muster_contract::quarantine::{QuarantineVerdict, Verdict};
use muster_contract::view::{Freshness, Standing};
use muster_contract::{DeploymentId, Epoch, Generation, Seq, SeqRanges, State};
use serde::{Deserialize, Serialize};

/// Pieces into which the held numbers of an epoch fall, before quarantine adds no more.
const PIECES_MAX: usize = 2048;
/// Epochs that have not begun of which quarantined numbers are kept.
const EPOCHS_AHEAD_MAX: usize = 4;

/// One device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Device {
    /// Of the desired state that holds; 0 before the first.
    generation: u64,
    pub(crate) retired: bool,
    targets: BTreeMap<DeploymentId, Generation>,
    pub(crate) labels: Labels,
    /// The highest of any fact; 0 before the first.
    epoch: u64,
    /// The highest number of the epoch that the device has spoken of.
    head: u64,
    held: SeqRanges,
    /// Held by the word of an account alone.
    untold: SeqRanges,
    /// In quarantine.
    doubted: SeqRanges,
    ahead: BTreeMap<u64, Ahead>,
    /// Messages in quarantine on which there is no word.
    open: Vec<Message>,
    beat_at: Option<Timestamp>,
    liveness: Option<(u64, Liveness)>,
    storing: bool,
    reported: bool,
    /// The hub does not listen to its partition.
    pub(crate) unheard: bool,
    reports: BTreeMap<DeploymentId, Report>,
    /// The last deadline that passed: of which target, and what it counts from.
    deadlines: BTreeMap<DeploymentId, (Generation, Timestamp)>,
}

/// What quarantine has of an epoch that has not begun.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Ahead {
    quarantined: SeqRanges,
    dropped: SeqRanges,
}

/// A message in quarantine is the same where all of this is.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Message {
    received_at: Timestamp,
    number: Option<(Epoch, Seq)>,
}

/// The newest report of a deployment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    pub(crate) fact: StatusFact,
    /// The highest head up to which it was said to be the deployment's newest.
    current_through: u64,
}

/// What a deployment on a device adds to the counts.
pub(crate) struct Row<'a> {
    /// None where it is leaving.
    pub(crate) target: Option<Target>,
    pub(crate) report: Option<&'a StatusFact>,
}

/// The standing of a target.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target {
    pub(crate) standing: Standing,
    pub(crate) freshness: Freshness,
    pub(crate) known: bool,
    pub(crate) overdue: bool,
    /// It is tried again after an error.
    pub(crate) retried: bool,
    pub(crate) missing: u64,
}

impl Default for Device {
    fn default() -> Self {
        Self {
            generation: 0,
            retired: false,
            targets: BTreeMap::new(),
            labels: Labels::new(),
            epoch: 0,
            head: 0,
            held: SeqRanges::new(),
            untold: SeqRanges::new(),
            doubted: SeqRanges::new(),
            ahead: BTreeMap::new(),
            open: Vec::new(),
            beat_at: None,
            liveness: None,
            // Who has not said otherwise can.
            storing: true,
            reported: false,
            unheard: false,
            reports: BTreeMap::new(),
            deadlines: BTreeMap::new(),
        }
    }
}

impl Device {
    /// A device of which nothing was said, in a partition that the hub may not listen to.
    pub(crate) fn new(unheard: bool) -> Self {
        Self { unheard, ..Self::default() }
    }

    /// The highest epoch holds; a newer one begins with nothing but what quarantine has of it.
    fn enter(&mut self, epoch: Epoch) -> bool {
        let epoch = epoch.get();
        if epoch > self.epoch {
            let Ahead { quarantined, dropped } = self.ahead.remove(&epoch).unwrap_or_default();
            self.ahead.retain(|other, _| *other > epoch);
            (self.epoch, self.head, self.untold) = (epoch, 0, SeqRanges::new());
            self.held = SeqRanges::new();
            insert_bounded(&mut self.held, &dropped);
            self.doubted = insert_bounded(&mut self.held, &quarantined);
        }
        epoch == self.epoch
    }

    /// Of every report, whatever it is about.
    pub(crate) fn take_report(&mut self, epoch: Epoch, seq: Seq, head: Seq, coalesced: &SeqRanges) {
        self.reported = true;
        if self.enter(epoch) {
            let mut good = coalesced.clone();
            good.insert(seq.get());
            self.held.extend(&good);
            remove(&mut self.doubted, &good);
            remove(&mut self.untold, &good);
            self.head = self.head.max(head.get());
        }
    }

    pub(crate) fn take_status(&mut self, id: &DeploymentId, fact: StatusFact) {
        self.take_report(fact.epoch, fact.seq, fact.head, &fact.coalesced);
        let through = if fact.current { fact.head.get() } else { 0 };
        let order = |fact: &StatusFact| (fact.epoch, fact.seq);
        match self.reports.get_mut(id) {
            Some(held) if order(&fact) == order(&held.fact) => {
                held.current_through = held.current_through.max(through);
            }
            Some(held) if order(&fact) < order(&held.fact) => {}
            _ => _ = self.reports.insert(id.clone(), Report { fact, current_through: through }),
        }
    }

    pub(crate) fn take_desired(&mut self, fact: DesiredState) {
        if fact.generation.get() > self.generation {
            (self.generation, self.retired, self.labels) = (fact.generation.get(), fact.retired, fact.labels);
            let targets = fact.deployments.into_iter();
            self.targets = targets.map(|entry| (entry.id, entry.target_generation)).collect();
        }
    }

    pub(crate) fn take_liveness(&mut self, fact: &LivenessFact) {
        if self.enter(fact.epoch) {
            self.head = self.head.max(fact.head);
            if let Some(account) = &fact.account {
                let mut told = SeqRanges::span(1, fact.head);
                remove(&mut told, &account.missing);
                let mut untold = told.clone();
                remove(&mut untold, &self.held);
                self.untold.extend(&untold);
                self.held.extend(&told);
            }
        }
        self.beat_at = self.beat_at.max(fact.beat_at);
        if self.liveness.is_none_or(|(epoch, _)| fact.epoch.get() >= epoch) {
            (self.liveness, self.storing) = (Some((fact.epoch.get(), fact.state)), fact.storing);
        }
    }

    pub(crate) fn take_deadline(&mut self, id: &DeploymentId, fact: &DeadlineFact) {
        let new = (fact.generation, fact.since);
        let held = self.deadlines.entry(id.clone()).or_insert(new);
        *held = new.max(*held);
    }

    pub(crate) fn take_quarantine(&mut self, fact: &QuarantineFact) {
        self.reported = true;
        let message = Message { received_at: fact.received_at, number: fact.epoch.zip(fact.seq) };
        if !self.open.contains(&message) {
            self.open.push(message);
        }
        let Some((epoch, numbers)) = fact.numbers() else { return };
        if epoch.get() == self.epoch {
            // A report of that number, or a person's word on it, counts for more; an account's does not.
            let mut new = insert_bounded(&mut self.held, &numbers);
            numbers.iter().for_each(|(first, last)| _ = new.extend(&self.untold.within(first, last)));
            remove(&mut self.untold, &new);
            self.doubted.extend(&new);
        } else if epoch.get() > self.epoch {
            self.wait_for(epoch, |ahead| &mut ahead.quarantined, &numbers);
        }
    }

    /// A person has looked. What was let in is a fact of its own; what was dropped stays held, and is no news.
    pub(crate) fn take_verdict(&mut self, fact: &QuarantineVerdict) {
        let number = fact.epoch.zip(fact.seq);
        let it = fact.received_at.map(|received_at| Message { received_at, number });
        self.open.retain(|message| Some(*message) != it);
        let Some((epoch, numbers)) = fact.numbers() else { return };
        if fact.verdict != Verdict::Dropped {
            return;
        }
        if epoch.get() == self.epoch {
            insert_bounded(&mut self.held, &numbers);
            remove(&mut self.untold, &numbers);
            remove(&mut self.doubted, &numbers);
        } else if epoch.get() > self.epoch {
            self.wait_for(epoch, |ahead| &mut ahead.dropped, &numbers);
        }
    }

    fn wait_for(&mut self, epoch: Epoch, part: fn(&mut Ahead) -> &mut SeqRanges, numbers: &SeqRanges) {
        insert_bounded(part(self.ahead.entry(epoch.get()).or_default()), numbers);
        if self.ahead.len() > EPOCHS_AHEAD_MAX {
            self.ahead.pop_last();
        }
    }

    /// Is there a message that may be anything: after the last heartbeat, and no number the device has spoken of?
    fn unread(&self) -> bool {
        let dropped = |epoch, seq| self.ahead.get(&epoch).is_some_and(|ahead| ahead.dropped.contains(seq));
        let beyond = |number: Option<(Epoch, Seq)>| match number.map(|(epoch, seq)| (epoch.get(), seq.get()))
        {
            None => true,
            Some((epoch, seq)) if epoch > self.epoch => !dropped(epoch, seq),
            Some((epoch, seq)) => {
                let is_dropped = self.held.contains(seq) && !self.doubted.contains(seq);
                epoch == self.epoch && seq > self.head && !is_dropped
            }
        };
        let since = |at: Timestamp| self.beat_at.is_none_or(|beat_at| at >= beat_at);
        self.open.iter().any(|message| since(message.received_at) && beyond(message.number))
    }

    /// May a message in quarantine be a later report than this one?
    fn doubts(&self, report: Option<&Report>) -> bool {
        let of_epoch = report.filter(|report| report.fact.epoch.get() == self.epoch);
        let settled = of_epoch.map_or(0, |report| report.fact.seq.get().max(report.current_through));
        self.unread() || !self.doubted.within(settled + 1, self.head).is_empty()
    }

    pub(crate) fn freshness(&self) -> Freshness {
        match self.liveness {
            Some((_, Liveness::Fresh)) if !self.unheard => Freshness::Fresh,
            Some((_, Liveness::Fresh)) => Freshness::Stale,
            Some((_, Liveness::Stale)) => Freshness::Stale,
            None if self.reported => Freshness::Stale,
            None => Freshness::Never,
        }
    }

    /// Reports that exist and are not in.
    pub(crate) fn missing(&self) -> u64 {
        self.head - self.held.count_through(self.head)
    }

    /// Where it stands with every deployment that it shall run or still has.
    pub(crate) fn rows(&self) -> impl Iterator<Item = (&DeploymentId, Row<'_>)> {
        let unwanted = self.reports.keys().filter(|id| !self.targets.contains_key(*id));
        let all = self.targets.keys().chain(unwanted).filter(|_| !self.retired);
        all.filter_map(|id| {
            let report = self.reports.get(id);
            let target = self.targets.get(id).map(|target| self.target(id, *target, report));
            let is_gone = |report: &Report| report.fact.status.state == State::Removed || self.forgot(report);
            let gone = target.is_none() && report.is_some_and(is_gone);
            (!gone).then(|| (id, Row { target, report: report.map(|report| &report.fact) }))
        })
    }

    fn target(&self, id: &DeploymentId, target: Generation, report: Option<&Report>) -> Target {
        let of_target = report.map(|report| &report.fact).filter(|fact| fact.generation >= target);
        let retries = of_target.map_or(&[][..], |fact| &fact.retries);
        let standing = match (report, of_target) {
            (None, _) => Standing::Waiting,
            (Some(_), None) => Standing::Outdated,
            _ if retries.iter().any(|retry| retry.crash_loop) => Standing::Failed,
            (Some(report), _) => report.fact.status.state.into(),
        };
        // What is tried again is at no end, and a deadline of earlier attempts does not count.
        let at_end = matches!(standing, Standing::Installed | Standing::Failed) && retries.is_empty();
        let first = of_target.and_then(|fact| fact.first_attempt_at);
        let passed = self.deadlines.get(id).filter(|(generation, _)| *generation == target);
        let overdue = passed.is_some_and(|(_, since)| first.is_none_or(|first| *since >= first)) && !at_end;
        let (freshness, known, missing) = (self.freshness(), self.knows(report), self.missing());
        Target { standing, freshness, known, overdue, retried: !retries.is_empty(), missing }
    }

    fn forgot(&self, report: &Report) -> bool {
        report.fact.epoch.get() < self.epoch && self.missing() == 0 && !self.doubts(Some(report))
    }

    fn knows(&self, report: Option<&Report>) -> bool {
        let forgotten = report.is_some_and(|report| report.fact.epoch.get() < self.epoch);
        let current = report.is_some_and(|report| report.current_through >= self.head);
        self.storing && !self.doubts(report) && !forgotten && (current || self.missing() == 0)
    }

    /// Is everything known of it?
    pub(crate) fn is_complete(&self) -> bool {
        let known = self.rows().all(|(_, row)| row.target.is_none_or(|target| target.known));
        known && self.storing && self.missing() == 0 && !self.unread()
    }
}

fn remove(from: &mut SeqRanges, numbers: &SeqRanges) {
    numbers.iter().for_each(|(first, last)| _ = from.remove_span(first, last));
}

/// Adds range by range while there are few enough pieces, and says what is new; the rest stays missing.
fn insert_bounded(held: &mut SeqRanges, numbers: &SeqRanges) -> SeqRanges {
    let mut new = SeqRanges::new();
    for (first, last) in numbers.iter() {
        if held.len() < PIECES_MAX {
            new.extend(&held.missing_within(first, last));
            held.insert_span(first, last);
        }
    }
    new
}
