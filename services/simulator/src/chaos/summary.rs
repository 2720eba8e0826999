//! The summary of a run: one JSON object, or a page for people. The run counts every number in it.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::activity::Takeovers;
use super::secured::HubSecurity;
use crate::result::Accounting;

/// The closing object of `muster-simulator chaos --json`.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// True where everything was checked and no violation was found.
    pub held: bool,
    /// Ctrl-C came before the end: then nothing was checked.
    pub cut_short: bool,
    /// Seed of the schedule.
    pub seed: u64,
    /// How long faults went on.
    pub seconds: u64,
    /// Sites.
    pub sites: usize,
    /// Whether the server demanded credentials and TLS, as its greeting said after the faults.
    pub hub: HubSecurity,
    /// Processes by role.
    pub roles: BTreeMap<&'static str, usize>,
    /// Agents whose runtime is `process`.
    pub process_agents: usize,
    /// Real processes that these agents ran at the end.
    pub workloads: u64,
    /// Faults that were carried out, by kind.
    pub faults: BTreeMap<String, u64>,
    /// Takeovers by standbys.
    pub takeovers: Takeovers,
    /// From the kill of an owner on the calm hub until the other ingest owned all partitions.
    pub takeover_ms: Option<u64>,
    /// Deployments on devices that were reported in a crash loop, and were real processes.
    pub real_crash_loops: u64,
    /// All deployments on devices that were reported in a crash loop.
    pub crash_loops: u64,
    /// The accounting over all devices, as the hub has it.
    pub reports: Accounting,
    /// Facts of all kinds in LEDGER.
    pub facts: u64,
    /// Report numbers that are nowhere.
    pub lost: u64,
    /// Report numbers that are in LEDGER twice.
    pub duplicated: u64,
    /// Views that the monitor saw written.
    pub views_seen: u64,
    /// Incidents that the hub recorded, by type.
    pub incidents: BTreeMap<&'static str, u64>,
    /// Decisions about rollouts of the governed site that the publisher had recorded at the end, by verb.
    pub decisions: BTreeMap<&'static str, u64>,
    /// Requests about the plan while everything broke: those that the planner accepted, by kind, those that it refused, and those
    /// that had no answer.
    pub plan_requests: BTreeMap<String, u64>,
    /// Agents with a small disk of their own.
    pub mounted_disks: usize,
    /// Agents for which a limit of file sizes stood for a small disk, because nobody may mount one.
    pub limited_disks: usize,
    /// Writes that agents could not make because a disk was full, as their logs say.
    pub full_disk_writes: u64,
    /// Time from the last commit, after the faults, until the fleet was at rest.
    pub converged_after_ms: Option<u64>,
    /// The violations found.
    pub violations: Vec<String>,
    /// The command that repeats the schedule.
    pub replay: String,
    /// Where the logs are.
    pub logs: String,
}

impl Summary {
    /// Faults whose kind begins with this.
    pub(crate) fn faults_of(&self, prefix: &str) -> u64 {
        self.faults.iter().filter(|(kind, _)| kind.starts_with(prefix)).map(|(_, count)| count).sum()
    }

    /// Processes of all roles.
    pub fn processes(&self) -> usize {
        self.roles.values().sum()
    }

    fn verdict(&self) -> &'static str {
        match (self.held, self.cut_short) {
            (true, _) => "HELD",
            (false, true) => "CUT SHORT",
            (false, false) => "FAILED",
        }
    }

    fn write_faults(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [kills, freezes, ends, links] =
            ["kill.", "freeze.", "terminate.", "link."].map(|prefix| self.faults_of(prefix));
        writeln!(
            f,
            "  faults      {kills} kills (SIGKILL), {freezes} freezes (SIGSTOP), {ends} ends (SIGTERM), {links} link faults"
        )?;
        writeln!(f, "  by kind     {}", list(&self.faults))
    }

    fn write_takeovers(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Takeovers { ingest, partitions, rollup_outages, rollup } = self.takeovers;
        let takeover =
            self.takeover_ms.map_or("not measured".to_owned(), |ms| format!("{:.1} s", ms as f64 / 1000.0));
        writeln!(
            f,
            "  takeovers   {ingest} of ingest with {partitions} partitions (after a kill on the calm hub: {takeover}); the other \
             rollup wrote views in {rollup} of {rollup_outages} outages"
        )
    }

    fn write_reports(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Accounting { head, received, coalesced, quarantined, missing } = self.reports;
        writeln!(
            f,
            "  reports     {head} sent: {received} received, {coalesced} coalesced, {quarantined} quarantined, {missing} missing"
        )?;
        let Self { facts, lost, duplicated, views_seen, .. } = self;
        writeln!(
            f,
            "  ledger      {facts} facts, {lost} lost, {duplicated} duplicated; {views_seen} views followed"
        )?;
        writeln!(f, "  incidents   {}", list(&self.incidents))?;
        writeln!(f, "  rollouts    decisions: {}", list(&self.decisions))?;
        writeln!(f, "  plan        requests: {}", list(&self.plan_requests))
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, seconds, sites, process_agents, workloads, .. } = self;
        writeln!(f, "chaos {}: {seconds} s of faults at {sites} sites, seed {seed}", self.verdict())?;
        writeln!(f, "  hub         {}", self.hub)?;
        writeln!(f, "  processes   {}: {}", self.processes(), list(&self.roles))?;
        writeln!(f, "  workloads   {process_agents} agents ran real processes, {workloads} at the end")?;
        self.write_faults(f)?;
        self.write_takeovers(f)?;
        writeln!(
            f,
            "  crash loops {} deployments on devices, {} of them real processes",
            self.crash_loops, self.real_crash_loops
        )?;
        self.write_reports(f)?;
        writeln!(
            f,
            "  full disk   {} writes failed, on {} disks and {} file size limits in place of one",
            self.full_disk_writes, self.mounted_disks, self.limited_disks
        )?;
        if let Some(after) = self.converged_after_ms {
            writeln!(f, "  at rest     {:.1} s after the last commit", after as f64 / 1000.0)?;
        }
        writeln!(f, "  violations  {}", self.violations.len())?;
        for violation in &self.violations {
            writeln!(f, "  VIOLATION   {violation}")?;
        }
        if !self.held {
            writeln!(f, "  replay      {}\n  logs        {}", self.replay, self.logs)?;
        }
        Ok(())
    }
}

fn list<K: fmt::Display, V: fmt::Display>(counts: &BTreeMap<K, V>) -> String {
    let counts: Vec<_> = counts.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    if counts.is_empty() { "none".to_owned() } else { counts.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_its_violations_and_the_command_that_repeats_it() {
        let summary = Summary {
            seed: 7,
            seconds: 60,
            sites: 4,
            hub: HubSecurity::Secured,
            roles: BTreeMap::from([("agent", 20), ("ingest", 2)]),
            faults: [("kill.server", 3), ("kill.agent", 4), ("link.cut", 5)]
                .map(|(kind, count)| (kind.to_owned(), count))
                .into(),
            lost: 1,
            takeovers: Takeovers { ingest: 2, partitions: 32, ..Takeovers::default() },
            violations: vec!["site-1/device-1: 3 reports are not sent".to_owned()],
            replay: "make chaos CHAOS_SEED=7".to_owned(),
            logs: "/logs".to_owned(),
            ..Summary::default()
        };
        let text = summary.to_string();
        for part in [
            "FAILED",
            "seed 7",
            "credentials and TLS",
            "22: agent 20, ingest 2",
            "7 kills",
            "5 link faults",
            "2 of ingest with 32 partitions",
            "1 lost",
            "violations  1",
            "not sent",
            "CHAOS_SEED=7",
            "/logs",
        ] {
            assert!(text.contains(part), "{part} is not in:\n{text}");
        }
    }
}
