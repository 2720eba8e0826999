//! Builds the `message` of a view: the reason for its verdict as a text. It follows from the rest of the view, and no digest
//! covers it.

use super::{Counts, DeploymentView, ErrorCount, ErrorExample, Split, Tally, Verdict};

impl DeploymentView {
    /// Its `message`: the most frequent error if it is failing, otherwise the verdict's rule.
    pub fn words(&self) -> String {
        match (self.verdict, self.errors.first()) {
            (Verdict::Failing, Some(ErrorCount { code, count, example })) => {
                let ErrorExample { device, message, .. } = example;
                format!("{code} on {count} of {}, such as {device}: {message}", self.targets)
            }
            _ => self.verdict.words(by_freshness(&self.counts)),
        }
    }
}

impl Tally {
    /// Its `message`: the number of deployments with the first verdict, and that verdict's rule.
    pub fn words(&self) -> String {
        let Some((verdict, count)) = self.deployments.first_key_value() else { return String::new() };
        let (of, targets) = (self.deployments.values().sum::<u64>(), by_freshness(&self.counts));
        format!("{count} of {of} deployments {}: {}", verdict.as_str(), verdict.words(targets))
    }
}

/// Targets by freshness.
fn by_freshness(counts: &Counts) -> Split {
    counts.values().fold(Split::default(), |sum, split| Split {
        fresh: sum.fresh.saturating_add(split.fresh),
        stale: sum.stale.saturating_add(split.stale),
        never: sum.never.saturating_add(split.never),
    })
}
