//! Answers `muster.query.actions`: what was done to a deployment as a whole, up to any point.
//!
//! Actions are not stored: the desired states in LEDGER are read on request, each once, and released when no
//! request has come for a while. If the time does not suffice to read them, the answer reports the progress,
//! and the next request continues from there.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use muster_bus::{Bus, Delivery, Permits, ReadError, Requester, RequesterBounds, Start};
use muster_contract::DeploymentId;
use muster_contract::actions::ActionsAnswer;
use muster_contract::checked::Checked;
use muster_contract::fact::Fact;
use muster_contract::query::{ErrorBody, ErrorCode};
use muster_contract::question::{ANSWER_BYTES_MAX, found, json, named, nowhere, read_query};
use muster_contract::subjects::{LedgerSubject, stream::LEDGER};
use muster_contract::view::AsOf;
use muster_domain::chronicle::{Chronicle, as_of};
use muster_domain::fold::Position;
use muster_service::blocking::block_in_place_if_large;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

use super::present::caught_up;
use crate::history::point::Points;
use crate::history::point_in_time::{self, PATIENCE};
use crate::history::rebuild::unreadable;
use crate::history::tail::{BATCH_MAX, fact};
use crate::projection::{Origin, Projection};

/// The last token of its subject.
pub(super) const ENDPOINT: &str = "actions";
/// The messages of LEDGER that are read.
const DESIRED: &str = "muster.desired.>";
/// Questions that wait at once: in total, for one requester, and for operators alone. A question beyond that is
/// asked at once to try again, so that the service has room for others.
const ASKERS: RequesterBounds = RequesterBounds::new(8, 3, 2);
/// How long an unrequested chronicle is kept; at most twice that.
const KEPT_FOR: Duration = Duration::from_secs(5 * 60);

/// Reads actions. Clones share the cache.
#[derive(Debug, Clone)]
pub(crate) struct Actions {
    bus: Bus,
    projection: Arc<Projection>,
    points: Points,
    held: Arc<Mutex<CachedActions>>,
    places: Permits,
}

/// The chronicle of one LEDGER.
#[derive(Debug, Default)]
struct CachedActions {
    of: Option<Origin>,
    chronicle: Chronicle,
    checked: Checked,
    /// The sequence of the last applied message.
    position: u64,
    /// Everything up to this sequence is applied.
    read_to: u64,
    /// LEDGER's first sequence when reading began, unless that was its first fact ever.
    begin: Option<AsOf>,
    /// A request came since the last check.
    is_wanted: bool,
}

impl Actions {
    /// A reader of LEDGER on this bus, the one of the projection and the points.
    pub(crate) fn new(bus: Bus, projection: Arc<Projection>, points: Points) -> Self {
        Self { bus, projection, points, held: Arc::default(), places: Permits::new(ASKERS) }
    }

    /// Releases a chronicle without recent requests, until `stop`.
    pub(crate) async fn tidy(self, stop: CancellationToken) {
        while stop.run_until_cancelled(sleep(KEPT_FOR)).await.is_some() {
            let mut held = self.held.lock().await;
            if !std::mem::take(&mut held.is_wanted) {
                *held = CachedActions::default();
            }
        }
    }

    /// The answer to a question, as JSON.
    pub(super) async fn answer(&self, question: &[u8], requester: &Requester) -> Result<Bytes, ErrorBody> {
        let query = read_query(ENDPOINT, question)?;
        let id = named(query.id.as_ref(), "id")?;
        let busy = || not_ready("other questions about what was done wait for LEDGER");
        let _place = self.places.acquire(requester).map_err(|_| busy())?;
        let deadline = Instant::now() + PATIENCE;
        self.projection.read(|now| caught_up(now).map(|_| ()))?;
        let up_to = match self.points.asked(query.point, deadline).await?.wanted {
            point_in_time::RebuildTarget::At(seq) => seq,
            // Desired states are as the hub knew them then.
            point_in_time::RebuildTarget::EventTime { then, .. } => then,
            point_in_time::RebuildTarget::Verified
            | point_in_time::RebuildTarget::Changes { .. }
            | point_in_time::RebuildTarget::Remaining { .. } => {
                self.projection.read(|now| now.fleet.as_of().ledger_seq)
            }
        };
        let mut held = timeout_at(deadline, self.held.lock()).await.map_err(|_| busy())?;
        held.enter(self.projection.read(|now| now.origin));
        let read = timeout_at(deadline, held.read(&self.bus, up_to)).await;
        let at = held.position;
        read.map_err(|_| not_ready(&format!("still reading what was done (at ledger {at} of {up_to})")))?
            .map_err(|error| unreadable(&error))?;
        let answer = held.answer_up_to(id, up_to);
        let is_there =
            held.chronicle.knows(id) || self.projection.read(|now| now.fleet.deployment_view(id).is_some());
        fitting(found(is_there.then_some(answer), || nowhere(id))?)
    }
}

impl CachedActions {
    /// From here on the cache is about this LEDGER, and was requested.
    fn enter(&mut self, origin: Origin) {
        if self.of != Some(origin) {
            *self = Self { of: Some(origin), ..Self::default() };
        }
        self.is_wanted = true;
    }

    /// Reads on until everything up to a fact is applied. Applied facts are kept if the read is abandoned.
    async fn read(&mut self, bus: &Bus, up_to: u64) -> Result<(), ReadError> {
        if self.read_to >= up_to {
            return Ok(());
        }
        match self.read_on(bus, up_to).await {
            // No request came for so long that LEDGER has discarded messages in between.
            Err(ReadError::Trimmed { .. } | ReadError::StreamReset { .. }) if self.position > 0 => {
                *self = Self { of: self.of, is_wanted: true, ..Self::default() };
                self.read_on(bus, up_to).await
            }
            read => read,
        }
    }

    async fn read_on(&mut self, bus: &Bus, up_to: u64) -> Result<(), ReadError> {
        let start = if self.position == 0 { Start::First } else { Start::After(self.position) };
        let mut replay = bus.replay(LEDGER, &[DESIRED], start).await?;
        // The projection has read `up_to`, so LEDGER's present content includes everything up to it.
        while let Some(batch) = replay.next_present(BATCH_MAX).await? {
            block_in_place_if_large(batch.len(), || {
                batch.iter().for_each(|message| self.apply_message(message));
            });
        }
        if self.read_to == 0 {
            let state = bus.stream_state(LEDGER).await?;
            let begin = AsOf { ledger_seq: state.first_seq, at: state.first_at };
            self.begin = Some(begin).filter(|begin| begin.ledger_seq > 1);
        }
        self.read_to = up_to.max(self.position);
        Ok(())
    }

    /// Applies a message. An unreadable one is skipped, as in the fold.
    fn apply_message(&mut self, message: &Delivery) {
        let at = Position { ledger_seq: message.stream_seq, stored_at: message.stored_at };
        if let Ok((LedgerSubject::Desired(key), Fact::Desired(state))) = fact(message, &mut self.checked) {
            self.chronicle.apply(at, &key, &state);
        }
        self.position = message.stream_seq;
    }

    fn answer_up_to(&self, id: &DeploymentId, up_to: u64) -> ActionsAnswer {
        let (actions, since) = self.chronicle.actions(id, up_to);
        ActionsAnswer { deployment: id.clone(), ledger_seq: up_to, since: since.or(self.begin), actions }
    }
}

/// Serializes the answer with as many of the newest actions as fit into a message.
fn fitting(mut answer: ActionsAnswer) -> Result<Bytes, ErrorBody> {
    loop {
        let bytes = json(&answer)?;
        if bytes.len() <= ANSWER_BYTES_MAX || answer.actions.is_empty() {
            return Ok(bytes.into());
        }
        answer.actions.remove(0);
        answer.since = answer.actions.first().map(as_of).or(answer.since);
    }
}

fn not_ready(message: &str) -> ErrorBody {
    ErrorBody { code: ErrorCode::NotReady, message: format!("{message}; ask again in a moment") }
}
