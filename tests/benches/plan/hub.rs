//! The hub of the bench `plan`, in memory: DOWNLINK without its past, LEDGER in a short form, and devices that confirm a content
//! some time after they got it. Requests and answers are JSON, as on a bus, and no bus carries them.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use muster_bus::{Call, Headers, PublishError, ReadError, RequestError, Requester, Role, Trace};
use muster_contract::canonical::Digest;
use muster_contract::decode;
use muster_contract::desired::{DesiredDeployment, DesiredState};
use muster_contract::fact::{Fact, Liveness, LivenessFact};
use muster_contract::limits::PARTITIONS;
use muster_contract::rollout::{RolloutDecisions, RolloutVerb};
use muster_contract::subjects::LedgerSubject;
use muster_contract::{DeploymentId, DeviceKey, Epoch, Generation, State, Timestamp};
use muster_domain::fold::Position;
use muster_planner::ledger::{Ledger, LedgerEvent, LedgerFact};
use muster_planner::services::Requests;
use muster_publisher::downlink::{Downlink, Message, OutgoingDocument, SubjectState};
use muster_publisher::responder::Responder;
use muster_tests::facts;
use tokio::sync::Notify;

/// Messages of a batch, at most.
const BATCH: usize = 512;
/// Time between two questions for LEDGER's end.
const END_ASKED_EVERY: Duration = Duration::from_secs(1);
/// The lease of every pulse in seconds: the bench writes no further pulses.
const LEASE_SECONDS: u64 = 1_000_000;

/// A device's document, with its contents by digest.
struct Document {
    sequence: u64,
    document: DesiredState,
    entries: Entries,
}

/// The contents of a document, with the generation of each.
type Entries = Arc<[(Digest, Generation)]>;

/// A content that a device got: it confirms it later.
pub(crate) struct Due {
    pub(crate) key: DeviceKey,
    pub(crate) id: DeploymentId,
    digest: Digest,
    generation: Generation,
}

/// A fact of LEDGER in a compact form.
enum Logged {
    Desired(DeviceKey, Box<DesiredState>, Entries),
    Heard(DeviceKey, u64),
    Confirmed(Box<Due>, u64),
    Pulse(u16),
}

#[derive(Default)]
struct Stored {
    sequence: u64,
    contents: HashMap<Digest, DesiredDeployment>,
    documents: BTreeMap<DeviceKey, Document>,
    decisions: BTreeMap<(DeploymentId, String), (u64, RolloutDecisions)>,
    /// Contents of governed devices that are not confirmed yet.
    due: Vec<Due>,
    /// When a wave of a deployment began.
    begins: Vec<(DeploymentId, String, Instant)>,
    ledger: Vec<(Timestamp, Logged)>,
}

/// The hub. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Hub {
    stored: Arc<Mutex<Stored>>,
    appended: Arc<Notify>,
}

impl Hub {
    /// The contents that devices got since the last call.
    pub(crate) fn take_due(&self) -> Vec<Due> {
        std::mem::take(&mut self.stored.lock().unwrap().due)
    }

    /// The waves that began since the last call.
    pub(crate) fn take_begins(&self) -> Vec<(DeploymentId, String, Instant)> {
        std::mem::take(&mut self.stored.lock().unwrap().begins)
    }

    /// LEDGER's end.
    pub(crate) fn ledger_seq(&self) -> u64 {
        self.stored.lock().unwrap().ledger.len() as u64
    }

    fn append(&self, logged: Logged) {
        self.stored.lock().unwrap().ledger.push((Timestamp::now(), logged));
        self.appended.notify_waiters();
    }

    /// Appends a pulse of each partition.
    pub(crate) fn append_pulses(&self) {
        (0..PARTITIONS).for_each(|partition| self.append(Logged::Pulse(partition)));
    }

    /// A device is heard.
    pub(crate) fn hear(&self, key: &DeviceKey, head: u64) {
        self.append(Logged::Heard(key.clone(), head));
    }

    /// A device confirms a content, as its report of this number.
    pub(crate) fn confirm(&self, due: Due, number: u64) {
        self.append(Logged::Confirmed(Box::new(due), number));
    }
}

/// The deployments of a device, whole.
fn whole(contents: &HashMap<Digest, DesiredDeployment>, entries: &Entries) -> Vec<DesiredDeployment> {
    let entry = |(digest, target_generation): &(Digest, Generation)| DesiredDeployment {
        target_generation: *target_generation,
        ..contents[digest].clone()
    };
    entries.iter().map(entry).collect()
}

impl Logged {
    fn fact(&self, at: Timestamp, contents: &HashMap<Digest, DesiredDeployment>) -> (LedgerSubject, Fact) {
        match self {
            Self::Desired(key, document, entries) => {
                let deployments = whole(contents, entries);
                let document = DesiredState { deployments, ..(**document).clone() };
                (LedgerSubject::Desired(key.clone()), Fact::Desired(document))
            }
            Self::Heard(key, head) => (LedgerSubject::Liveness(key.clone()), heard(at, *head)),
            Self::Confirmed(due, number) => {
                let content = (&due.id, due.generation, due.digest);
                let fact = facts::status(at, *number, content, (State::Installed, None));
                (LedgerSubject::Status(due.key.clone(), due.id.clone()), Fact::Status(fact))
            }
            Self::Pulse(partition) => (LedgerSubject::Hub(*partition), facts::pulse(at, LEASE_SECONDS)),
        }
    }
}

fn heard(at: Timestamp, head: u64) -> Fact {
    Fact::Liveness(LivenessFact {
        api_version: Default::default(),
        kind: Default::default(),
        state: Liveness::Fresh,
        last_heard_at: at,
        epoch: Epoch::new(1).unwrap(),
        head,
        account: None,
        beat_at: None,
        storing: true,
    })
}

/// The planner's reader of LEDGER.
pub(crate) struct Follower {
    hub: Hub,
    read_through: u64,
    ask_at: tokio::time::Instant,
    is_open: bool,
}

impl Follower {
    /// A reader after a sequence.
    pub(crate) fn new(hub: Hub, read_through: u64) -> Self {
        Self { hub, read_through, ask_at: tokio::time::Instant::now(), is_open: false }
    }

    fn batch(&self) -> Vec<LedgerFact> {
        let stored = self.hub.stored.lock().unwrap();
        let after = usize::try_from(self.read_through).unwrap();
        let facts = stored.ledger.iter().enumerate().skip(after).take(BATCH);
        let fact = |(at, (stored_at, logged)): (usize, &(Timestamp, Logged))| {
            let position = Position { ledger_seq: at as u64 + 1, stored_at: *stored_at };
            (position, Some(logged.fact(*stored_at, &stored.contents)))
        };
        facts.map(fact).collect()
    }
}

impl Ledger for Follower {
    async fn next(&mut self) -> LedgerEvent {
        if !std::mem::replace(&mut self.is_open, true) {
            return LedgerEvent::Opened { created_at: Timestamp::UNIX_EPOCH };
        }
        loop {
            let appended = self.hub.appended.clone();
            let appended = appended.notified();
            let now = tokio::time::Instant::now();
            if self.ask_at <= now {
                self.ask_at = now + END_ASKED_EVERY;
                let (last_seq, at) = (self.hub.ledger_seq(), Timestamp::now());
                return LedgerEvent::End { last_seq, at, asked_at: now };
            }
            let batch = self.batch();
            if let Some((at, _)) = batch.last() {
                self.read_through = at.ledger_seq;
                return LedgerEvent::Facts(batch);
            }
            tokio::select! {
                () = appended => {}
                () = tokio::time::sleep_until(self.ask_at) => {}
            }
        }
    }
}

impl Stored {
    fn message(&self, key: &DeviceKey) -> Option<Message> {
        let Document { sequence, document, entries } = self.documents.get(key)?;
        let mut document = document.clone();
        document.deployments = whole(&self.contents, entries);
        let published_as = Some(format!("{}.{}.{}", key.site, key.device, document.generation));
        Some(Message { sequence: *sequence, payload: decode::to_bytes(&document).into(), published_as })
    }

    fn publish(&mut self, outgoing: OutgoingDocument) -> u64 {
        self.sequence += 1;
        let OutgoingDocument { key, mut document, .. } = outgoing;
        let mut entries = Vec::new();
        let before = self.documents.get(&key).map(|before| before.entries.clone());
        for entry in std::mem::take(&mut document.deployments) {
            let has_it = before.iter().any(|before| before.iter().any(|(digest, _)| *digest == entry.digest));
            if !has_it {
                let generation = document.generation;
                let (id, digest) = (entry.id.clone(), entry.digest);
                self.due.push(Due { key: key.clone(), id, digest, generation });
            }
            entries.push((entry.digest, entry.target_generation));
            self.contents.entry(entry.digest).or_insert(entry);
        }
        let entries: Entries = entries.into();
        let logged = Logged::Desired(key.clone(), Box::new(document.clone()), entries.clone());
        self.ledger.push((Timestamp::now(), logged));
        self.documents.insert(key, Document { sequence: self.sequence, document, entries });
        self.sequence
    }
}

impl Downlink for Hub {
    async fn all_subjects(&self) -> Result<BTreeMap<DeviceKey, SubjectState>, ReadError> {
        let stored = self.stored.lock().unwrap();
        let subject = |key: &DeviceKey| {
            let highest = Some(stored.documents[key].document.generation);
            (key.clone(), SubjectState { last: stored.message(key).unwrap(), highest })
        };
        Ok(stored.documents.keys().map(subject).collect())
    }

    async fn copies(
        &self,
        _: &BTreeMap<DeviceKey, SubjectState>,
    ) -> Result<Vec<(DeviceKey, Bytes)>, ReadError> {
        Ok(Vec::new())
    }

    async fn history(&self, key: &DeviceKey) -> Result<Vec<Message>, ReadError> {
        Ok(self.stored.lock().unwrap().message(key).into_iter().collect())
    }

    async fn last(&self, key: &DeviceKey) -> Result<Option<Message>, ReadError> {
        Ok(self.stored.lock().unwrap().message(key))
    }

    async fn reported(&self, _: &DeviceKey) -> Result<bool, ReadError> {
        Ok(true)
    }

    async fn all_decisions(&self) -> Result<Vec<Message>, ReadError> {
        Ok(Vec::new())
    }

    async fn decisions(&self, deployment: &DeploymentId, path: &str) -> Result<Option<Message>, ReadError> {
        let stored = self.stored.lock().unwrap();
        let of = stored.decisions.get(&(deployment.clone(), path.to_owned()));
        Ok(of.map(|(sequence, decisions)| Message {
            sequence: *sequence,
            payload: decode::to_bytes(decisions).into(),
            published_as: None,
        }))
    }

    async fn store_decisions(
        &self,
        path: &str,
        decisions: &RolloutDecisions,
        _: u64,
        _: Trace,
    ) -> Result<u64, PublishError> {
        let mut stored = self.stored.lock().unwrap();
        stored.sequence += 1;
        let sequence = stored.sequence;
        let last = decisions.rollouts.last().and_then(|record| record.decisions.last());
        if let Some((last, wave)) = last.and_then(|last| Some((last, last.wave.as_ref()?)))
            && last.verb == RolloutVerb::Begin
        {
            stored.begins.push((decisions.deployment.clone(), wave.to_string(), Instant::now()));
        }
        let key = (decisions.deployment.clone(), path.to_owned());
        stored.decisions.insert(key, (sequence, decisions.clone()));
        Ok(sequence)
    }

    async fn publish(&self, documents: Vec<OutgoingDocument>) -> Vec<Result<u64, PublishError>> {
        let publish = |outgoing| Ok(self.stored.lock().unwrap().publish(outgoing));
        let sequences = documents.into_iter().map(publish).collect();
        self.appended.notify_waiters();
        sequences
    }
}

/// The requests of the planner.
#[derive(Clone)]
pub(crate) struct Local {
    pub(crate) hub: Hub,
    pub(crate) responder: Responder,
}

impl Requests for Local {
    async fn request(&self, subject: &str, payload: Bytes, _: Duration) -> Result<Bytes, RequestError> {
        let name = subject.rsplit('.').next().unwrap_or_default();
        let endpoint =
            ["decide", "release", "status", "targets"].into_iter().find(|one| *one == name).unwrap();
        let requester =
            Requester::User { key: "U".to_owned(), name: "planner".to_owned(), role: Some(Role::Planner) };
        let (subject, headers) = (subject.to_owned(), Headers::default());
        let call = Call { endpoint, subject, payload, headers, requester };
        Ok(self.responder.clone().answer(call).await.unwrap_or_else(|fault| fault.body))
    }
}
