//! Merges the status answers of several hubs: ordered, paged lines and the roll-up, as one hub with all the
//! sites would give them. The caller selects the hubs and the questions.
//!
//! Where hubs keep counts of everything that passes, those counts are added. Any other roll-up is computed from
//! the lines of the page, because a hub's page may have lines for which this page has no room.

use std::collections::BTreeMap;

use muster_contract::canonical::Digest;
use muster_contract::manifest::Manifest;
use muster_contract::pulse::HubHearing;
use muster_contract::query::Output;
use muster_contract::status::{
    AppStatus, Axis, LOOKED_AT_MAX, Rollup, StatusAnswer, StatusQuery, TargetStatus, place_of,
};
use muster_contract::view::{ErrorCount, Verdict};
use muster_contract::{DeploymentId, HubName};

use super::super::status::{CursorError, StatusCursor, verdict_of};
use super::super::tally::Group;
use super::Merge;
use super::hearing::hearing_of;
use super::pages::Pages;

/// The merged answers of the hubs to one question.
#[derive(Debug)]
pub struct StatusSum<'q> {
    query: &'q StatusQuery,
    lines: Pages<TargetStatus>,
    manifests: BTreeMap<Digest, Manifest>,
    parts: Vec<(HubName, Rollup)>,
    whole: bool,
    hearing: Vec<(HubName, HubHearing)>,
}

impl<'q> StatusSum<'q> {
    /// An empty sum for this question, with at most so many lines.
    pub const fn new(query: &'q StatusQuery, limit: usize) -> Self {
        Self {
            query,
            lines: Pages::new(limit),
            manifests: BTreeMap::new(),
            parts: Vec::new(),
            whole: true,
            hearing: Vec::new(),
        }
    }

    /// Applies a hub's answer, hubs in the order of their names.
    ///
    /// # Errors
    /// The answer's cursor is unreadable.
    pub fn add_answer(&mut self, hub: &HubName, answer: StatusAnswer) -> Result<(), CursorError> {
        let end = answer.next.as_deref().map(str::parse::<StatusCursor>).transpose()?;
        self.lines.add_page(answer.targets, end);
        self.manifests.extend(answer.manifests);
        self.parts.push((hub.clone(), answer.rollup));
        self.whole &= answer.whole;
        self.hearing.push((hub.clone(), answer.hub));
        Ok(())
    }

    /// False where a hub has counted only a part of what passes: counts without lines are a sum of all or none.
    pub const fn is_whole(&self) -> bool {
        self.whole
    }

    /// How many lines it has.
    pub const fn lines(&self) -> usize {
        self.lines.len()
    }

    /// The answer with at most so many lines. `shown` may be less than the hubs were asked for: then the
    /// further lines are counted only.
    pub fn answer(&self, merge: &Merge, shown: Output, most: usize) -> StatusAnswer {
        let Self { query, .. } = self;
        let kept = query.is_of_places();
        let (lines, end) = self.lines.cut(most);
        let added = kept || query.output == Output::Summary;
        let rollup = if added { self.added(merge, kept) } else { Rollup::of_lines(lines, query.status) };
        let whole = kept || (query.after.is_none() && end.is_none());
        let total = rollup.targets + rollup.leaving + rollup.superseded;
        let lines = if shown == Output::Summary { &[] } else { lines };
        let shown_line = |line: &TargetStatus| match shown {
            Output::Brief => TargetStatus { components: Vec::new(), ..line.clone() },
            _ => line.clone(),
        };
        let mut answer = StatusAnswer {
            as_of: merge.as_of(),
            deployment: query.id.clone(),
            generation: query.generation,
            verdict: query.id.as_ref().filter(|_| whole).and_then(|_| verdict_of(&rollup)),
            whole,
            rollup,
            hub: hearing_of(&self.hearing),
            apps: apps_of(lines, query.status),
            manifests: self.manifests_of(lines),
            manifests_left_out: 0,
            targets: lines.iter().map(shown_line).collect(),
            total: whole.then_some(total),
            next: end.map(|end| end.to_string()),
        };
        if query.output == Output::Detail {
            answer.declare_manifests();
        }
        answer
    }

    /// The manifests of these lines, as far as their hubs sent them.
    fn manifests_of(&self, lines: &[TargetStatus]) -> BTreeMap<Digest, Manifest> {
        let digests = lines.iter().filter_map(|line| line.digest);
        let told = digests.filter_map(|digest| Some((digest, self.manifests.get(&digest)?.clone())));
        told.collect()
    }

    /// The sum of the hubs' roll-ups. Where messages name a place, the first of the equally bad ones in the
    /// order of lines is used; where counts are kept, the message is about the whole.
    fn added(&self, merge: &Merge, kept: bool) -> Rollup {
        let mut parts: Vec<&(HubName, Rollup)> = self.parts.iter().collect();
        if !kept {
            parts.sort_by_cached_key(|(_, part)| part.message.as_deref().and_then(place_of));
        }
        let mut sum = Rollup::nothing(self.query.status);
        parts.into_iter().for_each(|(hub, part)| sum.merge(&named(hub, part, kept)));
        if kept {
            sum.message = self.words(merge, &sum);
        }
        sum
    }

    /// The message for kept counts. Only the site's hub knows how often an error occurs there.
    fn words(&self, merge: &Merge, sum: &Rollup) -> Option<String> {
        let group = Group::of_rollup(sum);
        let verdict = group.verdict();
        match verdict {
            Verdict::Empty => None,
            Verdict::Failing if self.query.site.is_empty() => {
                merge.worst_error(self.query.id.as_ref(), sum.targets).or_else(|| sum.message.clone())
            }
            Verdict::Failing => sum.message.clone(),
            _ => Some(verdict.words(group.heard())),
        }
    }
}

/// A hub's roll-up; its message names the hub where counts are kept.
fn named(hub: &HubName, part: &Rollup, kept: bool) -> Rollup {
    let mut part = part.clone();
    if kept {
        part.message = part.message.map(|words| format!("at the hub {hub}: {words}"));
    }
    part
}

/// A roll-up of the lines of each application.
pub(super) fn apps_of(lines: &[TargetStatus], axis: Option<Axis>) -> Vec<AppStatus> {
    let mut apps: BTreeMap<Option<&str>, Vec<&TargetStatus>> = BTreeMap::new();
    lines.iter().for_each(|line| apps.entry(line.app.as_deref()).or_default().push(line));
    let status = |(app, lines): (Option<&str>, Vec<_>)| AppStatus {
        app: app.map(str::to_owned),
        rollup: Rollup::of_lines(lines, axis),
    };
    apps.into_iter().map(status).collect()
}

impl Merge {
    /// The most frequent error of a deployment, or of any, in words: as one hub with all sites has them, with as many looks.
    fn worst_error(&self, id: Option<&DeploymentId>, targets: u64) -> Option<String> {
        let ids = id.map_or_else(|| self.deployment_ids().into_iter().collect(), |id| vec![id]);
        let (mut looks, mut worst) = (LOOKED_AT_MAX, None);
        for each in ids {
            // One without an error costs a look too.
            let Some(left) = looks.checked_sub(1) else { break };
            let errors = self.errors_of(each);
            looks = left.saturating_sub(errors.len());
            for error in errors.into_values().take(left) {
                if worst.as_ref().is_none_or(|(_, held): &(_, ErrorCount)| error.count > held.count) {
                    worst = Some((each, error));
                }
            }
        }
        let (each, ErrorCount { code, count, example }) = worst?;
        let least = if looks == 0 { "at least " } else { "" };
        let of = match id {
            Some(_) => format!("on {least}{count} of {targets}"),
            None => format!("of {each} on {least}{count}"),
        };
        Some(format!("{code} {of}, such as {}: {}", example.device, example.message))
    }
}
