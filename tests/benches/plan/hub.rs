//! The hub of the bench `plan`, in memory: DOWNLINK without its past, LEDGER as the fold of the rollup, and devices that
//! confirm a content some time after they got it. Requests and answers are JSON, as on a bus, and no bus carries them.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use muster_bus::{Call, Headers, PublishError, ReadError, RequestError, Requester, Role, Trace};
use muster_contract::canonical::Digest;
use muster_contract::decode;
use muster_contract::desired::{DesiredDeployment, DesiredState};
use muster_contract::fact::{Fact, Liveness, LivenessFact, StatusFact};
use muster_contract::query::{ErrorBody, ErrorCode, ErrorReply, Output, Query};
use muster_contract::rollout::{RolloutDecisions, RolloutVerb};
use muster_contract::state::{ComponentStatus, DeploymentStatus};
use muster_contract::subjects::LedgerSubject;
use muster_contract::{DeploymentId, DeviceKey, Epoch, Generation, Seq, SeqRanges, State, Timestamp};
use muster_domain::fold::{Fleet, Page, Position};
use muster_planner::services::Requests;
use muster_publisher::downlink::{Downlink, Message, OutgoingDocument, SubjectState};
use muster_publisher::responder::Responder;

/// A device's document, with its contents by digest.
struct Document {
    sequence: u64,
    document: DesiredState,
    entries: Vec<(Digest, Generation)>,
}

/// A content that a device got: it confirms it later.
pub(crate) struct Due {
    pub(crate) key: DeviceKey,
    pub(crate) entry: DesiredDeployment,
    pub(crate) generation: Generation,
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
}

/// The hub. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Hub {
    stored: Arc<Mutex<Stored>>,
    fleet: Arc<RwLock<(Fleet, u64)>>,
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

    /// Folds a fact.
    pub(crate) fn fold(&self, subject: &LedgerSubject, fact: Fact) {
        let mut fleet = self.fleet.write().unwrap();
        fleet.1 += 1;
        let position = Position { ledger_seq: fleet.1, stored_at: Timestamp::now() };
        fleet.0.apply(position, subject, fact);
    }

    /// A device is heard.
    pub(crate) fn hear(&self, key: &DeviceKey, head: u64) {
        let fact = LivenessFact {
            api_version: Default::default(),
            kind: Default::default(),
            state: Liveness::Fresh,
            last_heard_at: Timestamp::now(),
            epoch: Epoch::new(1).unwrap(),
            head,
            account: None,
            beat_at: None,
            storing: true,
        };
        self.fold(&LedgerSubject::Liveness(key.clone()), Fact::Liveness(fact));
    }

    /// A device confirms a content, as its report of this number.
    pub(crate) fn confirm(&self, due: &Due, number: u64) {
        let Due { key, entry, generation } = due;
        let now = Timestamp::now();
        let state = State::Installed;
        let fact = StatusFact {
            api_version: Default::default(),
            kind: Default::default(),
            epoch: Epoch::new(1).unwrap(),
            seq: Seq::new(number).unwrap(),
            head: Seq::new(number).unwrap(),
            observed_at: now,
            deployment: entry.id.clone(),
            generation: *generation,
            digest: entry.digest,
            status: DeploymentStatus { state, error: None, reason: None },
            components: vec![ComponentStatus { name: "main".parse().unwrap(), state, error: None }],
            retries: Vec::new(),
            first_attempt_at: None,
            current: true,
            coalesced: SeqRanges::new(),
            received_at: now,
            origin: Default::default(),
            fidelity: Default::default(),
            late: false,
            reasserted: false,
        };
        self.fold(&LedgerSubject::Status(key.clone(), entry.id.clone()), Fact::Status(fact));
    }

    fn answer(&self, payload: &[u8]) -> Bytes {
        let query: Query = serde_json::from_slice(payload).unwrap();
        let page =
            Page { after: query.after.as_ref().map(|key| key.parse().unwrap()), limit: query.limit.unwrap() };
        let fleet = self.fleet.read().unwrap();
        let answer = fleet.0.deployment_answer(query.id.as_ref().unwrap(), Output::All, None, &page);
        let bytes = answer.map_or_else(
            || {
                let error = ErrorBody { code: ErrorCode::NotFound, message: String::new() };
                serde_json::to_vec(&ErrorReply { error })
            },
            |answer| serde_json::to_vec(&answer),
        );
        bytes.unwrap().into()
    }
}

impl Stored {
    fn message(&self, key: &DeviceKey) -> Option<Message> {
        let Document { sequence, document, entries } = self.documents.get(key)?;
        let mut document = document.clone();
        document.deployments = entries
            .iter()
            .map(|(digest, target_generation)| DesiredDeployment {
                target_generation: *target_generation,
                ..self.contents[digest].clone()
            })
            .collect();
        let published_as = Some(format!("{}.{}.{}", key.site, key.device, document.generation));
        Some(Message { sequence: *sequence, payload: decode::to_bytes(&document).into(), published_as })
    }

    fn publish(&mut self, outgoing: OutgoingDocument) -> u64 {
        self.sequence += 1;
        let OutgoingDocument { key, mut document, .. } = outgoing;
        let mut entries = Vec::new();
        let before = self.documents.get(&key).map(|before| before.entries.clone());
        for entry in std::mem::take(&mut document.deployments) {
            let has_it = before.iter().flatten().any(|(digest, _)| *digest == entry.digest);
            if !has_it {
                let generation = document.generation;
                self.due.push(Due { key: key.clone(), entry: entry.clone(), generation });
            }
            entries.push((entry.digest, entry.target_generation));
            self.contents.entry(entry.digest).or_insert(entry);
        }
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
        let mut sequences = Vec::with_capacity(documents.len());
        for outgoing in documents {
            let subject = LedgerSubject::Desired(outgoing.key.clone());
            self.fold(&subject, Fact::Desired(outgoing.document.clone()));
            sequences.push(Ok(self.stored.lock().unwrap().publish(outgoing)));
        }
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
        if subject.ends_with(".deployment") {
            return Ok(self.hub.answer(&payload));
        }
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
