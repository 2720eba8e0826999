//! Explains a rollout in one sentence: its next step, or the predicate that blocks it and the devices that it waits for.

use muster_contract::DeviceKey;

use super::{Blocked, Gate, Known, RolloutProgress, Step, WaveState};

/// Devices that a sentence names, at most.
const NAMED_MAX: usize = 20;

impl RolloutProgress {
    /// The next step, or what it waits for, in one sentence.
    pub fn why(&self) -> String {
        let wave = |at: &usize| self.state.waves.get(*at);
        match &self.state.step {
            Step::Done => "done: every target has the content, and every gate is open".to_owned(),
            Step::Release { wave: at, targets, needs_approval } => {
                let name = wave(at).map_or("", |wave| wave.name.as_str());
                let by = if *needs_approval { ", which a person must begin" } else { "" };
                format!("next: release to {} of wave {name}{by}", devices(targets.len()))
            }
            Step::Wait { wave: at, because } => {
                wave(at).map_or_else(String::new, |wave| self.waiting(wave, *because))
            }
            Step::Stop { wave: at } => wave(at).map_or_else(String::new, |wave| {
                let failed = self.devices_with(wave, Known::Failed);
                format!("wave {} is {}; failed: {}", wave.name, wave.gate, listed(&failed))
            }),
        }
    }

    fn waiting(&self, wave: &WaveState, because: Blocked) -> String {
        let WaveState { name, tally, gate, .. } = wave;
        let (confirmed, targets) = (tally.confirmed, tally.targets);
        let counts = format!("{confirmed} of {targets} confirmed");
        match because {
            Blocked::InFlight => {
                format!("waiting in wave {name}: {because}: {}", self.not_confirmed(wave))
            }
            Blocked::Gate if *gate == Gate::Soaking => {
                format!(
                    "waiting for the gate behind wave {name}: {counts}, {} of them for its soak time",
                    tally.soaked
                )
            }
            Blocked::Gate => {
                format!("waiting for the gate behind wave {name}: {counts}; {}", self.not_confirmed(wave))
            }
        }
    }

    /// The released devices of a wave that are not confirmed, by the hub's knowledge of each.
    fn not_confirmed(&self, wave: &WaveState) -> String {
        let mut parts = Vec::new();
        for (known, words) in [
            (Known::Failed, "failed"),
            (Known::NotHeard, "not heard"),
            (Known::ReportsMissing, "with missing reports"),
            (Known::UnderWay, "under way"),
            (Known::NotInLedger, "not in LEDGER yet"),
        ] {
            let devices = self.devices_with(wave, known);
            if !devices.is_empty() {
                parts.push(format!("{} {words} ({})", devices.len(), listed(&devices)));
            }
        }
        parts.join(", ")
    }

    fn devices_with(&self, wave: &WaveState, known: Known) -> Vec<&DeviceKey> {
        let members = wave.members.iter().filter(|at| self.known[**at] == known);
        members.map(|at| &self.targets[*at].key).collect()
    }
}

/// The names of the first devices, and the number of further ones.
pub fn listed(devices: &[&DeviceKey]) -> String {
    let named: Vec<_> = devices.iter().take(NAMED_MAX).map(ToString::to_string).collect();
    match devices.len() - named.len() {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

fn devices(count: usize) -> String {
    if count == 1 { "1 device".to_owned() } else { format!("{count} devices") }
}
