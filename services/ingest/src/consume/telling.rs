//! What a person reads of a partition's facts: a line for an incident or a message in quarantine, as it sets out for
//! LEDGER. A few a minute; how many were left out is said with the next one. LEDGER has all of them, so nothing rests on
//! these lines; after a rewind some come twice.

use muster_contract::fact::{Incident, IncidentKind, QuarantineFact};
use muster_contract::limits::VIEW_MESSAGE_BYTES_MAX;
use muster_contract::state::cut;
use muster_contract::{DeviceKey, Document, Timestamp, decode};
use muster_domain::border::Publication;

/// Lines of one kind that a partition writes in a minute.
const LINES_PER_MINUTE: u32 = 6;
const MINUTE_SECONDS: i64 = 60;

/// Lines about the facts of one partition.
#[derive(Debug, Default)]
pub(super) struct Teller {
    incidents: Lines,
    quarantine: Lines,
}

/// Lines of one kind.
#[derive(Debug, Default)]
struct Lines {
    /// When the minute began, and the lines written in it.
    minute: Option<(i64, u32)>,
    left_out: u64,
}

impl Lines {
    /// How many were left out since the last line, if one may be written now.
    fn turn(&mut self, now: Timestamp) -> Option<u64> {
        let now = now.as_second();
        let current = |(since, _): &(i64, u32)| (0..MINUTE_SECONDS).contains(&(now - since));
        let (since, written) = self.minute.filter(current).unwrap_or((now, 0));
        if written >= LINES_PER_MINUTE {
            self.left_out += 1;
            return None;
        }
        self.minute = Some((since, written + 1));
        Some(std::mem::take(&mut self.left_out))
    }
}

impl Teller {
    /// Says what a publication is about, if that concerns a person.
    pub(super) fn tell(&mut self, partition: u16, publication: &Publication, now: Timestamp) {
        let (device, payload) = (publication.subject.device(), &publication.payload);
        if publication.kind == Incident::KIND {
            let turn = self.incidents.turn(now);
            turn.into_iter().for_each(|left_out| incident(partition, device, payload, left_out));
        } else if publication.kind == QuarantineFact::KIND {
            let turn = self.quarantine.turn(now);
            turn.into_iter().for_each(|left_out| quarantined(partition, device, payload, left_out));
        }
    }
}

fn incident(partition: u16, device: Option<&DeviceKey>, payload: &[u8], left_out: u64) {
    // What was written a moment ago can be read.
    let Ok(Incident { what, .. }) = decode::parse(payload) else { return };
    let device = named(device);
    if matches!(what, IncidentKind::GapClosed { .. }) {
        tracing::info!(partition, device, incident = ?what, left_out, "incident over");
    } else {
        tracing::warn!(partition, device, incident = ?what, left_out, "incident");
    }
}

fn quarantined(partition: u16, device: Option<&DeviceKey>, payload: &[u8], left_out: u64) {
    let Ok(QuarantineFact { reason, epoch, seq, count_for_device, others, .. }) = decode::parse(payload)
    else {
        return;
    };
    let (epoch, seq) = (epoch.map(|epoch| epoch.get()), seq.map(|seq| seq.get()));
    let (device, reason) = (named(device), cut(reason, VIEW_MESSAGE_BYTES_MAX));
    tracing::warn!(
        partition,
        device,
        epoch,
        seq,
        others,
        count = count_for_device,
        left_out,
        reason,
        "quarantine: a message is not let in; `muster quarantine list` shows it"
    );
}

fn named(device: Option<&DeviceKey>) -> String {
    device.map_or_else(|| "whose name is no identifier".to_owned(), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_lines_a_minute_are_written_and_what_was_left_out_is_said() {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let mut lines = Lines::default();
        let written: Vec<Option<u64>> = (0..20).map(|second| lines.turn(at(1_000 + second))).collect();
        assert_eq!(written.iter().flatten().count(), LINES_PER_MINUTE as usize);
        assert_eq!(lines.turn(at(1_060)), Some(14));
        assert_eq!(lines.turn(at(1_061)), Some(0));
        // A clock that was set back begins a new minute.
        assert_eq!((0..9).filter_map(|_| lines.turn(at(500))).count(), LINES_PER_MINUTE as usize);
    }
}
