//! `muster quarantine`: messages that could not be let in, read from the ledger itself.

use std::collections::VecDeque;

use muster_bus::{Bus, Delivery, ReadError, Start};
use muster_contract::decode;
use muster_contract::fact::QuarantineFact;
use muster_contract::subjects::{LedgerSubject, stream};
use muster_contract::{DeviceKey, Refusal};
use serde::Serialize;

use crate::devices;
use crate::error::CtlError;
use crate::render;
use crate::session::Session;

/// All of quarantine.
const EVERYTHING: &str = "muster.quarantine.>";
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
}

/// The newest messages in quarantine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct List {
    /// The device they are of; of all if none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceKey>,
    /// How many older ones are left out.
    pub before: u64,
    /// The newest, in the order of the ledger.
    pub messages: VecDeque<Held>,
}

/// Lists the newest messages, of one device or of all.
///
/// # Errors
/// When the ledger cannot be read, or nobody has ever heard of the device.
pub async fn list(
    session: &mut Session<'_>,
    device: Option<DeviceKey>,
    limit: usize,
) -> Result<(), CtlError> {
    let filter = match &device {
        Some(key) => LedgerSubject::Quarantine(Some(key.clone())).to_string(),
        None => EVERYTHING.to_owned(),
    };
    let list = List { device, ..newest(session.hub.bus(), &filter, limit).await? };
    if let Some(key) = list.device.as_ref().filter(|_| list.messages.is_empty()) {
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
    let start = Start::After(ledger_seq - 1);
    let mut replay = match session.hub.bus().replay(stream::LEDGER, &[EVERYTHING], start).await {
        // The ledger does not reach as far, or no longer holds it.
        Err(ReadError::StreamReset { .. } | ReadError::Trimmed { .. } | ReadError::Missing { .. }) => {
            return Err(CtlError::NotQuarantined(ledger_seq));
        }
        replay => replay?,
    };
    if replay.waiting() == 0 {
        return Err(CtlError::NotQuarantined(ledger_seq));
    }
    let first = replay.next_batch(1).await?.into_iter().find(|delivery| delivery.stream_seq == ledger_seq);
    let held = first.map(|delivery| Held::of(&delivery)).ok_or(CtlError::NotQuarantined(ledger_seq))?;
    let held = held.map_err(|source| CtlError::Fact { ledger_seq, source })?;
    session.show_own(&held, render::quarantine::one)
}

async fn newest(bus: &Bus, filter: &str, limit: usize) -> Result<List, CtlError> {
    let mut replay = match bus.replay(stream::LEDGER, &[filter], Start::First).await {
        Err(ReadError::Missing { .. }) => return Ok(List::default()),
        replay => replay?,
    };
    let mut list = List::default();
    let mut read = 0;
    while read < replay.waiting() {
        for delivery in replay.next_batch(BATCH).await? {
            read += 1;
            let ledger_seq = delivery.stream_seq;
            let held = Held::of(&delivery).map_err(|source| CtlError::Fact { ledger_seq, source })?;
            list.messages.push_back(held);
            if list.messages.len() > limit {
                list.messages.pop_front();
                list.before += 1;
            }
        }
    }
    Ok(list)
}

impl Held {
    fn of(delivery: &Delivery) -> Result<Self, Refusal> {
        let device = LedgerSubject::parse(&delivery.subject).and_then(|subject| subject.device().cloned());
        let fact = decode::parse(&delivery.payload)?;
        Ok(Self { ledger_seq: delivery.stream_seq, device, fact })
    }
}
