//! Reads LEDGER from its start and counts it independently of the services: the report numbers of each device, the
//! duplicates, and the views that follow.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_bus::{Bus, Delivery, ReadError, Start};
use muster_contract::canonical::Digest;
use muster_contract::decode::Refusal;
use muster_contract::fact::{Fact, QuarantineFact};
use muster_contract::subjects::{LedgerSubject, ViewKey, stream};
use muster_contract::{DeviceKey, SeqRanges, Timestamp};
use muster_domain::fold::{Fleet, Position};

/// Messages read at once.
const BATCH: usize = 1000;
/// How long LEDGER may be silent while something is known to wait in it.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A message of LEDGER.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Its sequence.
    pub seq: u64,
    /// When it was stored.
    pub stored_at: Timestamp,
    /// Its subject.
    pub subject: LedgerSubject,
    /// The fact.
    pub fact: Fact,
}

/// Why LEDGER could not be read.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The bus.
    #[error("LEDGER cannot be read")]
    Read(#[from] ReadError),
    /// It does not go on.
    #[error("LEDGER should hold {last} messages; nothing came for {TIMEOUT:?} after message {at}")]
    Silent {
        /// The last message read.
        at: u64,
        /// The last there should be.
        last: u64,
    },
    /// Something in it is no fact.
    #[error("message {seq} of LEDGER on {subject} is no fact")]
    NoFact {
        /// Where.
        seq: u64,
        /// Its subject.
        subject: String,
        /// The error in the body; `None` if the subject is wrong.
        #[source]
        source: Option<Refusal>,
    },
}

/// Reads all of LEDGER up to now.
///
/// # Errors
/// It cannot be read, or holds something that is no fact.
pub async fn read(bus: &Bus, mut take: impl FnMut(Entry)) -> Result<(), LedgerError> {
    let last = bus.stream_state(stream::LEDGER).await?.last_seq;
    let mut replay = bus.replay(stream::LEDGER, &[], Start::First).await?;
    let mut at = 0;
    loop {
        let silent = |_| LedgerError::Silent { at, last };
        // LEDGER forgets pulses: its last message may be gone.
        let batch = tokio::time::timeout(TIMEOUT, replay.next_present(BATCH)).await.map_err(silent)??;
        let Some(batch) = batch else { break };
        for delivery in batch {
            at = delivery.stream_seq;
            take(entry(&delivery)?);
        }
    }
    Ok(())
}

fn entry(delivery: &Delivery) -> Result<Entry, LedgerError> {
    let refused =
        |source| LedgerError::NoFact { seq: delivery.stream_seq, subject: delivery.subject.clone(), source };
    let subject = LedgerSubject::parse(&delivery.subject).ok_or_else(|| refused(None))?;
    let fact = Fact::parse(&subject, &delivery.payload).map_err(|refusal| refused(Some(refusal)))?;
    Ok(Entry { seq: delivery.stream_seq, stored_at: delivery.stored_at, subject, fact })
}

/// The numbers of every (device, epoch).
#[derive(Debug, Default)]
pub struct Recount {
    /// The numbers of each device and epoch.
    pub numbers: BTreeMap<(DeviceKey, u64), Numbers>,
    /// Facts of all kinds.
    pub facts: u64,
    /// Report numbers that are in LEDGER twice, with the sequence of the second.
    pub twice: Vec<String>,
    /// The quarantined reports with their reasons: they are accounted for, and their content is lost.
    pub quarantined: Vec<String>,
    /// Incidents by type.
    pub incidents: BTreeMap<&'static str, u64>,
}

/// The numbers of one epoch of a device.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// In as facts.
    pub received: SeqRanges,
    /// Declared as folded.
    pub coalesced: SeqRanges,
    /// In quarantine.
    pub quarantined: SeqRanges,
    /// The highest that any report spoke of.
    pub head: u64,
}

impl Recount {
    /// Counts one entry.
    pub fn count(&mut self, entry: &Entry) {
        self.facts += 1;
        if let Fact::Incident(incident) = &entry.fact {
            *self.incidents.entry(incident.what.name()).or_default() += 1;
        }
        let Some(device) = entry.subject.device() else { return };
        match &entry.fact {
            Fact::Status(fact) if !fact.reasserted => {
                let spoken = (fact.epoch.get(), fact.seq.get(), fact.head.get());
                self.report(entry.seq, device, spoken, &fact.coalesced);
            }
            Fact::Device(fact) if !fact.reasserted => {
                let spoken = (fact.epoch.get(), fact.seq.get(), fact.head.get());
                self.report(entry.seq, device, spoken, &fact.coalesced);
            }
            Fact::Quarantine(fact) => self.quarantine(entry.seq, device, fact),
            _ => {}
        }
    }

    fn quarantine(&mut self, at: u64, device: &DeviceKey, fact: &QuarantineFact) {
        let numbers = fact.numbers();
        if !fact.reasserted {
            let which = numbers.as_ref().map_or_else(
                || "something without a number".to_owned(),
                |(epoch, seqs)| format!("{seqs} of epoch {epoch}"),
            );
            self.quarantined.push(format!("{device}: {which} is in quarantine since {at}: {}", fact.reason));
        }
        if let Some((epoch, seqs)) = numbers {
            self.of(device, epoch.get()).quarantined.extend(&seqs);
        }
    }

    fn report(&mut self, at: u64, device: &DeviceKey, spoken: (u64, u64, u64), coalesced: &SeqRanges) {
        let (epoch, seq, head) = spoken;
        let numbers = self.of(device, epoch);
        numbers.coalesced.extend(coalesced);
        numbers.head = numbers.head.max(head).max(seq);
        if !numbers.received.insert(seq) {
            let again = format!("({device}, {epoch}, {seq}) is in LEDGER twice, the second time at {at}");
            self.twice.push(again);
        }
    }

    fn of(&mut self, device: &DeviceKey, epoch: u64) -> &mut Numbers {
        self.numbers.entry((device.clone(), epoch)).or_default()
    }
}

impl Numbers {
    /// The report numbers up to the head that are not accounted for.
    pub fn missing(&self) -> SeqRanges {
        self.missing_through(self.head)
    }

    /// The report numbers up to a number that are not accounted for.
    pub fn missing_through(&self, through: u64) -> SeqRanges {
        let mut accounted = self.received.clone();
        accounted.extend(&self.coalesced);
        accounted.extend(&self.quarantined);
        accounted.missing(through)
    }
}

/// The result of a fold from the first fact on.
#[derive(Debug)]
pub struct Rebuild {
    fleet: Fleet,
    keys: BTreeSet<ViewKey>,
}

impl Default for Rebuild {
    fn default() -> Self {
        Self { fleet: Fleet::default(), keys: BTreeSet::from([ViewKey::Fleet]) }
    }
}

impl Rebuild {
    /// Folds one entry in.
    pub fn apply(&mut self, entry: Entry) {
        let at = Position { ledger_seq: entry.seq, stored_at: entry.stored_at };
        self.fleet.apply(at, &entry.subject, entry.fact);
        self.keys.extend(self.fleet.drain_changed_views());
    }

    /// The digest of every view there is, by key.
    pub fn digests(&self) -> BTreeMap<ViewKey, Digest> {
        let digest = |key: &ViewKey| self.fleet.digest_of(key);
        self.keys.iter().filter_map(|key| digest(key).map(|digest| (key.clone(), digest))).collect()
    }
}

/// The digests of all views in the bucket, by key. A value that is no view has none.
///
/// # Errors
/// The bucket cannot be read.
pub async fn shown(bus: &Bus) -> Result<BTreeMap<String, Option<Digest>>, ReadError> {
    let mut watch = bus.view_watch(">").await?;
    let mut digests = BTreeMap::new();
    while let Some(batch) = watch.next_present(BATCH).await? {
        for entry in batch {
            match entry.value {
                Some(value) => digests.insert(entry.key, digest(&value)),
                None => digests.remove(&entry.key),
            };
        }
    }
    Ok(digests)
}

fn digest(view: &[u8]) -> Option<Digest> {
    serde_json::from_slice::<serde_json::Value>(view).ok()?["digest"].as_str()?.parse().ok()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn status(seq: u64, head: u64, coalesced: &str) -> Entry {
        let subject = LedgerSubject::parse("muster.status.plant7.press-4.web").unwrap();
        let text = format!(
            r#"{{"apiVersion":"muster/v1","kind":"StatusFact","epoch":7,"seq":{seq},"head":{head},
            "observedAt":"2026-01-01T00:00:00Z","receivedAt":"2026-01-01T00:00:00Z","deployment":"web",
            "generation":1,"digest":"sha256:{:064}","status":{{"state":"installed"}},
            "components":[{{"name":"main","state":"installed"}}],"current":true,"coalesced":{coalesced}}}"#,
            0
        );
        let fact = Fact::parse(&subject, text.as_bytes()).unwrap();
        Entry { seq, stored_at: Timestamp::UNIX_EPOCH, subject, fact }
    }

    #[test]
    fn a_number_that_is_in_twice_is_found_and_one_that_is_not_in_as_well() {
        let mut recount = Recount::default();
        for (seq, coalesced) in [(1, "[]"), (4, "[[2,2]]"), (1, "[]")] {
            recount.count(&status(seq, 6, coalesced));
        }
        assert_eq!(recount.twice.len(), 1, "{:?}", recount.twice);
        let numbers = recount.numbers.values().next().unwrap();
        assert_eq!(numbers.missing().iter().collect::<Vec<_>>(), [(3, 3), (5, 6)]);
    }

    pub(crate) fn quarantine(seq: u64, report: &str, reasserted: bool) -> Entry {
        let subject = LedgerSubject::parse("muster.quarantine.plant7.press-4").unwrap();
        let text = format!(
            r#"{{"apiVersion":"muster/v1","kind":"QuarantineFact","reason":"its state is wrong",{report}
            "subject":"muster.report.plant7.press-4","receivedAt":"2026-01-01T00:00:00Z","payloadBase64":"",
            "bytes":9,"countForDevice":1,"reasserted":{reasserted}}}"#
        );
        let fact = Fact::parse(&subject, text.as_bytes()).unwrap();
        Entry { seq, stored_at: Timestamp::UNIX_EPOCH, subject, fact }
    }

    #[test]
    fn a_quarantined_report_is_listed_once_with_reason_even_unnumbered() {
        let mut recount = Recount::default();
        recount.count(&quarantine(8, r#""epoch":7,"seq":3,"#, false));
        recount.count(&quarantine(9, "", false));
        recount.count(&quarantine(10, r#""epoch":7,"seq":3,"#, true));
        let quarantined = recount.quarantined.join("\n");
        assert_eq!(recount.quarantined.len(), 2, "{quarantined}");
        for part in ["plant7/press-4", "epoch 7", "since 8", "its state is wrong", "without a number"] {
            assert!(quarantined.contains(part), "{part} is missing: {quarantined}");
        }
        assert_eq!(recount.numbers.values().next().unwrap().quarantined.count(), 1);
    }

    #[test]
    fn a_rebuild_has_a_view_of_what_was_folded_in() {
        let mut rebuild = Rebuild::default();
        rebuild.apply(status(1, 1, "[]"));
        let keys: Vec<String> = rebuild.digests().keys().map(ToString::to_string).collect();
        assert!(keys.contains(&"fleet".to_owned()), "{keys:?}");
    }
}
