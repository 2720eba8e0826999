//! Logs a partition's incidents and quarantined messages for a person, a few lines a minute. A line counts the lines omitted
//! before it. LEDGER has all of these facts; after a rewind some are logged twice. A re-asserted incident is not logged again.

use muster_contract::fact::{Fact, IncidentKind, QuarantineFact};
use muster_contract::limits::VIEW_MESSAGE_BYTES_MAX;
use muster_contract::state::cut;
use muster_contract::{DeviceKey, Timestamp};
use muster_domain::intake::Publication;
use muster_service::clock::Clock;

/// Lines of one kind that a partition writes in a minute.
const LINES_PER_MINUTE: u32 = 6;
const MINUTE_SECONDS: i64 = 60;

/// Logs the facts of one partition.
#[derive(Debug, Default)]
pub(super) struct IncidentLog {
    incidents: LineLimit,
    quarantine: LineLimit,
}

/// The rate limit of lines of one kind.
#[derive(Debug, Default)]
struct LineLimit {
    /// When the minute began, and the lines written in it.
    minute: Option<(i64, u32)>,
    omitted: u64,
}

impl LineLimit {
    /// Counts a line; returns the number of lines omitted since the last one if it may be written.
    fn try_write(&mut self, now: Timestamp) -> Option<u64> {
        let now = now.as_second();
        let current = |(since, _): &(i64, u32)| (0..MINUTE_SECONDS).contains(&(now - since));
        let (since, written) = self.minute.filter(current).unwrap_or((now, 0));
        if written >= LINES_PER_MINUTE {
            self.omitted += 1;
            return None;
        }
        self.minute = Some((since, written + 1));
        Some(std::mem::take(&mut self.omitted))
    }
}

impl IncidentLog {
    /// Logs a publication if it is an incident or a quarantined message.
    pub(super) fn log(&mut self, partition: u16, publication: &Publication, clock: &dyn Clock) {
        let device = publication.subject.device();
        match &publication.fact {
            Fact::Incident(incident) if !publication.is_reasserted_incident() => {
                if let Some(omitted) = self.incidents.try_write(clock.now()) {
                    log_incident(partition, device, &incident.what, omitted);
                }
            }
            Fact::Quarantine(fact) => {
                if let Some(omitted) = self.quarantine.try_write(clock.now()) {
                    log_quarantined(partition, device, fact, omitted);
                }
            }
            _ => {}
        }
    }
}

fn log_incident(partition: u16, device: Option<&DeviceKey>, what: &IncidentKind, omitted: u64) {
    let device = named(device);
    if matches!(what, IncidentKind::GapClosed { .. } | IncidentKind::DesiredAccepted { .. }) {
        tracing::info!(partition, device, incident = ?what, omitted, "incident over");
    } else {
        tracing::warn!(partition, device, incident = ?what, omitted, "incident");
    }
}

fn log_quarantined(partition: u16, device: Option<&DeviceKey>, fact: &QuarantineFact, omitted: u64) {
    let QuarantineFact { reason, epoch, seq, count_for_device, others, .. } = fact;
    let (epoch, seq) = (epoch.map(|epoch| epoch.get()), seq.map(|seq| seq.get()));
    let (device, reason) = (named(device), cut(reason.clone(), VIEW_MESSAGE_BYTES_MAX));
    tracing::warn!(
        partition,
        device,
        report.epoch = epoch,
        report.seq = seq,
        others,
        count = count_for_device,
        omitted,
        reason,
        "quarantined a message; `muster quarantine list` shows it"
    );
}

fn named(device: Option<&DeviceKey>) -> String {
    device.map_or_else(|| "(its name is no identifier)".to_owned(), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_lines_a_minute_are_written_and_the_omitted_ones_are_counted() {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let mut lines = LineLimit::default();
        let written: Vec<Option<u64>> = (0..20).map(|second| lines.try_write(at(1_000 + second))).collect();
        assert_eq!(written.iter().flatten().count(), LINES_PER_MINUTE as usize);
        assert_eq!(lines.try_write(at(1_060)), Some(14));
        assert_eq!(lines.try_write(at(1_061)), Some(0));
        // A clock that was set back begins a new minute.
        assert_eq!((0..9).filter_map(|_| lines.try_write(at(500))).count(), LINES_PER_MINUTE as usize);
    }
}
