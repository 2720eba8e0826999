//! Watches whether the hub hears its partitions: a pulse that stops or resumes becomes a fact in LEDGER, so
//! that every view stays a pure function of LEDGER. It also measures the rollup's lag.
//!
//! The monitor asks LEDGER for its end and the server for its time, waits until the rollup has read that far,
//! and compares the server's time with the time at which LEDGER stored the newest pulse: both come from one
//! clock. A rollup that has not read to LEDGER's end writes nothing. Two rollups may write: compare-and-set on
//! the subject's last fact decides. After each check the monitor sets the fleet's gauges in `/metrics`.
//!
//! The monitor does not fold; the fold applies a stopped pulse to the views.

pub mod decide;

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use muster_bus::event::{Trace, traced};
use muster_bus::{Bus, Delivery, Outgoing, PublishError, PublishErrorKind, ReadError, StreamState};
use muster_contract::Timestamp;
use muster_contract::decode;
use muster_contract::fact::{Hearing, HearingFact, PulseFact};
use muster_contract::limits::PARTITIONS;
use muster_contract::subjects::{LedgerSubject, stream};
use muster_contract::version::{ApiVersion, kind};
use muster_domain::fold::Fleet;
use muster_service::error::chain;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use self::decide::{Heard, HearingDecision, decide, must_repeat};
use crate::lag::{CUT_OFF_AFTER, LagState, UNRECORDED_FOR};
use crate::metrics::{Metrics, SILENT_SITES_NAMED};
use crate::progress::{SeenHearing, SeenPulse};
use crate::projection::{Origin, Projection};

/// Time between two looks at LEDGER's end.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long the rollup may take to read what LEDGER held at a check. A check that takes longer decides nothing.
const READ_WITHIN: Duration = Duration::from_secs(2);
/// Time between two looks at whether a stop that holds is still in LEDGER.
const REPEAT_LOOK_EVERY: Duration = Duration::from_secs(60);

/// How long all writes of a check may take together: the server does not answer a publish without the right to it, and views end
/// their validity [`SHOWN_WITHIN`] after the first such check.
const RECORD_WITHIN: Duration = Duration::from_secs(4);
/// Time after a lease within which no view is believed that LEDGER cannot correct.
const SHOWN_WITHIN: Duration = Duration::from_secs(10);

const _: () = assert!(LOOK_EVERY.as_secs() + READ_WITHIN.as_secs() < CUT_OFF_AFTER.as_secs());
const _: () = assert!(UNRECORDED_FOR.as_secs() <= RECORD_WITHIN.as_secs());
const _: () = assert!(2 * (LOOK_EVERY.as_secs() + RECORD_WITHIN.as_secs()) <= SHOWN_WITHIN.as_secs());

/// The monitor of the hub's hearing.
#[derive(Debug)]
pub struct Monitor {
    bus: Bus,
    projection: Arc<Projection>,
    lag: Arc<LagState>,
    metrics: Metrics,
    rng: Rng,
    /// The LEDGER whose newest pulses were looked for, and the server's time when it was first read to its end.
    read_whole: Option<(Origin, Timestamp)>,
    repeat_look_at: Instant,
}

/// Why a fact was not recorded.
#[derive(Debug, thiserror::Error)]
enum RecordError {
    #[error("cannot read the last fact about the hub's hearing")]
    Read(#[from] ReadError),
    #[error("cannot record the hub's hearing")]
    Publish(#[from] PublishError),
    #[error("LEDGER has confirmed no fact about the hub's hearing within {RECORD_WITHIN:?}")]
    NoAnswer,
}

impl Monitor {
    /// Creates a monitor of the projection's LEDGER.
    pub fn new(
        bus: Bus,
        projection: Arc<Projection>,
        lag: Arc<LagState>,
        metrics: Metrics,
        rng: Rng,
    ) -> Self {
        Self { bus, projection, lag, metrics, rng, read_whole: None, repeat_look_at: Instant::now() }
    }

    /// Watches until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut ticks = interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while stop.run_until_cancelled(ticks.tick()).await.is_some() {
            // This is not cancelled during a write: the outcome would be unknown, which is harmless but logged.
            if stop.run_until_cancelled(self.check_ledger()).await.is_none() {
                return;
            }
        }
    }

    /// Performs one check of LEDGER.
    async fn check_ledger(&mut self) {
        match timeout(CUT_OFF_AFTER, self.bus.stream_now(stream::LEDGER)).await {
            Ok(Ok((ledger, now))) => self.compare(&ledger, now).await,
            Ok(Err(error)) => tracing::debug!(error = chain(&error), "cannot read LEDGER's end"),
            Err(_) => tracing::debug!("LEDGER did not answer in time"),
        }
        self.metrics.behind(&self.lag.now());
        self.metrics.view_lag.set(self.lag.duration().as_secs_f64());
        self.show_pulses();
        self.show_fleet();
    }

    /// Sets the age of each partition's newest pulse in `/metrics`. It grows also while LEDGER does not answer.
    fn show_pulses(&self) {
        let (progress, now) = (self.projection.progress(), self.lag.server_time());
        for partition in 0..PARTITIONS {
            self.metrics
                .pulse(partition, progress.newest(partition).map(|seen| elapsed(seen.stored_at, now)));
        }
    }

    /// Sets the fleet's gauges in `/metrics`, once LEDGER is read to its end. Silence is counted by site, not by device.
    fn show_fleet(&self) {
        let look = |fleet: &Fleet| {
            let (silent_sites, devices) =
                (fleet.silent_sites_of_fleet().count, fleet.silent_devices(SILENT_SITES_NAMED));
            (fleet.fleet_view().tally, silent_sites, devices, fleet.oldest_silence())
        };
        let seen = self.projection.read(|now| now.caught_up.then(|| look(&now.fleet)));
        if let Some((tally, silent_sites, devices, oldest)) = seen {
            self.metrics.fleet.show(&tally, silent_sites);
            let now = self.lag.server_time();
            self.metrics
                .fleet
                .silence
                .show(devices, oldest.map_or(Duration::ZERO, |since| elapsed(since, now)));
        }
    }

    async fn compare(&mut self, ledger: &StreamState, now: Timestamp) {
        let progress = self.projection.progress();
        progress.set_ledger_end(ledger.last_seq);
        let mut read_through = progress.follow();
        let is_read = read_through.wait_for(|read| *read >= ledger.last_seq);
        let is_read = matches!(timeout(READ_WITHIN, is_read).await, Ok(Ok(_)));
        let (origin, is_caught_up) =
            self.projection.read(|projection| (projection.origin, projection.caught_up));
        let read_through = self.projection.progress().read_through();
        self.lag.ledger(now, ledger.last_seq, read_through);
        // Also where no message comes from which the reader could learn how many there are.
        self.metrics.lag.set(ledger.last_seq.saturating_sub(read_through) as i64);
        if !is_read || !is_caught_up || origin.created_at != ledger.created_at {
            return;
        }
        if self.read_whole.is_none_or(|(of, _)| of != origin) {
            match self.find_last().await {
                Ok(()) => self.read_whole = Some((origin, now)),
                Err(error) => {
                    tracing::warn!(error = chain(&error), "cannot read the last pulses");
                    self.lag.recorded(false);
                    return;
                }
            }
        }
        self.judge(ledger, now).await;
    }

    /// Reads the newest pulse and the newest hearing fact of each partition: a snapshot does not contain them. Where LEDGER has
    /// no pulse, it reads since when the partition has an owner.
    async fn find_last(&self) -> Result<(), ReadError> {
        let progress = self.projection.progress();
        for partition in 0..PARTITIONS {
            let last = self.last(partition).await?;
            if let Some((last, fact)) =
                last.as_ref().and_then(|last| Some((last, parse_hearing(Some(last))?)))
            {
                progress.hearing(partition, SeenHearing { ledger_seq: last.stream_seq, fact });
            }
            let subject = LedgerSubject::Hub(partition).to_string();
            let last = self.bus.last(stream::LEDGER, &subject).await?;
            let pulse =
                last.and_then(|last| Some((last.stored_at, decode::parse::<PulseFact>(&last.payload).ok()?)));
            if let Some((stored_at, pulse)) = pulse {
                progress.pulse(partition, SeenPulse { stored_at, pulse });
                continue;
            }
            let owner = LedgerSubject::Owner { partition, fence: 0 }.to_string();
            if let Some(first) = self.bus.next_of(stream::LEDGER, 1, &owner).await? {
                progress.owned_without_pulse(partition, first.stored_at);
            }
        }
        Ok(())
    }

    /// Compares each partition's pulse with its hearing fact in LEDGER, and records a difference.
    async fn judge(&mut self, ledger: &StreamState, now: Timestamp) {
        let Some((_, read_whole_at)) = self.read_whole else { return };
        let progress = self.projection.progress();
        let unheard = (0..PARTITIONS).filter(|partition| progress.stopped_since(*partition).is_some());
        self.metrics.unheard.set(unheard.count() as i64);
        let is_repeat_look = Instant::now() >= self.repeat_look_at;
        let (mut failure, until) = (None, Instant::now() + RECORD_WITHIN);
        for partition in 0..PARTITIONS {
            let heard = Heard {
                newest: self.projection.progress().newest(partition),
                owned_since: self.projection.progress().owned_since(partition),
                stopped_since: self.projection.progress().stopped_since(partition),
                read_whole_at,
            };
            let recording = async {
                match decide(&heard, now) {
                    Some(wanted) => self.record(partition, wanted).await,
                    None => match heard.stopped_since.filter(|_| is_repeat_look) {
                        Some(since) => self.repeat(partition, since, ledger, now).await,
                        None => Ok(()),
                    },
                }
            };
            let done = timeout_at(until, recording).await.unwrap_or(Err(RecordError::NoAnswer));
            failure = failure.or(done.err());
        }
        if is_repeat_look && failure.is_none() {
            self.repeat_look_at = Instant::now() + REPEAT_LOOK_EVERY;
        }
        self.lag.recorded(failure.is_none());
        if let Some(error) = failure {
            tracing::warn!(error = chain(&error), "cannot record the hub's hearing; retrying");
        }
    }

    /// Records that a partition's pulse stopped or resumed, unless another rollup has.
    async fn record(&mut self, partition: u16, wanted: HearingDecision) -> Result<(), RecordError> {
        let last = self.last(partition).await?;
        if parse_hearing(last.as_ref()).is_some_and(|said| said.state == wanted.state) {
            // The rollup is about to read it.
            return Ok(());
        }
        self.write(partition, wanted, last.map_or(0, |last| last.stream_seq), false).await?;
        match wanted.state {
            Hearing::Stopped => tracing::error!(
                partition, since = %wanted.since,
                "the hub does not hear a partition: its devices count as stale. Does its ingest run, and does LEDGER take its facts?"
            ),
            Hearing::Resumed => {
                tracing::info!(partition, since = %wanted.since, "the hub hears a partition again");
            }
        }
        Ok(())
    }

    /// Re-asserts a stop before LEDGER discards it.
    async fn repeat(
        &mut self,
        partition: u16,
        since: Timestamp,
        ledger: &StreamState,
        now: Timestamp,
    ) -> Result<(), RecordError> {
        let last = self.last(partition).await?;
        let place = last.as_ref().map(|last| (last.stream_seq, last.stored_at));
        let is_stop = parse_hearing(last.as_ref()).is_none_or(|said| said.state == Hearing::Stopped);
        if is_stop && must_repeat(place, ledger, now) {
            let wanted = HearingDecision { state: Hearing::Stopped, since };
            self.write(partition, wanted, last.map_or(0, |last| last.stream_seq), true).await?;
        }
        Ok(())
    }

    async fn last(&self, partition: u16) -> Result<Option<Delivery>, ReadError> {
        self.bus.last(stream::LEDGER, &LedgerSubject::Hearing(partition).to_string()).await
    }

    async fn write(
        &mut self,
        partition: u16,
        HearingDecision { state, since }: HearingDecision,
        expected: u64,
        reasserted: bool,
    ) -> Result<(), PublishError> {
        let fact = HearingFact {
            api_version: ApiVersion::V1,
            kind: kind::HearingFact::HearingFact,
            state,
            since,
            reasserted,
        };
        let message = Outgoing {
            headers: traced(Some(Trace::random(&mut self.rng))),
            expected_stream: Some(stream::LEDGER),
            expected_last_subject_sequence: Some(expected),
            ..Outgoing::new(LedgerSubject::Hearing(partition).to_string(), decode::to_bytes(&fact))
        };
        match self.bus.publish(message).await {
            // Another rollup was faster; the next check reads its fact.
            Err(error) if error.kind == PublishErrorKind::Conflict => Ok(()),
            stored => stored.map(drop),
        }
    }
}

/// The time from one moment to another; zero if a clock was set back meanwhile.
fn elapsed(since: Timestamp, now: Timestamp) -> Duration {
    now.duration_since(since).try_into().unwrap_or(Duration::ZERO)
}

fn parse_hearing(last: Option<&Delivery>) -> Option<HearingFact> {
    decode::parse(&last?.payload).ok()
}
