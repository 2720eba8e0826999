//! Parses counts from another hub, accepting only counts that add up, and degrades them when that hub is no
//! longer heard.

use muster_contract::parts::{HUB_STANDINGS_MAX, HUBS_MAX};
use muster_contract::standing_part::StandingPart;
use muster_contract::status::Rollup;
use muster_contract::view::{Complete, Freshness, Split, Standing};

use super::super::evidence_table::EvidenceTable;
use super::{Devices, Group};

/// Why a part is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadPart {
    /// Its numbers contradict each other.
    #[error("its counts do not add up")]
    Counts,
    /// The counts exceed the limit of a sum.
    #[error(
        "it has more than {HUB_STANDINGS_MAX} standings or devices, which is more than a sum of hubs can hold"
    )]
    Size,
    /// The part belongs to another kind of view.
    #[error("it is of another kind than its key")]
    Kind,
    /// It does not go on where the part held of it ends.
    #[error("it begins after rows that are not held")]
    Rows,
}

impl Group {
    /// The counts of a document.
    ///
    /// # Errors
    /// They do not add up, or are more than may be added.
    pub(in crate::fold) fn read(part: &StandingPart) -> Result<Self, BadPart> {
        let within = |count: u64| number(count);
        let (known, missing) = (within(part.complete.devices)?, bounded(part.complete.missing_reports)?);
        let (targets, confirmed_installed, hi) =
            (within(part.targets)?, within(part.converged.lo)?, within(part.converged.hi)?);
        let mut group = Self {
            targets,
            leaving: within(part.leaving)?,
            overdue: within(part.overdue)?,
            retried: within(part.retried.targets)?,
            attempts: bounded(part.retried.attempts)?,
            known,
            confirmed_installed,
            confirmed_failed: targets.checked_sub(hi).ok_or(BadPart::Counts)?,
            missing,
            evidence: EvidenceTable::read(&part.evidence).ok_or(BadPart::Counts)?,
            ..Self::default()
        };
        for (standing, split) in &part.counts {
            group.counts[*standing as usize] = read_split(*split)?;
        }
        let all: u64 = group.counts.as_flattened().iter().map(|count| u64::from(*count)).sum();
        let installed = group.counts[Standing::Installed as usize][Freshness::Fresh as usize];
        let failed = group.counts[Standing::Failed as usize].iter().sum();
        let adds_up = all == part.targets
            && part.complete.of == part.targets
            && known <= targets
            && group.overdue <= targets
            && group.retried <= targets
            && u64::from(group.retried) <= group.attempts
            && confirmed_installed <= known.min(installed)
            && group.confirmed_failed <= known.min(failed)
            && group.evidence.total() <= part.targets
            && group.verdict() == part.verdict;
        if adds_up { Ok(group) } else { Err(BadPart::Counts) }
    }

    /// The part of the counts that a roll-up contains: enough for a verdict.
    pub(in crate::fold) fn of_rollup(rollup: &Rollup) -> Self {
        let within = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        let mut group = Self {
            targets: within(rollup.targets),
            leaving: within(rollup.leaving),
            overdue: within(rollup.overdue),
            known: within(rollup.known),
            ..Self::default()
        };
        for (standing, split) in &rollup.counts {
            group.counts[*standing as usize] = [split.fresh, split.stale, split.never].map(within);
        }
        group
    }

    /// The same for a hub that is not heard: no device is heard or known.
    #[must_use]
    pub(in crate::fold) fn unheard(mut self) -> Self {
        self.counts.iter_mut().for_each(silence);
        Self { known: 0, confirmed_installed: 0, confirmed_failed: 0, ..self }
    }
}

impl Devices {
    /// The counts of a document.
    ///
    /// # Errors
    /// They do not add up, or are more than may be added.
    pub(in crate::fold) fn read(devices: Split, complete: Complete) -> Result<Self, BadPart> {
        let known = number(complete.devices)?;
        if complete.of != devices.total() || complete.devices > complete.of {
            return Err(BadPart::Counts);
        }
        Ok(Self { by_freshness: read_split(devices)?, complete: known, missing: complete.missing_reports })
    }

    /// The same of a hub that is not heard.
    #[must_use]
    pub(in crate::fold) fn unheard(mut self) -> Self {
        silence(&mut self.by_freshness);
        Self { complete: 0, ..self }
    }
}

/// Devices that were heard no longer are.
fn silence(by_freshness: &mut [u32; 3]) {
    let heard = std::mem::take(&mut by_freshness[Freshness::Fresh as usize]);
    by_freshness[Freshness::Stale as usize] += heard;
}

fn read_split(split: Split) -> Result<[u32; 3], BadPart> {
    number(split.fresh.saturating_add(split.stale).saturating_add(split.never))?;
    let mut counts = [0; 3];
    counts[Freshness::Fresh as usize] = number(split.fresh)?;
    counts[Freshness::Stale as usize] = number(split.stale)?;
    counts[Freshness::Never as usize] = number(split.never)?;
    Ok(counts)
}

/// So that the sum over all hubs stays within its type.
fn bounded(count: u64) -> Result<u64, BadPart> {
    if count <= u64::MAX / HUBS_MAX as u64 { Ok(count) } else { Err(BadPart::Size) }
}

fn number(count: u64) -> Result<u32, BadPart> {
    match u32::try_from(count) {
        Ok(count) if u64::from(count) <= HUB_STANDINGS_MAX => Ok(count),
        _ => Err(BadPart::Size),
    }
}
