//! `muster quarantine`: lists rejected reports (from ingest) and earlier verdicts (from LEDGER), shows one report, and has
//! reports requeued or dropped.

use std::collections::{BTreeMap, VecDeque};

use muster_bus::{Delivery, Start};
use muster_contract::decode;
use muster_contract::limits::PARTITIONS;
use muster_contract::partition::partition_of;
use muster_contract::quarantine::{
    HeldReport, QuarantineAction, QuarantineAnswer, QuarantineRequest, QuarantineVerdict, RefusedDevice,
    RejectionCode, Verdict,
};
use muster_contract::subjects::{LedgerSubject, stream};
use muster_contract::{DeviceKey, Refusal};
use serde::Serialize;
use tokio::time::timeout;

use crate::ask::{AskError, Hub, understood};
use crate::config::{JudgeArgs, ListArgs, SelectArgs};
use crate::devices;
use crate::error::{CtlError, settled};
use crate::render;
use crate::session::Session;

/// The subjects of all verdicts.
const VERDICTS: &str = "muster.verdict.>";
/// Messages taken from LEDGER at once.
const BATCH: usize = 256;

/// Rejected reports.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct List {
    /// The only device whose reports are listed; none if all are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceKey>,
    /// How many QUARANTINE holds, of those selected.
    pub held: u64,
    /// The bytes of their payloads.
    pub bytes: u64,
    /// How many of each reason.
    pub reasons: BTreeMap<RejectionCode, u64>,
    /// How many older ones are left out.
    pub before: u64,
    /// The newest, in the order of QUARANTINE.
    pub reports: VecDeque<HeldReport>,
    /// How many numbers QUARANTINE had no room for: devices keep the reports.
    pub refused: u64,
    /// Those numbers by device.
    pub refused_devices: Vec<RefusedDevice>,
    /// The number of earlier verdicts, on all reports or on the device's, as far back as LEDGER reaches.
    pub settled: Settled,
    /// The verdicts themselves, with `--settled`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub verdicts: Vec<Record>,
}

/// Earlier verdicts, counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Settled {
    /// They were accepted at last, or had come again.
    pub let_in: u64,
    /// A person dropped them.
    pub dropped: u64,
    /// QUARANTINE held them as long as it may.
    pub expired: u64,
}

/// A verdict as LEDGER records it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// Its sequence in LEDGER.
    pub ledger_seq: u64,
    /// Whose report it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceKey>,
    /// What was decided.
    #[serde(flatten)]
    pub verdict: QuarantineVerdict,
}

/// The answer for each report or device of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Judgements {
    /// In the order of asking.
    pub messages: Vec<QuarantineAnswer>,
}

/// Lists the reports in QUARANTINE and the numbers of reports that devices keep because it had no room.
///
/// # Errors
/// When nobody answers, or nobody has ever heard of the device.
pub async fn list(session: &mut Session<'_>, args: ListArgs) -> Result<(), CtlError> {
    let ListArgs { select, limit, settled } = args;
    let mut list = List { device: select.device_key().cloned(), ..List::default() };
    each_held(&session.hub, &select, |held| list.insert(held, limit)).await?;
    list.refused_devices = refused_devices(&session.hub, select.device_key()).await?;
    let refused = list.refused_devices.iter().flat_map(|device| &device.refused);
    list.refused = refused.map(|numbers| numbers.ranges.count()).sum();
    let records = verdicts(&session.hub, select.device_key()).await?;
    list.settled = Settled::of(&records);
    list.verdicts = if settled { records } else { Vec::new() };
    if let Some(key) = list.device.as_ref().filter(|_| list.is_empty()) {
        devices::expect_known(session, key).await?;
    }
    let frame = session.frame();
    session.show_own(&list, |list, _| render::quarantine::list(list, frame))
}

/// Shows one report with its payload.
///
/// # Errors
/// When nobody answers, or QUARANTINE holds no such report.
pub async fn show(session: &mut Session<'_>, quarantine_seq: u64) -> Result<(), CtlError> {
    let held = find(&session.hub, quarantine_seq).await?;
    session.show_own(&held, render::quarantine::one)
}

/// Has ingest judge reports again, or drop them; true where none of them stays. A requeue also asks devices for the reports that
/// they keep.
///
/// # Errors
/// When one of them is not in QUARANTINE, and then nothing is judged; or nobody answers: what was judged before is shown.
pub async fn judge(
    session: &mut Session<'_>,
    action: QuarantineAction,
    args: JudgeArgs,
) -> Result<bool, CtlError> {
    let requests = requests(&session.hub, action, args).await?;
    let mut judgements = Judgements::default();
    let failure = judge_all(&session.hub, &requests, &mut judgements).await.err();
    let shown = match judgements.messages.is_empty() && failure.is_some() {
        true => Ok(()),
        false => session.show_own(&judgements, |judgements, _| render::quarantine::judgements(judgements)),
    };
    match failure {
        // Why it went no further matters more than that it could not be shown how far.
        Some(error) => Err(error.into()),
        None => settled(shown).map(|()| judgements.messages.iter().all(|message| message.refused.is_none())),
    }
}

/// A request, and the device whose partition it goes to.
type Directed = (Option<DeviceKey>, QuarantineRequest);

async fn requests(hub: &Hub, action: QuarantineAction, args: JudgeArgs) -> Result<Vec<Directed>, CtlError> {
    let JudgeArgs { quarantine_seqs, all: _, select, reason } = args;
    let mut requests = Vec::new();
    let judge = |quarantine_seq| QuarantineRequest {
        reason: reason.clone(),
        ..QuarantineRequest::of(action, quarantine_seq)
    };
    for quarantine_seq in &quarantine_seqs {
        requests.push((find(hub, *quarantine_seq).await?.device, judge(*quarantine_seq)));
    }
    if !quarantine_seqs.is_empty() {
        return Ok(requests);
    }
    each_held(hub, &select, |held| requests.push((held.device, judge(held.quarantine_seq)))).await?;
    if action == QuarantineAction::Requeue && select.is_of_whole_devices() {
        for RefusedDevice { device, .. } in refused_devices(hub, select.device_key()).await? {
            let ask = QuarantineRequest {
                action,
                quarantine_seq: None,
                device: Some(device.clone()),
                reason: reason.clone(),
            };
            requests.push((Some(device), ask));
        }
    }
    Ok(requests)
}

/// Has each judged in turn. What was gathered stays where a later one fails.
async fn judge_all(hub: &Hub, requests: &[Directed], judgements: &mut Judgements) -> Result<(), AskError> {
    for (device, request) in requests {
        let partition = device.as_ref().map_or(0, partition_of);
        judgements.messages.push(understood(&hub.quarantine(partition, request).await?)?);
    }
    Ok(())
}

async fn find(hub: &Hub, quarantine_seq: u64) -> Result<HeldReport, CtlError> {
    let request = QuarantineRequest::of(QuarantineAction::Show, quarantine_seq);
    let answer: QuarantineAnswer = match hub.quarantine(0, &request).await {
        Ok(answer) => understood(&answer)?,
        Err(error) if error.not_found().is_some() => return Err(CtlError::NotQuarantined(quarantine_seq)),
        Err(error) => return Err(error.into()),
    };
    answer.reports.into_iter().next().ok_or(CtlError::NotQuarantined(quarantine_seq))
}

/// Hands every selected report that QUARANTINE holds to `take`, without its payload.
async fn each_held(hub: &Hub, select: &SelectArgs, mut take: impl FnMut(HeldReport)) -> Result<(), CtlError> {
    let mut request = QuarantineRequest {
        action: QuarantineAction::List,
        quarantine_seq: None,
        device: select.device_key().cloned(),
        reason: None,
    };
    loop {
        let page: QuarantineAnswer = understood(&hub.quarantine(0, &request).await?)?;
        page.reports.into_iter().filter(|held| select.selects(held)).for_each(&mut take);
        match page.next {
            Some(next) if Some(next) > request.quarantine_seq => request.quarantine_seq = Some(next),
            _ => return Ok(()),
        }
    }
}

/// Devices that keep reports because QUARANTINE had no room: of one device, or of all partitions.
async fn refused_devices(hub: &Hub, device: Option<&DeviceKey>) -> Result<Vec<RefusedDevice>, CtlError> {
    let partitions = device.map_or(0..PARTITIONS, |key| partition_of(key)..partition_of(key) + 1);
    let mut found = Vec::new();
    for partition in partitions {
        let mut after = None;
        loop {
            let request = QuarantineRequest {
                action: QuarantineAction::Refused,
                quarantine_seq: None,
                device: after.clone(),
                reason: None,
            };
            let page: QuarantineAnswer = understood(&hub.quarantine(partition, &request).await?)?;
            found.extend(page.devices.into_iter().filter(|of| device.is_none_or(|key| *key == of.device)));
            // A server that repeats a page must not hold the command for ever.
            if page.next_device <= after {
                break;
            }
            after = page.next_device;
        }
    }
    Ok(found)
}

/// The verdicts in LEDGER. A ledger that cannot be reached is an error, not an empty one; so is one that sends nothing within the
/// time for an answer.
async fn verdicts(hub: &Hub, device: Option<&DeviceKey>) -> Result<Vec<Record>, CtlError> {
    let filter = device
        .map_or_else(|| VERDICTS.to_owned(), |key| LedgerSubject::Verdict(Some(key.clone())).to_string());
    let mut replay = hub.bus().replay(stream::LEDGER, &[&filter], Start::First).await?;
    let mut records = Vec::new();
    let silent = |read| CtlError::Silent { subjects: filter.clone(), read, waited: hub.timeout() };
    while let Some(batch) =
        timeout(hub.timeout(), replay.next_present(BATCH)).await.map_err(|_| silent(records.len()))??
    {
        for delivery in batch {
            let ledger_seq = delivery.stream_seq;
            let record = Record::of(&delivery).map_err(|source| CtlError::Fact { ledger_seq, source })?;
            records.push(record);
        }
    }
    Ok(records)
}

impl List {
    fn insert(&mut self, held: HeldReport, limit: usize) {
        self.held += 1;
        self.bytes += held.bytes;
        *self.reasons.entry(held.report.code).or_default() += 1;
        self.reports.push_back(held);
        if self.reports.len() > limit {
            self.reports.pop_front();
            self.before += 1;
        }
    }

    /// True if nothing is held, refused or settled.
    pub fn is_empty(&self) -> bool {
        self.held == 0 && self.refused == 0 && self.settled == Settled::default()
    }
}

impl Settled {
    fn of(records: &[Record]) -> Self {
        let mut settled = Self::default();
        for record in records {
            match record.verdict.verdict {
                Verdict::LetIn | Verdict::AlreadyIn => settled.let_in += 1,
                Verdict::Dropped => settled.dropped += 1,
                Verdict::Expired => settled.expired += 1,
            }
        }
        settled
    }
}

impl Record {
    fn of(delivery: &Delivery) -> Result<Self, Refusal> {
        let verdict = decode::parse(&delivery.payload)?;
        let device = LedgerSubject::parse(&delivery.subject).and_then(|subject| subject.device().cloned());
        Ok(Self { ledger_seq: delivery.stream_seq, device, verdict })
    }
}
