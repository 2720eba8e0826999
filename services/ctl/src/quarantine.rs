//! `muster quarantine`: messages that could not be let in, read from the ledger itself, and what a person decides about
//! them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use muster_bus::{Bus, Delivery, Start};
use muster_contract::decode;
use muster_contract::fact::QuarantineFact;
use muster_contract::quarantine::{
    QuarantineAction, QuarantineAnswer, QuarantineRequest, QuarantineVerdict, Verdict,
};
use muster_contract::subjects::{LedgerSubject, stream};
use muster_contract::{DeviceKey, Refusal, RequestedBy, Timestamp};
use serde::Serialize;
use tokio::time::timeout;

use crate::ask::{AskError, Hub, understood};
use crate::config::JudgeArgs;
use crate::devices;
use crate::error::{CtlError, settled};
use crate::render;
use crate::session::Session;

/// All of quarantine.
const EVERYTHING: &str = "muster.quarantine.>";
/// What became of it.
const VERDICTS: &str = "muster.verdict.>";
/// Messages taken from the ledger at once.
const BATCH: usize = 256;

/// A message in quarantine, as LEDGER holds it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Held {
    /// Its number in LEDGER.
    pub ledger_seq: u64,
    /// Who sent it; none where the sender's name is no identifier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceKey>,
    /// What ingest says of it.
    pub fact: QuarantineFact,
    /// What became of it; none while it is in quarantine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
    /// Who asked for that; none where nobody proved who asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requested_by: Option<RequestedBy>,
}

/// The newest messages in quarantine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct List {
    /// The device they are of; of all if none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceKey>,
    /// How many older ones are left out.
    pub before: u64,
    /// How many are in quarantine.
    pub open: u64,
    /// How many were let in or dropped, of all.
    pub settled: u64,
    /// The newest, in the order of the ledger.
    pub messages: VecDeque<Held>,
}

/// What became of each message asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Judgements {
    /// In the order of asking.
    pub messages: Vec<QuarantineAnswer>,
}

/// Lists the newest messages, of one device or of all; with `all` also those that are settled.
///
/// # Errors
/// When the ledger cannot be read, or nobody has ever heard of the device.
pub async fn list(
    session: &mut Session<'_>,
    device: Option<DeviceKey>,
    limit: usize,
    all: bool,
) -> Result<(), CtlError> {
    let (held, verdicts) = match &device {
        Some(key) => (
            LedgerSubject::Quarantine(Some(key.clone())).to_string(),
            LedgerSubject::Verdict(Some(key.clone())).to_string(),
        ),
        None => (EVERYTHING.to_owned(), VERDICTS.to_owned()),
    };
    let verdicts = self::verdicts(&session.hub, &verdicts, Start::First).await?;
    let mut list = List { device, ..List::default() };
    let mut known = BTreeSet::new();
    // Messages may be large and many: no more of them are held than are shown.
    read(&session.hub, &held, Start::First, |delivery| {
        let held = Held::of(delivery)?.judged_by(&verdicts);
        // What still casts a doubt is said again before it ages out: the newest copy stands for all.
        match known.insert(held.identity()) {
            true => list.take(held, limit, all),
            false => list.replace(held),
        }
        Ok(())
    })
    .await?;
    if let Some(key) = list.device.as_ref().filter(|_| list.open + list.settled == 0) {
        devices::expect_known(session, key).await?;
    }
    let frame = session.frame();
    session.show_own(&list, |list, _| render::quarantine::list(list, frame))
}

/// Shows one message.
///
/// # Errors
/// When the ledger cannot be read, or holds something else at that number.
pub async fn show(session: &mut Session<'_>, ledger_seq: u64) -> Result<(), CtlError> {
    let held = find(session.hub.bus(), ledger_seq).await?;
    let subject = LedgerSubject::Verdict(held.device.clone()).to_string();
    let verdicts = verdicts(&session.hub, &subject, Start::After(ledger_seq)).await?;
    session.show_own(&held.judged_by(&verdicts), render::quarantine::one)
}

/// Has ingest judge messages again, or drop them; true where none of them stays.
///
/// # Errors
/// When one of them is no message in quarantine, and then nothing is judged; or nobody answers: what was judged before
/// is shown.
pub async fn judge(
    session: &mut Session<'_>,
    action: QuarantineAction,
    args: JudgeArgs,
) -> Result<bool, CtlError> {
    let mut asked = Vec::with_capacity(args.ledger_seqs.len());
    for ledger_seq in args.ledger_seqs {
        // A message may be large: what is kept of it is whose it is.
        let device = find(session.hub.bus(), ledger_seq).await?.device;
        asked.push((device, QuarantineRequest { action, ledger_seq, reason: args.reason.clone() }));
    }
    let mut judgements = Judgements::default();
    let failure = judge_all(&session.hub, &asked, &mut judgements).await.err();
    let shown = match judgements.messages.is_empty() {
        true => Ok(()),
        false => session.show_own(&judgements, |judgements, _| render::quarantine::judgements(judgements)),
    };
    match failure {
        // Why it went no further matters more than that it could not be shown how far.
        Some(error) => Err(error.into()),
        None => settled(shown).map(|()| judgements.messages.iter().all(|message| message.verdict.is_some())),
    }
}

/// Has each judged in turn. What was gathered stays where a later one fails.
async fn judge_all(
    hub: &Hub,
    asked: &[(Option<DeviceKey>, QuarantineRequest)],
    judgements: &mut Judgements,
) -> Result<(), AskError> {
    for (device, request) in asked {
        let answer = hub.quarantine(device.as_ref(), request).await?;
        judgements.messages.push(understood(&answer)?);
    }
    Ok(())
}

async fn find(bus: &Bus, ledger_seq: u64) -> Result<Held, CtlError> {
    let found = bus.at(stream::LEDGER, ledger_seq).await?;
    let subject = found.as_ref().and_then(|delivery| LedgerSubject::parse(&delivery.subject));
    match (found, subject) {
        (Some(delivery), Some(LedgerSubject::Quarantine(_))) => {
            Held::of(&delivery).map_err(|source| CtlError::Fact { ledger_seq, source })
        }
        _ => Err(CtlError::NotQuarantined(ledger_seq)),
    }
}

/// What was decided: by the number in LEDGER of the copy that was asked about, and by what all its copies share.
#[derive(Default)]
struct Verdicts {
    of: BTreeMap<u64, Decision>,
    by_identity: BTreeMap<Identity, Decision>,
}

/// What became of a message, and who asked for it.
type Decision = (Verdict, Option<RequestedBy>);
/// Who sent a message, and when the bus took it in: the same for every copy of it.
type Identity = (Option<DeviceKey>, Timestamp);

impl Verdicts {
    fn on(&self, held: &Held) -> Option<Decision> {
        self.of.get(&held.ledger_seq).or_else(|| self.by_identity.get(&held.identity())).cloned()
    }
}

async fn verdicts(hub: &Hub, filter: &str, start: Start) -> Result<Verdicts, CtlError> {
    let mut verdicts = Verdicts::default();
    read(hub, filter, start, |delivery| {
        let QuarantineVerdict { of, verdict, received_at, requested_by, .. } =
            decode::parse(&delivery.payload)?;
        let decision = (verdict, requested_by);
        verdicts.of.insert(of, decision.clone());
        let device = device(delivery);
        verdicts.by_identity.extend(received_at.map(|at| ((device, at), decision)));
        Ok(())
    })
    .await?;
    Ok(verdicts)
}

/// Reads what the ledger holds now. A ledger that cannot be reached is no empty one, and one that falls silent is waited for
/// as long as any answer.
async fn read(
    hub: &Hub,
    filter: &str,
    start: Start,
    mut take: impl FnMut(&Delivery) -> Result<(), Refusal>,
) -> Result<(), CtlError> {
    let (mut replay, mut count) = (hub.bus().replay(stream::LEDGER, &[filter], start).await?, 0);
    let silent = |count| CtlError::Silent { subjects: filter.to_owned(), read: count, waited: hub.timeout() };
    while let Some(batch) =
        timeout(hub.timeout(), replay.next_present(BATCH)).await.map_err(|_| silent(count))??
    {
        count += batch.len();
        for delivery in batch {
            let ledger_seq = delivery.stream_seq;
            take(&delivery).map_err(|source| CtlError::Fact { ledger_seq, source })?;
        }
    }
    Ok(())
}

impl List {
    fn take(&mut self, held: Held, limit: usize, all: bool) {
        self.open += u64::from(held.verdict.is_none());
        self.settled += u64::from(held.verdict.is_some());
        if held.verdict.is_some() && !all {
            return;
        }
        self.messages.push_back(held);
        if self.messages.len() > limit {
            self.messages.pop_front();
            self.before += 1;
        }
    }

    /// A newer copy of a message that was taken.
    fn replace(&mut self, held: Held) {
        let older = self.messages.iter().position(|message| message.identity() == held.identity());
        if let Some(older) = older {
            self.messages.remove(older);
            self.messages.push_back(held);
        }
    }
}

impl Held {
    fn of(delivery: &Delivery) -> Result<Self, Refusal> {
        let fact = decode::parse(&delivery.payload)?;
        let (ledger_seq, device) = (delivery.stream_seq, device(delivery));
        Ok(Self { ledger_seq, device, fact, verdict: None, requested_by: None })
    }

    fn judged_by(self, verdicts: &Verdicts) -> Self {
        let (verdict, requested_by) = verdicts.on(&self).unzip();
        Self { verdict, requested_by: requested_by.flatten(), ..self }
    }

    fn identity(&self) -> Identity {
        (self.device.clone(), self.fact.received_at)
    }
}

fn device(delivery: &Delivery) -> Option<DeviceKey> {
    LedgerSubject::parse(&delivery.subject).and_then(|subject| subject.device().cloned())
}
