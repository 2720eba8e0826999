//! What a trial was and how it ended: one JSON object, or a page for people.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::tally::Accounting;

/// The closing object of `muster-simulator chaos --json`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// True where everything held.
    pub held: bool,
    /// Ctrl-C came before the end: then nothing was judged.
    pub cut_short: bool,
    /// Seed of the schedule.
    pub seed: u64,
    /// How long faults went on.
    pub seconds: u64,
    /// Agents.
    pub agents: usize,
    /// Sites.
    pub sites: usize,
    /// What was done, by kind.
    pub faults: BTreeMap<String, u64>,
    /// The accounting over all devices, as the hub has it.
    pub reports: Accounting,
    /// Facts of all kinds in LEDGER.
    pub facts: u64,
    /// Report numbers that are nowhere.
    pub lost: u64,
    /// Report numbers that are in LEDGER twice.
    pub duplicated: u64,
    /// Views that somebody who followed them saw written; none went back in time.
    pub views_seen: u64,
    /// Incidents that the hub recorded, by type.
    pub incidents: BTreeMap<&'static str, u64>,
    /// Writes that agents could not make because a disk was full, as their logs say.
    pub full_disk_writes: u64,
    /// Time from the end of the faults until the fleet was at rest.
    pub converged_after_ms: Option<u64>,
    /// What is not as it must be.
    pub differences: Vec<String>,
    /// The command that plays the same trial again.
    pub replay: String,
    /// Where the logs are.
    pub logs: String,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match (self.held, self.cut_short) {
            (true, _) => "HELD",
            (false, true) => "CUT SHORT",
            (false, false) => "FAILED",
        };
        let Self { seed, seconds, agents, sites, .. } = self;
        writeln!(f, "chaos {verdict}: {agents} agents at {sites} sites, {seconds} s of faults, seed {seed}")?;
        let faults: Vec<_> = self.faults.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
        writeln!(f, "  faults     {}", faults.join(", "))?;
        let Accounting { head, received, coalesced, quarantined, missing } = self.reports;
        writeln!(
            f,
            "  reports    {head} sent: {received} received, {coalesced} coalesced, {quarantined} quarantined, {missing} missing"
        )?;
        let Self { facts, lost, duplicated, views_seen, .. } = self;
        writeln!(
            f,
            "  ledger     {facts} facts, {lost} lost, {duplicated} duplicated; {views_seen} views followed"
        )?;
        let incidents: Vec<_> =
            self.incidents.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
        let incidents = if incidents.is_empty() { "none".to_owned() } else { incidents.join(", ") };
        writeln!(f, "  incidents  {incidents}")?;
        writeln!(f, "  full disk  {} writes failed for want of room", self.full_disk_writes)?;
        if let Some(after) = self.converged_after_ms {
            writeln!(f, "  at rest    {:.1} s after the last fault", after as f64 / 1000.0)?;
        }
        for difference in &self.differences {
            writeln!(f, "  DIFFERENT  {difference}")?;
        }
        if !self.held {
            writeln!(f, "  replay     {}\n  logs       {}", self.replay, self.logs)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_says_what_differs_and_how_to_play_it_again() {
        let summary = Summary {
            held: false,
            cut_short: false,
            seed: 7,
            seconds: 60,
            agents: 20,
            sites: 4,
            faults: BTreeMap::from([("kill.server".to_owned(), 3)]),
            reports: Accounting::default(),
            facts: 0,
            lost: 1,
            duplicated: 0,
            views_seen: 40,
            incidents: BTreeMap::new(),
            full_disk_writes: 2,
            converged_after_ms: None,
            differences: vec!["site-1/device-1: 3 reports are not sent".to_owned()],
            replay: "make chaos CHAOS_SEED=7".to_owned(),
            logs: "/logs".to_owned(),
        };
        let text = summary.to_string();
        for part in ["FAILED", "seed 7", "kill.server 3", "1 lost", "not sent", "CHAOS_SEED=7", "/logs"] {
            assert!(text.contains(part), "{part} is not in:\n{text}");
        }
    }
}
