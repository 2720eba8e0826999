//! Handles requests about rejected reports, and expires the reports that QUARANTINE has held as long as it may. The owner of the
//! partition does it, because a decision rests on its account and is published under its fence. LEDGER has a verdict before
//! QUARANTINE loses the payload and before the requester gets the answer: a request without an answer may be repeated.
//!
//! | the process ends between | the streams hold | recovery |
//! |---|---|---|
//! | a request and its verdict | QUARANTINE: the report | the request is repeated |
//! | the verdict and the removal | LEDGER: the verdict; QUARANTINE: the report | a repeated request finds and removes the report |
//! | the removal and the answer | LEDGER: the verdict | a repeated request finds no such report |

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use muster_bus::{Bus, Delivery, Question, Questions, ReadError};
use muster_contract::decode;
use muster_contract::partition::partition_of;
use muster_contract::quarantine::{
    HeldReport, QuarantineAction, QuarantineAnswer, QuarantineRequest, RejectedReport,
};
use muster_contract::query::{ErrorBody, ErrorCode, ErrorReply};
use muster_contract::question::read;
use muster_contract::subjects::{REJECTED, judge_quarantine, rejected, sender_of_rejected, stream};
use muster_contract::{DeviceKey, Timestamp};
use muster_domain::intake::{Decision, IntakeState, QuarantinedReport, VerdictRequest};
use muster_service::clock::Clock;
use muster_service::error::chain;
use serde::Serialize;
use tokio::time::{Interval, MissedTickBehavior, interval};

/// Requests whose report is being read; further requests wait at the bus.
const LOOKUPS_MAX: usize = 16;
/// Reports that may wait for a decision or for their removal before further requests wait.
const UNDECIDED_MAX: usize = 256;
/// The partition whose owner handles reports of senders without a valid name.
const UNNAMED_PARTITION: u16 = 0;
/// Reports in one page of a list. Without payloads a page is far below the largest message.
const PAGE_REPORTS_MAX: usize = 32;
/// Devices in one page of those that keep refused reports.
const REFUSED_DEVICES_MAX: usize = 400;
/// Ranges of refused numbers in such a page.
const REFUSED_RANGES_MAX: usize = 2_500;
/// Reports that expire in one turn.
const EXPIRED_MAX: usize = 64;
/// Scans for expired reports within the time for which QUARANTINE holds a report.
const EXPIRY_SCANS: u32 = 10;
/// Shortest and longest time between two such scans.
const EXPIRY_BOUNDS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10 * 60));

const _: () = {
    // A reason may take six bytes for one in JSON.
    let report = 6 * muster_contract::limits::VIEW_MESSAGE_BYTES_MAX + 1024;
    assert!(PAGE_REPORTS_MAX * report < muster_contract::limits::MESSAGE_BYTES_MAX);
    // A device takes at most 200 bytes beside its ranges, and may have 512 of these, of 40 bytes each.
    let refused = REFUSED_DEVICES_MAX * 200 + (REFUSED_RANGES_MAX + 512) * 40;
    assert!(refused < muster_contract::limits::MESSAGE_BYTES_MAX);
    assert!(LOOKUPS_MAX + EXPIRED_MAX < UNDECIDED_MAX);
};

/// The answer of QUARANTINE to the read of one sequence.
type ReadReport = Result<Option<Delivery>, ReadError>;

/// A task whose reports have been read from QUARANTINE.
pub(super) enum QuarantineTask {
    /// Requeue or drop one report.
    Decide { question: Question, request: Box<QuarantineRequest>, held: Box<ReadReport> },
    /// Request from a device the reports that it keeps.
    RequestRefused { question: Question, device: DeviceKey },
    /// List the numbers that QUARANTINE had no room for, of the devices after this one.
    ListRefused { question: Question, after: Option<DeviceKey> },
    /// Record that these reports have expired.
    Expire { held: Vec<Delivery> },
    /// Request the reports that a device keeps: QUARANTINE has removed another one of it, so there is room.
    UseRoom { device: DeviceKey },
}

impl QuarantineTask {
    /// The device whose report is requeued.
    pub(super) fn device(&self) -> Option<DeviceKey> {
        match self {
            Self::Decide { request, held, .. } if request.action == QuarantineAction::Requeue => {
                let held = held.as_ref().as_ref().ok()?.as_ref()?;
                sender_of_rejected(&held.subject)?
            }
            _ => None,
        }
    }
}

/// A report that waits for a decision.
#[derive(Default)]
struct Undecided {
    device: Option<DeviceKey>,
    /// Requests about it.
    questions: Vec<Question>,
}

/// Handles the requests of one partition.
pub(super) struct QuarantineHandler {
    bus: Bus,
    partition: u16,
    questions: Questions,
    lookups: FuturesUnordered<BoxFuture<'static, Option<QuarantineTask>>>,
    /// By sequence in QUARANTINE.
    undecided: HashMap<u64, Undecided>,
    removals: FuturesUnordered<BoxFuture<'static, Option<QuarantineTask>>>,
    kept_for: Duration,
    expiry: Interval,
}

impl QuarantineHandler {
    /// Subscribes to the requests of a partition. Reports older than `kept_for` expire.
    pub(super) async fn open(bus: &Bus, partition: u16, kept_for: Duration) -> Result<Self, ReadError> {
        let questions = bus.questions(&judge_quarantine(partition)).await?;
        let (lookups, removals) = (FuturesUnordered::new(), FuturesUnordered::new());
        let undecided = HashMap::new();
        let mut expiry = interval((kept_for / EXPIRY_SCANS).clamp(EXPIRY_BOUNDS.0, EXPIRY_BOUNDS.1));
        expiry.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Self { bus: bus.clone(), partition, questions, lookups, undecided, removals, kept_for, expiry })
    }

    /// The next task. Cancel-safe.
    pub(super) async fn next(&mut self, clock: &dyn Clock) -> QuarantineTask {
        loop {
            let is_free = self.lookups.len() < LOOKUPS_MAX
                && self.undecided.len() + self.removals.len() + EXPIRED_MAX < UNDECIDED_MAX;
            tokio::select! {
                Some(task) = self.lookups.next() => if let Some(task) = task {
                    return task;
                },
                Some(task) = self.removals.next() => if let Some(task) = task {
                    return task;
                },
                _ = self.expiry.tick(), if is_free => {
                    let before = moment_before(clock.now(), self.kept_for);
                    self.lookups.push(Box::pin(expired(self.bus.clone(), self.partition, before)));
                }
                question = self.questions.next(), if is_free => match question {
                    Some(question) => self.look_up(question),
                    // The bus is gone, and the process ends.
                    None => std::future::pending().await,
                },
            }
        }
    }

    fn look_up(&mut self, question: Question) {
        let request = read::<QuarantineRequest>(&question.payload).map_err(|error| error.message);
        let request = request.and_then(|request| match request.check() {
            Ok(()) => Ok(request),
            Err(violation) => Err(violation.to_string()),
        });
        let (bus, subject) = (self.bus.clone(), judge_quarantine(self.partition));
        self.lookups.push(Box::pin(async move {
            let request = match request {
                Ok(request) => request,
                Err(words) => {
                    let words = format!("the request cannot be read: {words}");
                    refuse(question, ErrorCode::BadRequest, words).await;
                    return None;
                }
            };
            let is_change = matches!(request.action, QuarantineAction::Requeue | QuarantineAction::Drop);
            if let (true, Err(error)) = (is_change, question.requester.author(&subject)) {
                refuse(question, ErrorCode::BadRequest, error.to_string()).await;
                return None;
            }
            look_up(&bus, question, request).await
        }));
    }

    /// Begins a task. The intake publishes the facts that follow; [`QuarantineHandler::answer_decisions`] sends the answer.
    pub(super) async fn handle(&mut self, intake: &mut IntakeState, task: QuarantineTask, now: Timestamp) {
        match task {
            QuarantineTask::Decide { question, request, held } => {
                self.decide(intake, question, *request, *held, now).await;
            }
            QuarantineTask::RequestRefused { question, device } => {
                let asked = Some(intake.request_refused(&device));
                let answer = QuarantineAnswer { device: Some(device), asked, ..QuarantineAnswer::default() };
                question.answer(serialised(&answer)).await;
            }
            QuarantineTask::ListRefused { question, after } => {
                question.answer(serialised(&refused_page(intake, after.as_ref()))).await;
            }
            QuarantineTask::Expire { held } => held.iter().for_each(|held| self.expire(intake, held, now)),
            QuarantineTask::UseRoom { device } => _ = intake.request_refused(&device),
        }
    }

    async fn decide(
        &mut self,
        intake: &mut IntakeState,
        question: Question,
        request: QuarantineRequest,
        held: ReadReport,
        now: Timestamp,
    ) {
        let QuarantineRequest { action, reason, .. } = request;
        let held = match held {
            Ok(held) => held.and_then(|held| Some((held.stream_seq, self.report(&held)?))),
            Err(error) => return refuse(question, ErrorCode::NotReady, chain(&error)).await,
        };
        let Some((quarantine_seq, (key, report))) = held else {
            let words = format!("QUARANTINE holds no such report of partition {}", self.partition);
            return refuse(question, ErrorCode::NotFound, words).await;
        };
        let requested = VerdictRequest { reason, requested_by: question.requester.record() };
        let held = QuarantinedReport { key: key.as_ref(), report: &report, quarantine_seq };
        match action {
            QuarantineAction::Requeue => intake.requeue(held, requested, now),
            _ => intake.drop_rejected(held, requested, now),
        }
        self.await_decision(quarantine_seq, key).questions.push(question);
    }

    fn expire(&mut self, intake: &mut IntakeState, held: &Delivery, now: Timestamp) {
        let Some((key, report)) = self.report(held) else { return };
        let quarantine_seq = held.stream_seq;
        intake.expire_rejected(QuarantinedReport { key: key.as_ref(), report: &report, quarantine_seq }, now);
        tracing::warn!(
            partition = self.partition,
            quarantine.seq = quarantine_seq,
            kept_for = ?self.kept_for,
            "expired a rejected report: QUARANTINE has held it as long as it may"
        );
        self.await_decision(quarantine_seq, key);
    }

    fn await_decision(&mut self, quarantine_seq: u64, device: Option<DeviceKey>) -> &mut Undecided {
        let undecided = self.undecided.entry(quarantine_seq).or_default();
        undecided.device = device;
        undecided
    }

    /// Answers the requests that are decided, once QUARANTINE has removed the reports on which LEDGER has a verdict.
    pub(super) fn answer_decisions(&mut self, intake: &mut IntakeState) {
        while let Some(Decision { quarantine_seq, result }) = intake.next_decision() {
            // After a second decision about the same report its questions are answered already.
            let Undecided { device, questions } = self.undecided.remove(&quarantine_seq).unwrap_or_default();
            tracing::info!(
                partition = self.partition,
                quarantine.seq = quarantine_seq,
                decision = ?result,
                "decided about a rejected report"
            );
            let removes = result.is_ok();
            let (verdict, refused) =
                result.map_or_else(|words| (None, Some(words)), |verdict| (Some(verdict), None));
            let answer = QuarantineAnswer {
                quarantine_seq: Some(quarantine_seq),
                verdict,
                refused,
                ..QuarantineAnswer::default()
            };
            let bus = self.bus.clone();
            self.removals.push(Box::pin(async move {
                if removes {
                    remove(&bus, quarantine_seq).await;
                }
                for question in questions {
                    question.answer(serialised(&answer)).await;
                }
                device.filter(|_| removes).map(|device| QuarantineTask::UseRoom { device })
            }));
        }
    }

    fn report(&self, held: &Delivery) -> Option<(Option<DeviceKey>, RejectedReport)> {
        report_of(self.partition, held)
    }
}

/// A report of a partition, with its sender; `None` if it is of another partition or cannot be parsed.
fn report_of(partition: u16, held: &Delivery) -> Option<(Option<DeviceKey>, RejectedReport)> {
    let key = sender_of_rejected(&held.subject)?;
    (key.as_ref().map_or(UNNAMED_PARTITION, partition_of) == partition).then_some(())?;
    Some((key, decode::parse(&held.payload).ok()?))
}

/// Removes a report. If that fails, a repeated request finds the report and removes it.
async fn remove(bus: &Bus, quarantine_seq: u64) {
    if let Err(error) = bus.delete(stream::QUARANTINE, quarantine_seq).await {
        tracing::warn!(
            quarantine.seq = quarantine_seq,
            error = chain(&error),
            "cannot remove a report from QUARANTINE; its verdict is recorded: requeue or drop it again"
        );
    }
}

/// Reads the report that a request names. It answers `list` and `show` itself, and returns `None` then.
async fn look_up(bus: &Bus, question: Question, request: QuarantineRequest) -> Option<QuarantineTask> {
    let seq = request.quarantine_seq.unwrap_or(0);
    match (request.action, request.device.clone()) {
        (QuarantineAction::Refused, after) => Some(QuarantineTask::ListRefused { question, after }),
        (QuarantineAction::Requeue, Some(device)) => {
            Some(QuarantineTask::RequestRefused { question, device })
        }
        (QuarantineAction::Requeue | QuarantineAction::Drop, _) => {
            let held = Box::new(bus.at(stream::QUARANTINE, seq).await);
            Some(QuarantineTask::Decide { question, request: Box::new(request), held })
        }
        (QuarantineAction::List, device) => {
            match page(bus, device.as_ref(), seq).await {
                Ok(page) => question.answer(serialised(&page)).await,
                Err(error) => refuse(question, ErrorCode::NotReady, chain(&error)).await,
            }
            None
        }
        (QuarantineAction::Show, _) => {
            match bus.at(stream::QUARANTINE, seq).await.map(|held| held.as_ref().and_then(held_report)) {
                Ok(Some(held)) => {
                    let answer = QuarantineAnswer { reports: vec![held], ..QuarantineAnswer::default() };
                    question.answer(serialised(&answer)).await;
                }
                Ok(None) => {
                    refuse(question, ErrorCode::NotFound, format!("QUARANTINE holds no report {seq}")).await;
                }
                Err(error) => refuse(question, ErrorCode::NotReady, chain(&error)).await,
            }
            None
        }
    }
}

/// The reports after a sequence, of one device or of all.
async fn page(bus: &Bus, device: Option<&DeviceKey>, after: u64) -> Result<QuarantineAnswer, ReadError> {
    let subject = device.map_or_else(|| REJECTED.to_owned(), |key| rejected(Some(key)));
    let total = match device {
        None => Some(bus.stream_state(stream::QUARANTINE).await?.messages),
        Some(_) => None,
    };
    let (mut page, mut next) = (QuarantineAnswer { total, ..QuarantineAnswer::default() }, after + 1);
    while page.reports.len() < PAGE_REPORTS_MAX {
        let Some(held) = bus.next_of(stream::QUARANTINE, next, &subject).await? else { return Ok(page) };
        next = held.stream_seq + 1;
        page.reports.extend(held_report(&held).map(HeldReport::without_payload));
    }
    page.next = Some(next - 1);
    Ok(page)
}

/// Devices that keep refused reports, after a device.
fn refused_page(intake: &IntakeState, after: Option<&DeviceKey>) -> QuarantineAnswer {
    let (mut page, mut ranges) = (QuarantineAnswer::default(), 0);
    for device in intake.refused_devices(after) {
        if page.devices.len() == REFUSED_DEVICES_MAX || ranges > REFUSED_RANGES_MAX {
            page.next_device = page.devices.last().map(|last| last.device.clone());
            break;
        }
        ranges += device.refused.iter().map(|numbers| numbers.ranges.len()).sum::<usize>();
        page.devices.push(device);
    }
    page
}

fn held_report(held: &Delivery) -> Option<HeldReport> {
    let report: RejectedReport = decode::parse(&held.payload).ok()?;
    let bytes = report.payload().map_or(0, |payload| payload.len() as u64);
    let device = sender_of_rejected(&held.subject)?;
    Some(HeldReport { quarantine_seq: held.stream_seq, device, bytes, report })
}

/// The oldest reports of a partition that were stored before a moment. A stream's order is that of its ages, so the first
/// newer report ends the scan.
async fn expired(bus: Bus, partition: u16, before: Timestamp) -> Option<QuarantineTask> {
    let (mut held, mut next) = (Vec::new(), 1);
    while held.len() < EXPIRED_MAX {
        match bus.next_of(stream::QUARANTINE, next, REJECTED).await {
            Ok(Some(delivery)) if delivery.stored_at < before => {
                next = delivery.stream_seq + 1;
                // An unreadable report stays, and must not keep the reports behind it from expiring.
                held.extend(report_of(partition, &delivery).is_some().then_some(delivery));
            }
            // The next scan repeats a failed read.
            Ok(_) | Err(_) => break,
        }
    }
    (!held.is_empty()).then_some(QuarantineTask::Expire { held })
}

fn moment_before(now: Timestamp, span: Duration) -> Timestamp {
    now.checked_sub(span).unwrap_or(Timestamp::MIN)
}

async fn refuse(question: Question, code: ErrorCode, message: String) {
    question.answer(serialised(&ErrorReply::from(ErrorBody { code, message }))).await;
}

/// Serialises an answer, which cannot fail.
fn serialised(answer: &impl Serialize) -> Bytes {
    serde_json::to_vec(answer).unwrap_or_default().into()
}
