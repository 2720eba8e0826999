//! The closing table of the bench `start`, and which bounds its figures miss.

/// Longest time from a start with snapshots until ready, in seconds.
const READY_WITH_SNAPSHOT_MAX: f64 = 3.0;
/// The same without any snapshot, for each million facts that LEDGER holds.
const READY_PER_MILLION_FACTS_MAX: f64 = 10.0;
/// Longest time from the death of an owner until its partitions work again, in seconds.
const TAKEOVER_MAX: f64 = 10.0;
const MILLION: u64 = 1_000_000;

const HEADER: &str = "| facts | devices | ready without snapshot, s | report a fact, s | processor s | snapshots, MB | ready with snapshot, s | report a fact, s | processor s | facts/s written | standby, processor s a minute | takeover, s | ready after a kill, s | report a fact, s | missed |
|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|";

/// A start, by the clock and by processor time: a machine that others use as well is slow by the clock alone.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Start {
    /// Seconds until ready.
    pub(crate) ready: f64,
    /// Seconds until reports sent before are facts, in every partition.
    pub(crate) works: f64,
    /// Seconds of processor time until then.
    pub(crate) processor: f64,
}

/// The measurements of one LEDGER.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Facts that LEDGER held.
    pub(crate) facts: u64,
    /// Devices of the fleet.
    pub(crate) devices: u64,
    /// Without any snapshot.
    pub(crate) cold: Start,
    /// Bytes of the snapshots.
    pub(crate) snapshot_bytes: u64,
    /// From snapshots.
    pub(crate) warm: Start,
    /// Facts a second that LEDGER took while the standby was measured.
    pub(crate) rate: f64,
    /// Seconds of processor time that the standby used in a minute.
    pub(crate) standby: f64,
    /// Seconds from the owner's death until a report of every partition was a fact.
    pub(crate) takeover: f64,
    /// From the snapshots of the owner that was killed, after its standby worked in its place.
    pub(crate) killed: Start,
}

impl Outcome {
    /// The bounds that do not hold, in words.
    pub(crate) fn missed(&self) -> Vec<String> {
        let cold_max = READY_PER_MILLION_FACTS_MAX * self.facts.div_ceil(MILLION) as f64;
        let bounds = [
            ("ready without snapshot", self.cold.ready, cold_max),
            ("ready with snapshot", self.warm.ready, READY_WITH_SNAPSHOT_MAX),
            ("takeover", self.takeover, TAKEOVER_MAX),
            ("ready after a kill", self.killed.ready, READY_WITH_SNAPSHOT_MAX),
        ];
        let missed = bounds.into_iter().filter(|(_, seconds, max)| seconds > max);
        missed.map(|(what, _, max)| format!("{what} ≤ {max} s")).collect()
    }
}

/// The table.
pub(crate) fn render(outcomes: &[Outcome]) -> String {
    let lines: Vec<String> = outcomes.iter().map(line).collect();
    format!("{HEADER}\n{}", lines.join("\n"))
}

/// One line of it.
pub(crate) fn line(outcome: &Outcome) -> String {
    let missed = outcome.missed();
    let seconds = |seconds: f64| format!("{seconds:.1}");
    let cells = [
        outcome.facts.to_string(),
        outcome.devices.to_string(),
        seconds(outcome.cold.ready),
        seconds(outcome.cold.works),
        seconds(outcome.cold.processor),
        format!("{:.1}", outcome.snapshot_bytes as f64 / 1e6),
        seconds(outcome.warm.ready),
        seconds(outcome.warm.works),
        seconds(outcome.warm.processor),
        format!("{:.0}", outcome.rate),
        seconds(outcome.standby),
        seconds(outcome.takeover),
        seconds(outcome.killed.ready),
        seconds(outcome.killed.works),
        if missed.is_empty() { "none".to_owned() } else { missed.join(", ") },
    ];
    format!("| {} |", cells.join(" | "))
}
