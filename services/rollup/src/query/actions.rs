//! `muster.query.actions`: what was done to a deployment as a whole, at any point. It is kept nowhere: the desired states in
//! LEDGER are read when somebody asks, each once for whoever asks next, and are let go of when nobody has asked for a while.
//! Where there is not time enough to read them, the answer is how far it is, and whoever asks again finds what was read.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use muster_bus::{Bus, Delivery, Places, ReadError, Requester, RequesterBounds, Start};
use muster_contract::DeploymentId;
use muster_contract::actions::ActionsAnswer;
use muster_contract::checked::Checked;
use muster_contract::fact::Fact;
use muster_contract::query::{ErrorBody, ErrorCode, Query};
use muster_contract::question::{ANSWER_BYTES_MAX, found, json, named, nowhere, read_of_a_point};
use muster_contract::subjects::{LedgerSubject, stream::LEDGER};
use muster_contract::view::AsOf;
use muster_domain::chronicle::{Chronicle, place};
use muster_domain::fold::Position;
use muster_service::aside::aside;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

use super::caught_up;
use crate::history::point::Points;
use crate::history::rebuild::unreadable;
use crate::history::recall::{self, PATIENCE};
use crate::history::tail::{BATCH_MAX, fact};
use crate::present::{Origin, Present};

/// The last token of its subject.
pub(super) const ENDPOINT: &str = "actions";
/// The messages of LEDGER that are read.
const DESIRED: &str = "muster.desired.>";
/// Questions that wait at once: in all, of one requester, and for operators alone. Whoever comes beyond is told at once to ask
/// again: the service has room for other questions.
const ASKERS: RequesterBounds = RequesterBounds::new(8, 3, 2);
/// How long what was read is held that nobody asks for; at most twice that.
const KEPT_FOR: Duration = Duration::from_secs(5 * 60);

/// Who reads them. Clones share what is held.
#[derive(Debug, Clone)]
pub struct Actions {
    bus: Bus,
    present: Arc<Present>,
    points: Points,
    held: Arc<Mutex<Held>>,
    places: Places,
}

/// What was read of one LEDGER.
#[derive(Debug, Default)]
struct Held {
    of: Option<Origin>,
    chronicle: Chronicle,
    checked: Checked,
    /// Sequence of the last message that was taken in.
    position: u64,
    /// Everything up to here is taken in.
    read_to: u64,
    /// Where LEDGER began when its beginning was read, unless that was its first fact.
    begin: Option<AsOf>,
    /// Somebody has asked since it was last looked at.
    is_wanted: bool,
}

impl Actions {
    /// A reader of LEDGER on this bus, which is the one that the present and the points are of.
    pub fn new(bus: Bus, present: Arc<Present>, points: Points) -> Self {
        Self { bus, present, points, held: Arc::default(), places: Places::new(ASKERS) }
    }

    /// Lets go of what nobody asks for any more, until `stop`.
    pub async fn tidy(self, stop: CancellationToken) {
        while stop.run_until_cancelled(sleep(KEPT_FOR)).await.is_some() {
            let mut held = self.held.lock().await;
            if !std::mem::take(&mut held.is_wanted) {
                *held = Held::default();
            }
        }
    }

    /// The answer to a question, as JSON.
    pub(super) async fn answer(&self, question: &[u8], requester: &Requester) -> Result<Bytes, ErrorBody> {
        let query: Query = read_of_a_point(question)?;
        let id = named(query.id.as_ref(), "id")?;
        let busy = || not_ready("other questions about what was done wait for LEDGER");
        let _place = self.places.enter(requester).map_err(|_| busy())?;
        let deadline = Instant::now() + PATIENCE;
        self.present.look(|now| caught_up(now).map(|_| ()))?;
        let up_to = match self.points.asked(query.point, deadline).await?.wanted {
            recall::Wanted::At(seq) => seq,
            // Desired states are as the hub knew them then.
            recall::Wanted::About { then, .. } => then,
            recall::Wanted::Verified => self.present.look(|now| now.fleet.as_of().ledger_seq),
        };
        let mut held = timeout_at(deadline, self.held.lock()).await.map_err(|_| busy())?;
        held.enter(self.present.look(|now| now.origin));
        let read = timeout_at(deadline, held.read(&self.bus, up_to)).await;
        let at = held.position;
        read.map_err(|_| not_ready(&format!("still reading what was done (at ledger {at} of {up_to})")))?
            .map_err(|error| unreadable(&error))?;
        let answer = held.told(id, up_to);
        let is_there =
            held.chronicle.knows(id) || self.present.look(|now| now.fleet.deployment_view(id).is_some());
        fitting(found(is_there.then_some(answer), || nowhere(id))?)
    }
}

impl Held {
    /// From here on it is about this LEDGER, and somebody asks.
    fn enter(&mut self, origin: Origin) {
        if self.of != Some(origin) {
            *self = Self { of: Some(origin), ..Self::default() };
        }
        self.is_wanted = true;
    }

    /// Reads on until everything up to a fact is taken in. What was taken in stays where this is given up.
    async fn read(&mut self, bus: &Bus, up_to: u64) -> Result<(), ReadError> {
        if self.read_to >= up_to {
            return Ok(());
        }
        match self.read_on(bus, up_to).await {
            // Nobody has asked for longer than LEDGER keeps what lies between.
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
        // All that LEDGER held by now is all up to a fact that the present has read.
        while let Some(batch) = replay.next_present(BATCH_MAX).await? {
            aside(batch.len(), || batch.iter().for_each(|message| self.take(message)));
        }
        if self.read_to == 0 {
            let state = bus.stream_state(LEDGER).await?;
            let begin = AsOf { ledger_seq: state.first_seq, at: state.first_at };
            self.begin = Some(begin).filter(|begin| begin.ledger_seq > 1);
        }
        self.read_to = up_to.max(self.position);
        Ok(())
    }

    /// Takes in a message. One that nobody can read says nothing here, as it says nothing to the fold.
    fn take(&mut self, message: &Delivery) {
        let at = Position { ledger_seq: message.stream_seq, stored_at: message.stored_at };
        if let Ok((LedgerSubject::Desired(key), Fact::Desired(state))) = fact(message, &mut self.checked) {
            self.chronicle.apply(at, &key, &state);
        }
        self.position = message.stream_seq;
    }

    fn told(&self, id: &DeploymentId, up_to: u64) -> ActionsAnswer {
        let (actions, since) = self.chronicle.actions(id, up_to);
        ActionsAnswer { deployment: id.clone(), ledger_seq: up_to, since: since.or(self.begin), actions }
    }
}

/// The answer as it is sent: with as many of the newest actions as fit into a message.
fn fitting(mut answer: ActionsAnswer) -> Result<Bytes, ErrorBody> {
    loop {
        let bytes = json(&answer)?;
        if bytes.len() <= ANSWER_BYTES_MAX || answer.actions.is_empty() {
            return Ok(bytes.into());
        }
        answer.actions.remove(0);
        answer.since = answer.actions.first().map(place).or(answer.since);
    }
}

fn not_ready(message: &str) -> ErrorBody {
    ErrorBody { code: ErrorCode::NotReady, message: format!("{message}; ask again in a moment") }
}
