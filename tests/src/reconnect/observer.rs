//! Follows LEDGER and the views while a device reconnects, and notes when each report and view came. It asks nobody for a
//! count: it counts what it reads.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use muster_bus::{Bus, Start, ViewEntry};
use muster_contract::fact::{Fact, StatusFact};
use muster_contract::subjects::{LedgerSubject, stream};
use muster_contract::{DeviceKey, SeqRanges, State};
use serde_json::Value;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::DEPLOYMENTS;

/// Messages read at once.
const BATCH: usize = 1_000;
/// How keys of deployments begin in the bucket of views.
const DEPLOYMENT_KEYS: &str = "deployment.";
/// The verdict of a deployment whose newest states are known and good.
const CONVERGED: &str = "converged";

/// An observer at work. It ends with this value.
pub(super) struct LedgerObserver {
    seen: Arc<Mutex<Seen>>,
    _tasks: [AbortOnDropHandle<()>; 2],
}

/// When the newest state of every deployment was in LEDGER.
#[derive(Debug, Clone, Copy)]
pub(super) struct NewestStates {
    /// When the last of them was read.
    pub(super) at: Instant,
    /// Reports read up to it.
    pub(super) reports: usize,
}

#[derive(Debug, Default)]
struct Seen {
    /// Numbers that are in as facts, or declared as folded.
    accounted: SeqRanges,
    /// Reports of deployments read so far.
    reports: usize,
    /// At each generation: the deployments whose newest state is in, each with its sequence, and when all of them were.
    newest: BTreeMap<u64, (BTreeMap<String, u64>, Option<NewestStates>)>,
    /// By deployment, each view since it converged: up to where in LEDGER it had read, and when it came.
    views: BTreeMap<String, Vec<(u64, Instant)>>,
}

impl LedgerObserver {
    /// Follows LEDGER by `inspector` from its start, and the views by `subscriber`.
    pub(super) async fn start(inspector: Bus, subscriber: Bus, device: DeviceKey) -> Self {
        let seen = Arc::<Mutex<Seen>>::default();
        let mut ledger = inspector.replay(stream::LEDGER, &[], Start::First).await.unwrap();
        let mut views = subscriber.view_watch(">").await.unwrap();
        let (of_ledger, of_views) = (Arc::clone(&seen), Arc::clone(&seen));
        let ledger = tokio::spawn(async move {
            loop {
                let batch = ledger.next_batch(BATCH).await.unwrap();
                let mut seen = of_ledger.lock().unwrap();
                for delivery in batch {
                    let subject = LedgerSubject::parse(&delivery.subject).unwrap();
                    if subject.device() == Some(&device) {
                        seen.fact(delivery.stream_seq, Fact::parse(&subject, &delivery.payload).unwrap());
                    }
                }
            }
        });
        let views = tokio::spawn(async move {
            loop {
                let batch = views.next_batch(BATCH).await.unwrap();
                batch.iter().for_each(|entry| of_views.lock().unwrap().view(entry));
            }
        });
        Self { seen, _tasks: [ledger, views].map(AbortOnDropHandle::new) }
    }

    /// Numbers of the device that LEDGER accounts for.
    pub(super) fn accounted(&self) -> u64 {
        self.seen().accounted.count()
    }

    /// Reports of deployments that LEDGER holds.
    pub(super) fn reports(&self) -> usize {
        self.seen().reports
    }

    /// When every deployment was installed at this generation and not tried again any more.
    pub(super) fn newest(&self, generation: u64) -> Option<NewestStates> {
        self.seen().newest.get(&generation).and_then(|(_, newest)| *newest)
    }

    /// Views of deployments that have converged.
    pub(super) fn converged_views(&self) -> usize {
        self.seen().views.len()
    }

    /// When every deployment had a converged view that had read its newest state at this generation.
    pub(super) fn shown(&self, generation: u64) -> Option<Instant> {
        let seen = self.seen();
        let (deployments, _) = seen.newest.get(&generation)?;
        let came = |(name, newest): (&String, &u64)| {
            let views = seen.views.get(name)?;
            views.iter().find(|(read_to, _)| read_to >= newest).map(|(_, came)| *came)
        };
        let came: Option<Vec<_>> = deployments.iter().map(came).collect();
        came.filter(|came| came.len() == DEPLOYMENTS)?.into_iter().max()
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap()
    }
}

impl Seen {
    fn fact(&mut self, ledger_seq: u64, fact: Fact) {
        match fact {
            Fact::Status(fact) if !fact.reasserted => {
                self.account(fact.seq.get(), &fact.coalesced);
                self.status(ledger_seq, &fact);
            }
            Fact::Device(fact) if !fact.reasserted => self.account(fact.seq.get(), &fact.coalesced),
            _ => {}
        }
    }

    fn account(&mut self, seq: u64, coalesced: &SeqRanges) {
        self.accounted.insert(seq);
        self.accounted.extend(coalesced);
    }

    fn status(&mut self, ledger_seq: u64, fact: &StatusFact) {
        self.reports += 1;
        let is_newest = fact.status.state == State::Installed && fact.retries.is_empty();
        if !is_newest {
            return;
        }
        let (deployments, newest) = self.newest.entry(fact.generation.get()).or_default();
        deployments.insert(fact.deployment.to_string(), ledger_seq);
        if deployments.len() == DEPLOYMENTS && newest.is_none() {
            *newest = Some(NewestStates { at: Instant::now(), reports: self.reports });
        }
    }

    fn view(&mut self, entry: &ViewEntry) {
        let Some(deployment) = entry.key.strip_prefix(DEPLOYMENT_KEYS) else { return };
        let value = entry.value.as_deref();
        let view: Value = value.map_or(Value::Null, |text| serde_json::from_slice(text).unwrap());
        if view["verdict"] == CONVERGED {
            let read_to = view["asOf"]["ledgerSeq"].as_u64().unwrap();
            self.views.entry(deployment.to_owned()).or_default().push((read_to, Instant::now()));
        } else {
            self.views.remove(deployment);
        }
    }
}
