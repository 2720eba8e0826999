//! Proves a deployment's verdict: the standings that make its rule hold, and for each the facts that make it
//! so. [`CountClass`] and the verdict decide; this module names the facts by their LEDGER sequence.
//!
//! A rule is about devices, and so is its proof: without the named devices the verdict is another, with any one
//! of them it is the same, and without any other device it is the same. For each device the named facts suffice
//! for its standing, none can be left out, and no other matters. One exception: that a device is silent, that
//! it has reported more than is stored or readable, and that it has to remove something may each be known from
//! several facts; the last one is named. That all reports are stored is known from each of them, and that
//! nothing is uncertain any more from each decision on a quarantined message; the last one is named.
//!
//! Removing facts alone uncovers an older fact of the same subject, which may say the same: that is why devices
//! are removed as a whole. Where LEDGER holds only the newest fact of each subject, no older one exists. Then
//! the verdict differs without the named facts, because the desired state of each named device is among them
//! (of a leaving one, its report); and the named facts yield the verdict by themselves, together with those
//! that a last fact stands for and with an operator's decision on what was quarantined again after it. One kind
//! of fact may still be implied by another subject: without the facts that say why a standing is not known, and
//! with the desired state, it may still not be known, as where two deployments have reported numbers beyond a
//! missing one. Then the next answer names the others.

use muster_contract::fact::DeadlineKind;
use muster_contract::query::Output;
use muster_contract::view::{Freshness, Verdict};
use muster_contract::why::{Because, Evidence, EvidenceKind, WhyAnswer};
use muster_contract::{DeploymentId, DeviceKey, Epoch, Generation, Seq, SiteId, State};

use super::answer::Page;
use super::device::{Device, DeviceState, Source, Sources};
use super::fleet::Fleet;
use super::report::{Report, ReportError};
use super::standing::{CountClass, Deadline, Row, Uncertainty};
use super::verdict::is_at_work;

/// Devices visited for one answer: the fold waits meanwhile, for about a millisecond.
const WHY_LOOKED_AT_MAX: usize = 20_000;

impl Fleet {
    /// Why a deployment has its verdict, of one site if one is named. Where few of many devices speak for it, a page
    /// may have fewer rows than its limit, or none, and there are more. None where there is no such view.
    pub fn why(&self, id: &DeploymentId, site: Option<&SiteId>, page: &Page<DeviceKey>) -> Option<WhyAnswer> {
        let (number, verdict) = self.judged(id)?;
        let group = match site {
            Some(site) => {
                let site = self.totals.site(*self.totals.site_numbers.get(site)?);
                site.deployments.get(number).copied().unwrap_or_default()
            }
            None => self.totals.deployment(number).group,
        };
        let (standings, next) = self.speaking(number, verdict, site, page);
        let (of, fresh) = match verdict {
            Verdict::Removing => (group.leaving(), None),
            _ => (group.targets(), Some(group.heard().fresh)),
        };
        let why = self.answer(id, verdict, group.because(verdict), of, standings, next);
        let hub = self.hub_evidence(self.hub_hearing_on(number, site));
        let refused = self.refused_targets(number, |at| site.is_none_or(|site| self.site_of(at) == site));
        Some(WhyAnswer {
            fresh,
            hub,
            refused,
            silent_sites: self.silent_sites(&site.cloned().into(), Some(number)),
            ..why
        })
    }

    /// The standings that prove a verdict among the devices visited, and the cursor to continue after.
    fn speaking(
        &self,
        deployment: u32,
        verdict: Verdict,
        site: Option<&SiteId>,
        page: &Page<DeviceKey>,
    ) -> (Vec<Because>, Option<String>) {
        let (mut standings, mut last) = (Vec::new(), None);
        let devices = self.devices_after(
            |at| site.is_none_or(|site| site == at),
            page.after.as_ref(),
            Some(deployment),
        );
        for (looked_at, device) in devices.enumerate() {
            if looked_at == WHY_LOOKED_AT_MAX {
                return (standings, last.map(|device| self.key_of(device).to_string()));
            }
            // Asked first: most devices do not, and their facts are of no interest.
            let (speaks, full) = (
                device.count_class(deployment).verdict() == Some(verdict),
                standings.len() >= page.limit.max(1),
            );
            if speaks && full {
                return (standings, last.map(|device| self.key_of(device).to_string()));
            }
            if speaks {
                standings.extend(self.because(device, deployment, Some(verdict)));
            }
            // A full page ends with its last row: so pages of several hubs can be put together to those of one.
            if !full {
                last = Some(device);
            }
        }
        (standings, None)
    }

    /// The proof of a deployment's standing on one device. None where the device has none.
    pub fn why_device(&self, id: &DeploymentId, key: &DeviceKey) -> Option<WhyAnswer> {
        let (number, verdict) = self.judged(id)?;
        let device = self.find(key)?;
        let because = self.because(device, number, None)?;
        let speaks = device.count_class(number).verdict() == Some(verdict);
        let fresh = Some((because.freshness == Freshness::Fresh).into());
        let why = self.answer(id, verdict, speaks.into(), 1, vec![because], None);
        let hub = self.hub_evidence(self.hub_hearing_of(device));
        let refused = self.refused_targets(number, |at| std::ptr::eq(at, device));
        Some(WhyAnswer {
            fresh,
            hub,
            refused,
            silent_sites: self.silent_sites(&key.site.clone().into(), Some(number)),
            ..why
        })
    }

    /// A device's standing with a deployment and the facts that make it speak for a verdict; for the first one that it speaks
    /// for, where none is named.
    fn because(&self, device: &Device, deployment: u32, verdict: Option<Verdict>) -> Option<Because> {
        let row = device.row(deployment)?;
        let class = row.count_class(&device.state.context());
        let speaks_for = verdict.or_else(|| class.verdict())?;
        Some(Because {
            key: self.key_of(device),
            standing: row.standing()?,
            freshness: device.state.freshness(),
            hosted_by: self.host_of(device),
            speaks_for,
            facts: facts(&device.state, row, self.totals.specs.is_stopped(row.spec), speaks_for),
        })
    }

    fn judged(&self, id: &DeploymentId) -> Option<(u32, Verdict)> {
        let number = *self.totals.deployment_numbers.get(id)?;
        let verdict = self.totals.deployment(number).group.verdict();
        (verdict != Verdict::Empty).then_some((number, verdict))
    }

    fn answer(
        &self,
        id: &DeploymentId,
        verdict: Verdict,
        because: u64,
        of: u64,
        standings: Vec<Because>,
        next: Option<String>,
    ) -> WhyAnswer {
        let rule = verdict.rule().to_owned();
        WhyAnswer {
            as_of: self.as_of,
            deployment: id.clone(),
            verdict,
            rule,
            because,
            of,
            fresh: None,
            hub: Default::default(),
            silent_sites: Default::default(),
            refused: Vec::new(),
            hubs: Vec::new(),
            standings,
            next,
        }
    }
}

impl Device {
    fn row(&self, deployment: u32) -> Option<&Row> {
        self.rows.iter().find(|row| row.deployment == deployment)
    }

    pub(super) fn count_class(&self, deployment: u32) -> CountClass {
        self.row(deployment).map_or(CountClass::Nothing, |row| row.count_class(&self.state.context()))
    }
}

/// The facts that make a row speak for a verdict.
fn facts(state: &DeviceState, row: &Row, is_stopped: bool, verdict: Verdict) -> Vec<Evidence> {
    let mut facts = Vec::from_iter(state.desired_evidence(row.target, is_stopped));
    match verdict {
        Verdict::Overdue => {
            facts.extend(row.overdue().map(Deadline::evidence));
            // The proof that it has not finished: an older report may have ended it.
            facts.extend(row.report.as_ref().map(Report::evidence));
        }
        Verdict::Incomplete => {
            facts.extend(row.report.as_ref().map(Report::evidence));
            facts.extend(state.ignorance(row));
        }
        Verdict::Waiting if !row.standing().is_some_and(is_at_work) => {
            facts.extend(row.report.as_ref().map(Report::evidence));
            facts.extend(state.knowledge(row));
        }
        // A row at work is progress while its device is heard, and waiting once the device is silent.
        Verdict::Progressing | Verdict::Waiting | Verdict::ConvergedStale | Verdict::Converged => {
            facts.extend(row.report.as_ref().map(Report::evidence));
            facts.extend(state.liveness_evidence());
            facts.extend(state.knowledge(row));
        }
        Verdict::Removing => {
            facts.extend(row.report.as_ref().map(Report::evidence));
            // If the device lost its memory since, and everything is known of it, nothing would be leaving.
            if row.report.as_ref().is_some_and(|report| Some(report.epoch) < state.context().epoch) {
                let ignorance = state.ignorance(row).into_iter();
                facts.extend(ignorance.filter(|fact| fact.kind != EvidenceKind::Liveness));
            }
        }
        Verdict::Empty | Verdict::Failing => facts.extend(row.report.as_ref().map(Report::evidence)),
    }
    facts
}

impl DeviceState {
    /// The evidence of the desired state for a deployment of this target, which is desired as stopped or as running.
    pub(super) fn desired_evidence(&self, target: Option<Generation>, is_stopped: bool) -> Option<Evidence> {
        let generation = self.desired()?;
        let says = match target {
            Some(target) if is_stopped => format!("is to keep it stopped since generation {target}"),
            Some(target) if target == generation => "is to run it".to_owned(),
            Some(target) => format!("is to run it, unchanged since generation {target}"),
            None => "no longer names it".to_owned(),
        };
        let evidence = Evidence::of(EvidenceKind::Desired, self.sources.desired.get(), says);
        Some(Evidence { generation: Some(generation), ..evidence })
    }

    /// None where the hub does not hear the partition of a device that was heard until then: that is the cause,
    /// which the answer names once.
    pub(super) fn liveness_evidence(&self) -> Option<Evidence> {
        if self.sources.liveness.get() == 0 || self.is_masked() {
            return None;
        }
        let says = match self.freshness() {
            Freshness::Fresh => "is heard",
            Freshness::Stale | Freshness::Never => "is silent",
        };
        let evidence = Evidence::of(EvidenceKind::Liveness, self.sources.liveness.get(), says.to_owned());
        Some(Evidence { at: self.heard_at(), ..evidence })
    }

    /// Why a row's standing is not known: reports that are not in, that cannot be read, or that the device cannot keep.
    pub(super) fn ignorance(&self, row: &Row) -> Vec<Evidence> {
        let (context, report) = (self.context(), row.report.as_ref());
        let mut facts = Vec::new();
        if !context.has_last(report) {
            facts.extend(self.head_evidence());
        }
        if context.doubts(report) {
            // A number means something only in the epoch that the device has spoken of.
            if !context.doubt.beyond && context.has_last(report) {
                facts.extend(self.head_evidence());
            }
            facts.extend(self.quarantine_evidence(context.doubt.seq));
        }
        if context.doubt.not_storing {
            let says =
                "reports that the device cannot store reports, or lost its database and has not reported since"
                    .to_owned();
            facts.push(Evidence::of(EvidenceKind::Liveness, self.sources.liveness.get(), says));
        }
        facts
    }

    /// Why a row's standing is known, where its last report does not say so itself.
    fn knowledge(&self, row: &Row) -> Vec<Evidence> {
        let (context, mut facts) = (self.context(), Vec::new());
        // In a first epoch without reports nothing needs to be known.
        let is_said = context.head > 0 || context.epoch.is_some_and(|epoch| epoch > Epoch::FIRST);
        if is_said && !context.says_it_is_last(row.report.as_ref()) {
            facts.extend(self.completeness_evidence());
        }
        if self.sources.doubt.get() > 0 {
            facts.push(self.settled_evidence(context.doubt));
        }
        facts
    }

    /// The fact that last changed the device's uncertainty, where this row is known despite it.
    fn settled_evidence(&self, doubt: Uncertainty) -> Evidence {
        let evidence = self.doubt_evidence();
        match doubt.seq {
            0 => evidence,
            seq => Evidence {
                says: format!("leaves report {seq} unknown; the last report of this deployment is newer"),
                ..evidence
            },
        }
    }

    /// The last report, or the last fact that says that there are no more.
    fn completeness_evidence(&self) -> Option<Evidence> {
        let epoch = self.seq_account.epoch()?;
        let says = match self.seq_account.head() {
            0 => format!("began epoch {epoch} without a report yet"),
            head => format!("completes {head} reports: none is missing"),
        };
        let Sources { head, gap, .. } = self.sources;
        let last = if gap.place.get() > head.place.get() { gap } else { head };
        Some(self.head_fact(last, says))
    }

    /// The message in quarantine that may be anything; else the one with this number.
    fn quarantine_evidence(&self, seq: u64) -> Option<Evidence> {
        if let Some(place) = self.ledger_seq_beyond() {
            let says = "sent an unreadable message, and has not reported its head since".to_owned();
            return Some(Evidence::of(EvidenceKind::Quarantine, place, says));
        }
        // In a flood the older messages are known by number only: then the fact with the number is named.
        let place = self.ledger_seq_of(seq).unwrap_or(self.sources.head.place.get());
        let says = format!("sent report {seq}, which is in quarantine: its content is unknown");
        let evidence = Evidence::of(EvidenceKind::Quarantine, place, says);
        Some(Evidence { epoch: self.seq_account.epoch(), seq: Seq::new(seq), ..evidence })
    }

    pub(super) fn head_evidence(&self) -> Option<Evidence> {
        let (head, missing) = (self.seq_account.head(), self.seq_account.missing());
        let says = match missing {
            0 if head == 0 => {
                format!("began epoch {} without a report of this deployment", self.seq_account.epoch()?)
            }
            0 => format!("has reported up to {head}, and none is missing"),
            _ => format!("has reported up to {head}; {missing} of these reports are missing"),
        };
        Some(self.head_fact(self.sources.head, says))
    }

    /// A fact of the current epoch that may be a report.
    fn head_fact(&self, source: Source, says: String) -> Evidence {
        let evidence = Evidence::of(EvidenceKind::Head, source.place.get(), says);
        Evidence { epoch: self.seq_account.epoch(), seq: source.seq(), ..evidence }
    }
}

impl DeviceState {
    /// The fact that last changed how many reports are missing.
    pub(super) fn gap_evidence(&self) -> Option<Evidence> {
        let (head, missing) = (self.seq_account.head(), self.seq_account.missing());
        let says = match missing {
            0 => format!("is the last of {head} reports to arrive"),
            _ => format!("leaves {missing} of {head} reports missing"),
        };
        Some(self.head_fact(self.sources.gap, says))
    }
}

impl DeviceState {
    /// The fact that last changed what of the device may be news and cannot be read.
    pub(super) fn doubt_evidence(&self) -> Evidence {
        let says = match self.context().doubt {
            Uncertainty { not_storing: true, .. } => {
                "leaves the device unable to store reports, or without a report since it lost its database"
                    .to_owned()
            }
            Uncertainty { beyond: true, .. } => {
                "leaves a message in quarantine that may be any report".to_owned()
            }
            Uncertainty { seq: 0, .. } => "leaves no report of the device unknown".to_owned(),
            Uncertainty { seq, .. } => format!("leaves reports unknown, the last of them {seq}"),
        };
        let evidence = Evidence::of(EvidenceKind::Quarantine, self.sources.doubt.get(), says);
        Evidence { epoch: self.seq_account.epoch(), ..evidence }
    }
}

impl Deadline {
    pub(super) fn evidence(&self) -> Evidence {
        let minutes = self.fact.limit_seconds / 60;
        let says = match self.fact.deadline {
            DeadlineKind::NeverStarted => format!("had not started after {minutes} min"),
            DeadlineKind::Stuck => format!("had not finished after {minutes} min"),
        };
        let evidence = Evidence::of(EvidenceKind::Deadline, self.ledger_seq, says);
        Evidence { generation: Some(self.fact.generation), at: Some(self.fact.since), ..evidence }
    }
}

impl Report {
    pub(super) fn evidence(&self) -> Evidence {
        let shown = self.shown(Output::Summary);
        Evidence {
            generation: Some(self.generation),
            epoch: Some(self.epoch),
            seq: Some(self.seq),
            at: Some(shown.observed_at),
            ..Evidence::of(EvidenceKind::Status, shown.ledger_seq, self.summary())
        }
    }

    /// The report's state with its error; for a retry also the attempt, since when, and the last error.
    pub(super) fn summary(&self) -> String {
        let state = self.state.as_str();
        match (self.worst_retry(), self.failure()) {
            (None, None) => format!("is {state}"),
            (None, Some(failure)) => format!("is {state}: {failure}"),
            (Some(retry), Some(failure)) => format!("is {state} ({}): {failure}", retry.summary()),
            (Some(retry), None) => {
                let error = ReportError::of_retry(retry);
                format!("is {state} ({}): last error {}", retry.summary(), error.words())
            }
        }
    }

    /// Its first error as code, component and message.
    pub(super) fn failure(&self) -> Option<String> {
        let errors = self.errors();
        let error = errors.first().filter(|_| self.state == State::Failed)?;
        Some(error.words())
    }
}

impl ReportError<'_> {
    /// Code, component and message.
    fn words(&self) -> String {
        let component = self.component.map(|name| format!(" in {name}")).unwrap_or_default();
        format!("{}{component}: {}", self.code, self.message)
    }
}

#[cfg(test)]
mod tests {
    use muster_contract::fact::Fact;
    use muster_contract::subjects::LedgerSubject;

    use super::super::fleet::Position;
    use super::*;

    /// Devices with the target `web`, of which only the last has failed.
    fn fleet(devices: usize) -> Fleet {
        let mut fleet = Fleet::default();
        let mut fold = |kind: &str, name: String, body: String| {
            let subject = LedgerSubject::parse(&format!("muster.{kind}.{name}")).unwrap();
            let ledger_seq = fleet.as_of().ledger_seq + 1;
            let at = Position { ledger_seq, stored_at: muster_contract::Timestamp::UNIX_EPOCH };
            fleet.apply(at, &subject, Fact::parse(&subject, body.as_bytes()).unwrap());
        };
        let digest = "sha256:e9657e5ecece5d103f3901c3ca1262e6c54958a73a82aa4aff849dafb62ca87e";
        for device in 0..devices {
            fold(
                "desired",
                format!("site.device-{device:06}"),
                format!(
                    r#"{{"apiVersion":"muster/v1","kind":"DesiredState","generation":1,"issuedAt":"2026-11-20T08:00:00Z","source":{{"kind":"git","revision":"c1"}},"deployments":[{{"id":"web","name":"web","applicationId":"com.example.app","profile":{{"type":"simulated","components":[{{"name":"main","properties":{{}}}}]}},"digest":"{digest}","targetGeneration":1}}]}}"#
                ),
            );
        }
        fold(
            "status",
            format!("site.device-{:06}.web", devices - 1),
            format!(
                r#"{{"apiVersion":"muster/v1","kind":"StatusFact","epoch":1,"seq":1,"head":1,"observedAt":"2026-11-20T08:00:00Z","deployment":"web","generation":1,"digest":"{digest}","status":{{"state":"failed"}},"components":[{{"name":"main","state":"failed"}}],"current":true,"receivedAt":"2026-11-20T08:00:01Z","origin":"push","fidelity":"event"}}"#
            ),
        );
        fleet
    }

    #[test]
    fn one_answer_visits_boundedly_many_devices_and_pages_find_all() {
        let (fleet, web) = (fleet(WHY_LOOKED_AT_MAX + 2), "web".parse().unwrap());
        let first = fleet.why(&web, None, &Page { after: None, limit: 10 }).unwrap();
        assert_eq!((first.verdict, first.because, first.standings.len()), (Verdict::Failing, 1, 0));
        let last_looked_at = format!("site/device-{:06}", WHY_LOOKED_AT_MAX - 1);
        assert_eq!(first.next.as_ref(), Some(&last_looked_at));
        let after = Some(last_looked_at.parse().unwrap());
        let second = fleet.why(&web, None, &Page { after, limit: 10 }).unwrap();
        assert_eq!((second.standings.len(), second.next), (1, None));
    }
}
