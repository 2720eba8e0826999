//! Merges the proofs of a deployment's verdict from several hubs, as one hub with all the sites would give
//! them. The caller selects the hubs.
//!
//! A rule holds over the whole if it holds at one hub, so the whole's verdict is the first in rule order that
//! any hub has, and the facts that prove it are at the hubs with that verdict. A hub that is not heard is
//! judged by its counts; only that hub could name its facts.

use muster_contract::query::Query;
use muster_contract::view::{AsOf, Verdict};
use muster_contract::why::{Because, WhyAnswer, WhyHub};
use muster_contract::{DeploymentId, DeviceKey, HubName};

use super::super::refused::by_code;
use super::super::tally::Group;
use super::super::verdict::together;
use super::answer::silent;
use super::hearing::hearing;
use super::hub::Hub;
use super::pages::Pages;
use super::{Merge, sum_of};

/// The question and its subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhyAsked {
    /// All standings of a deployment.
    Everywhere,
    /// Those at a site.
    Site,
    /// The one on a device.
    Device,
}

impl WhyAsked {
    /// The subject of the question.
    pub fn of(query: &Query) -> Self {
        match (&query.device, query.site.only()) {
            (Some(_), _) => Self::Device,
            (None, Some(_)) => Self::Site,
            (None, None) => Self::Everywhere,
        }
    }
}

/// The hubs' answers, merged into one.
#[derive(Debug)]
pub struct WhySum {
    /// Without standings.
    bare: WhyAnswer,
    lines: Pages<Because>,
}

/// A hub's contribution for the deployment: its answer, or its counts.
struct HubAnswer<'a> {
    name: &'a HubName,
    hub: &'a Hub,
    counts: Group,
    verdict: Verdict,
    answer: Option<&'a WhyAnswer>,
}

impl Merge {
    /// The proof with at most so many standings, from the answers of the hubs asked; a hub without an answer
    /// has nothing. A hub that was not asked is judged by its counts. None where no hub has the deployment.
    ///
    /// # Errors
    /// The cursor in the answer of this hub is unreadable.
    pub fn why(
        &self,
        id: &DeploymentId,
        asked: WhyAsked,
        limit: usize,
        answers: Vec<(HubName, Option<WhyAnswer>)>,
    ) -> Result<Option<WhySum>, HubName> {
        let told: Vec<HubAnswer<'_>> =
            self.hubs.iter().map(|(name, hub)| HubAnswer::of(id, name, hub, &answers)).collect();
        let verdict = told.iter().map(|told| told.verdict).fold(Verdict::Empty, together);
        if verdict == Verdict::Empty {
            return Ok(None);
        }
        let bare = bare(id, verdict, asked, &told);
        let mut lines = Pages::new(limit);
        for (hub, answer) in answers.into_iter().filter_map(|(hub, answer)| Some((hub, answer?))) {
            // The facts of a hub's own, different verdict prove nothing about the whole.
            if answer.verdict == verdict || asked == WhyAsked::Device {
                let next = answer.next.as_deref().map(str::parse::<DeviceKey>);
                let next = next.transpose().map_err(|_| hub.clone())?;
                lines.add_page(named(&hub, answer.standings), next);
            }
        }
        Ok(Some(WhySum { bare, lines }))
    }
}

impl<'a> HubAnswer<'a> {
    fn of(
        id: &DeploymentId,
        name: &'a HubName,
        hub: &'a Hub,
        answers: &'a [(HubName, Option<WhyAnswer>)],
    ) -> Self {
        let counts = hub.deployments.get(id).map(|counts| hub.as_heard(counts.group)).unwrap_or_default();
        let asked = answers.iter().find(|(asked, _)| asked == name);
        let answer = asked.and_then(|(_, answer)| answer.as_ref());
        let verdict = match (asked, answer) {
            (_, Some(answer)) => answer.verdict,
            (Some(_), None) => Verdict::Empty,
            (None, None) => counts.verdict(),
        };
        Self { name, hub, counts, verdict, answer }
    }

    /// Its standings that make the rule of a verdict hold, and of how many, where that is asked.
    fn because(&self, verdict: Verdict, asked: WhyAsked) -> (u64, u64) {
        let Some(answer) = self.answer else {
            return self.counted(verdict);
        };
        let because = if self.verdict == verdict { answer.because } else { 0 };
        // Devices that a hub is leaving are no targets; one named device always counts as one.
        let leaves = self.verdict == Verdict::Removing && verdict != Verdict::Removing;
        let of = if leaves && asked != WhyAsked::Device { 0 } else { answer.of };
        (because, of)
    }

    /// How many of those are heard, where all of them are targets. None where a service is so old that it does not say.
    fn fresh(&self, asked: WhyAsked) -> Option<u64> {
        match self.answer {
            Some(_) if self.verdict == Verdict::Removing && asked != WhyAsked::Device => Some(0),
            Some(answer) => answer.fresh,
            None if self.verdict == Verdict::Empty => Some(0),
            None => Some(self.counts.heard().fresh),
        }
    }

    /// The same by its counts, wherever at the hub they are.
    fn counted(&self, verdict: Verdict) -> (u64, u64) {
        let of = match verdict {
            Verdict::Removing => self.counts.leaving(),
            _ => self.counts.targets(),
        };
        if self.verdict == Verdict::Empty { (0, 0) } else { (self.counts.because(verdict), of) }
    }

    fn as_of(&self) -> Option<AsOf> {
        self.answer.map(|answer| answer.as_of).or(self.hub.as_of)
    }

    fn shown(&self, verdict: Verdict, asked: WhyAsked) -> WhyHub {
        // An answer about a place has counted that place alone.
        let (because, _) = match asked {
            WhyAsked::Everywhere => self.because(verdict, asked),
            WhyAsked::Site | WhyAsked::Device => self.counted(verdict),
        };
        WhyHub {
            name: self.name.clone(),
            as_of: self.as_of(),
            verdict: self.verdict,
            because,
            heard: self.hub.heard,
            heard_at: self.hub.heard_at.filter(|_| !self.hub.heard),
        }
    }
}

impl WhySum {
    /// How many standings it has.
    pub const fn lines(&self) -> usize {
        self.lines.len()
    }

    /// The answer with at most so many standings.
    pub fn answer(&self, most: usize) -> WhyAnswer {
        let (standings, next) = self.lines.cut(most);
        WhyAnswer {
            standings: standings.to_vec(),
            next: next.map(|next| next.to_string()),
            ..self.bare.clone()
        }
    }
}

fn bare(id: &DeploymentId, verdict: Verdict, asked: WhyAsked, told: &[HubAnswer<'_>]) -> WhyAnswer {
    // A question about a place counts that place; otherwise everything of every hub counts.
    let counted = told.iter().filter(|told| asked == WhyAsked::Everywhere || told.answer.is_some());
    let counts = counted.clone().map(|told| told.because(verdict, asked));
    let (because, of) =
        counts.fold((0, 0), |sum: (u64, u64), of| (sum.0.saturating_add(of.0), sum.1.saturating_add(of.1)));
    let is_left = verdict == Verdict::Removing && asked != WhyAsked::Device;
    let fresh: Option<u64> = counted.clone().map(|told| told.fresh(asked)).sum();
    let sites = counted.clone().filter_map(|told| match told.answer {
        Some(answer) => Some(&answer.silent_sites),
        None => told.hub.deployments.get(id).map(|counts| &counts.silent_sites),
    });
    let unheard = counted.clone().filter_map(|told| match told.answer {
        Some(answer) => Some((told.name, &answer.hub)),
        None => told.hub.deployments.get(id).map(|counts| (told.name, &counts.hearing)),
    });
    let unheard = hearing(unheard);
    let hubs = told.iter().filter(|told| told.verdict != Verdict::Empty);
    WhyAnswer {
        as_of: sum_of(told.iter().filter_map(HubAnswer::as_of)),
        deployment: id.clone(),
        verdict,
        rule: verdict.rule().to_owned(),
        because,
        of,
        fresh: fresh.filter(|_| !is_left),
        hub: unheard,
        silent_sites: silent(sites),
        refused: by_code(
            counted.filter_map(|told| told.answer).flat_map(|answer| answer.refused.iter().cloned()),
        ),
        hubs: hubs.map(|told| told.shown(verdict, asked)).collect(),
        standings: Vec::new(),
        next: None,
    }
}

/// The same standings, whose facts say whose LEDGER they are in.
fn named(hub: &HubName, mut standings: Vec<Because>) -> Vec<Because> {
    let facts = standings.iter_mut().flat_map(|because| &mut because.facts);
    facts.for_each(|fact| fact.hub = Some(hub.clone()));
    standings
}
