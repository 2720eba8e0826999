//! Rejected reports for a person: lists them (from ingest) and earlier verdicts (from LEDGER), shows one report, and has
//! reports requeued or dropped.

use std::collections::{BTreeMap, VecDeque};

use muster_bus::{Delivery, Start};
use muster_contract::decode;
use muster_contract::limits::PARTITIONS;
use muster_contract::partition::partition_of;
use muster_contract::quarantine::{
    HeldReport, QuarantineAction, QuarantineAnswer, QuarantineDecision, QuarantineRequest, QuarantineVerdict,
    RefusedDevice, RejectionCode,
};
use muster_contract::subjects::{LedgerSubject, stream};
use muster_contract::{DeviceKey, Refusal, Timestamp};
use serde::Serialize;
use tokio::time::timeout;

use crate::ask::{AskError, Hub, understood};

/// The subjects of all verdicts.
const VERDICTS: &str = "muster.verdict.>";
/// Messages taken from LEDGER at once.
const BATCH: usize = 256;

/// The filters that select reports; a report must pass all of them.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// Only those of a device.
    pub device: Option<DeviceKey>,
    /// Only those rejected for a reason.
    pub code: Option<RejectionCode>,
    /// Only those received at a time or later.
    pub since: Option<Timestamp>,
    /// Only those received before a time.
    pub until: Option<Timestamp>,
}

/// Reports to requeue or to drop.
#[derive(Debug, Clone, Default)]
pub struct JudgeRequest {
    /// Their sequences in QUARANTINE; if empty, those that `select` selects.
    pub quarantine_seqs: Vec<u64>,
    /// The filters.
    pub select: Selection,
    /// The reason, for the record.
    pub reason: Option<String>,
}

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
    #[serde(rename = "letIn")]
    pub accepted: u64,
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
    /// The device that sent the report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceKey>,
    /// The decision.
    #[serde(flatten)]
    pub verdict: QuarantineVerdict,
}

/// The answer for each report or device of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Judgements {
    /// In the order of asking.
    pub messages: Vec<QuarantineAnswer>,
}

/// Lists the reports in QUARANTINE, the newest `limit` of them in full, and the numbers of reports that devices keep because it
/// had no room; with the verdicts themselves if `settled`.
///
/// # Errors
/// No ingest answers, or LEDGER cannot be read.
pub async fn list(hub: &Hub, select: &Selection, limit: usize, settled: bool) -> Result<List, AskError> {
    let mut list = List { device: select.device.clone(), ..List::default() };
    each_held(hub, select, |held| list.insert(held, limit)).await?;
    list.refused_devices = refused_devices(hub, select.device.as_ref()).await?;
    let refused = list.refused_devices.iter().flat_map(|device| &device.refused);
    list.refused = refused.map(|numbers| numbers.ranges.count()).sum();
    let records = verdicts(hub, select.device.as_ref()).await?;
    list.settled = Settled::of(&records);
    list.verdicts = if settled { records } else { Vec::new() };
    Ok(list)
}

/// Counts the reports in QUARANTINE by reason, and keeps the newest `limit`. It reads no verdict and asks for no refused
/// number.
///
/// # Errors
/// No ingest answers.
pub async fn list_stored(hub: &Hub, select: &Selection, limit: usize) -> Result<List, AskError> {
    let mut list = List { device: select.device.clone(), ..List::default() };
    each_held(hub, select, |held| list.insert(held, limit)).await?;
    Ok(list)
}

/// Has ingest judge reports again, or drop them. A requeue by filters also asks devices (the one of the filter, if it names
/// one) for all reports that they keep, because the hub does not know the reasons and times of those. The answers so far
/// stay in `judgements` if a later request fails.
///
/// # Errors
/// No ingest answers. Nothing is judged if a named report is not in QUARANTINE.
pub async fn judge(
    hub: &Hub,
    action: QuarantineAction,
    request: &JudgeRequest,
    judgements: &mut Judgements,
) -> Result<Result<(), NotHeld>, AskError> {
    let requests = match requests(hub, action, request).await? {
        Ok(requests) => requests,
        Err(missing) => return Ok(Err(missing)),
    };
    for (device, request) in &requests {
        let partition = device.as_ref().map_or(0, partition_of);
        judgements.messages.push(understood(&hub.quarantine(partition, request).await?)?);
    }
    Ok(Ok(()))
}

/// The sequence of a report that QUARANTINE does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotHeld(pub u64);

/// A request, and the device whose partition it goes to.
type Directed = (Option<DeviceKey>, QuarantineRequest);

async fn requests(
    hub: &Hub,
    action: QuarantineAction,
    request: &JudgeRequest,
) -> Result<Result<Vec<Directed>, NotHeld>, AskError> {
    let JudgeRequest { quarantine_seqs, select, reason } = request;
    let mut requests = Vec::new();
    let judge = |quarantine_seq| QuarantineRequest {
        reason: reason.clone(),
        ..QuarantineRequest::of(action, quarantine_seq)
    };
    for quarantine_seq in quarantine_seqs {
        let Some(held) = find(hub, *quarantine_seq).await? else { return Ok(Err(NotHeld(*quarantine_seq))) };
        requests.push((held.device, judge(*quarantine_seq)));
    }
    if !quarantine_seqs.is_empty() {
        return Ok(Ok(requests));
    }
    each_held(hub, select, |held| requests.push((held.device, judge(held.quarantine_seq)))).await?;
    if action == QuarantineAction::Requeue {
        for RefusedDevice { device, .. } in refused_devices(hub, select.device.as_ref()).await? {
            let ask = QuarantineRequest {
                action,
                quarantine_seq: None,
                device: Some(device.clone()),
                reason: reason.clone(),
            };
            requests.push((Some(device), ask));
        }
    }
    Ok(Ok(requests))
}

/// One report with its payload; `None` if QUARANTINE does not hold it.
///
/// # Errors
/// No ingest answers.
pub async fn find(hub: &Hub, quarantine_seq: u64) -> Result<Option<HeldReport>, AskError> {
    // Streams count from 1, and the server refuses to look for 0.
    if quarantine_seq == 0 {
        return Ok(None);
    }
    let request = QuarantineRequest::of(QuarantineAction::Show, quarantine_seq);
    let answer: QuarantineAnswer = match hub.quarantine(0, &request).await {
        Ok(answer) => understood(&answer)?,
        Err(error) if error.not_found().is_some() => return Ok(None),
        Err(error) => return Err(error),
    };
    Ok(answer.reports.into_iter().next())
}

/// Hands every selected report that QUARANTINE holds to `take`, without its payload.
async fn each_held(hub: &Hub, select: &Selection, mut take: impl FnMut(HeldReport)) -> Result<(), AskError> {
    let mut request = QuarantineRequest {
        action: QuarantineAction::List,
        quarantine_seq: None,
        device: select.device.clone(),
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
async fn refused_devices(hub: &Hub, device: Option<&DeviceKey>) -> Result<Vec<RefusedDevice>, AskError> {
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
async fn verdicts(hub: &Hub, device: Option<&DeviceKey>) -> Result<Vec<Record>, AskError> {
    let filter = device
        .map_or_else(|| VERDICTS.to_owned(), |key| LedgerSubject::Verdict(Some(key.clone())).to_string());
    let mut replay = hub.bus().replay(stream::LEDGER, &[&filter], Start::First).await?;
    let mut records = Vec::new();
    let silent = |read| AskError::Silent { subjects: filter.clone(), read, waited: hub.timeout() };
    while let Some(batch) =
        timeout(hub.timeout(), replay.next_present(BATCH)).await.map_err(|_| silent(records.len()))??
    {
        for delivery in batch {
            let ledger_seq = delivery.stream_seq;
            let record = Record::of(&delivery).map_err(|source| AskError::Fact { ledger_seq, source })?;
            records.push(record);
        }
    }
    Ok(records)
}

impl Selection {
    /// Whether a report passes the filters other than `device`, which ingest applies.
    pub fn selects(&self, held: &HeldReport) -> bool {
        let received_at = held.report.received_at;
        self.code.is_none_or(|code| code == held.report.code)
            && self.since.is_none_or(|since| received_at >= since)
            && self.until.is_none_or(|until| received_at < until)
    }
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
                QuarantineDecision::LetIn | QuarantineDecision::AlreadyIn => settled.accepted += 1,
                QuarantineDecision::Dropped => settled.dropped += 1,
                QuarantineDecision::Expired => settled.expired += 1,
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

#[cfg(test)]
mod tests {
    use muster_contract::quarantine::RejectedReport;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// A report of each of three codes at each of five seconds.
    fn reports() -> Vec<HeldReport> {
        let bytes = include_bytes!("../../../schemas/examples/good/RejectedReport.of-nobody.json");
        let report: RejectedReport = serde_json::from_slice(bytes).unwrap();
        let codes = RejectionCode::ALL.into_iter().take(3);
        let all = codes.flat_map(|code| (0..5).map(move |second| (code, at(second))));
        let held = |(number, (code, received_at))| HeldReport {
            quarantine_seq: number,
            device: None,
            bytes: 0,
            report: RejectedReport { code, received_at, ..report.clone() },
        };
        (0..).zip(all).map(held).collect()
    }

    #[test]
    fn any_filters_select_the_reports_of_a_naive_count() {
        let times: Vec<Option<Timestamp>> =
            std::iter::once(None).chain((0..6).map(|it| Some(at(it)))).collect();
        let codes = std::iter::once(None).chain(RejectionCode::ALL.into_iter().take(4).map(Some));
        let reports = reports();
        for code in codes {
            for since in &times {
                for until in &times {
                    let select = Selection { device: None, code, since: *since, until: *until };
                    let mut wanted = reports.clone();
                    if let Some(code) = code {
                        wanted.retain(|held| held.report.code.as_str() == code.as_str());
                    }
                    if let Some(since) = since {
                        wanted.retain(|held| held.report.received_at.as_second() >= since.as_second());
                    }
                    if let Some(until) = until {
                        wanted.retain(|held| held.report.received_at.as_second() < until.as_second());
                    }
                    let found: Vec<_> = reports.iter().filter(|held| select.selects(held)).cloned().collect();
                    assert_eq!(found, wanted, "{select:?}");
                }
            }
        }
    }
}
