//! Resolves a [`Point`]: it turns times into sequences and refuses impossible points.

use std::sync::Arc;

use muster_bus::{Bus, ReadError};
use muster_contract::Timestamp;
use muster_contract::history::Point;
use muster_contract::query::{ErrorBody, ErrorCode};
use muster_contract::subjects::stream::LEDGER;
use muster_service::clock::Clock;
use tokio::time::{Instant, timeout_at};

use super::base::WINDOW_WHOLE;
use super::point_in_time::{RebuildRequest, RebuildTarget};
use super::rebuild::unreadable;
use super::time_index::{FactAtTime, last_fact};
use crate::projection::Projection;

/// Resolves points.
#[derive(Debug, Clone)]
pub struct Points {
    bus: Bus,
    projection: Arc<Projection>,
    clock: Arc<dyn Clock>,
}

impl Points {
    /// Times are those of this bus's LEDGER; the clock only detects times in the future.
    pub const fn new(bus: Bus, projection: Arc<Projection>, clock: Arc<dyn Clock>) -> Self {
        Self { bus, projection, clock }
    }

    /// Resolves a point; for the present, to the fold as of the last fact read. It does not ask LEDGER after
    /// the deadline.
    ///
    /// # Errors
    /// The point does not exist or cannot be resolved yet.
    pub async fn asked(&self, point: Point, deadline: Instant) -> Result<RebuildRequest, ErrorBody> {
        let by = match (point.at, point.at_seq) {
            (Some(_), Some(_)) => return Err(bad("at and atSeq: name one of the two".to_owned())),
            (Some(at), None) => self.fact_of("at", at, deadline).await?,
            (None, Some(seq)) => seq,
            (None, None) => self.read_to(),
        };
        let is_now = point.at.is_none() && point.at_seq.is_none();
        self.until_read(by, deadline).await?;
        let by = self.last_fact(by);
        let Some(moment) = point.event_time else {
            return Ok(RebuildRequest { wanted: RebuildTarget::At(by), now_since: is_now.then_some(0) });
        };
        let then = self.last_fact(self.fact_of("eventTime", moment, deadline).await?);
        if then > by {
            let message = format!(
                "eventTime: {moment} is after the point at which it is to be known: LEDGER had read to {then} then, beyond {by}"
            );
            return Err(bad(message));
        }
        Ok(RebuildRequest {
            wanted: RebuildTarget::EventTime { moment, then, by },
            now_since: is_now.then_some(then),
        })
    }

    /// A position that is read already: where only pulses follow the last fact, which LEDGER forgets, that fact.
    fn last_fact(&self, seq: u64) -> u64 {
        seq.min(self.read_to())
    }

    fn read_to(&self) -> u64 {
        self.projection.read(|now| now.fleet.as_of().ledger_seq)
    }

    async fn fact_of(&self, field: &str, time: Timestamp, deadline: Instant) -> Result<u64, ErrorBody> {
        let now = self.clock.now();
        if time > now {
            return Err(bad(format!("{field}: {time} is in the future; here it is {now}")));
        }
        match in_time(deadline, last_fact(&self.bus, time)).await? {
            FactAtTime::Fact(seq) => Ok(seq),
            FactAtTime::Gone { first_seq, first_at } => {
                let reach = first_at.map_or_else(
                    || "LEDGER holds nothing now".to_owned(),
                    |at| format!("it begins with ledger {first_seq} ({at})"),
                );
                let days = WINDOW_WHOLE.as_secs() / (24 * 60 * 60);
                let message = format!(
                    "{field}: LEDGER has forgotten what it held at {time}; {reach}. From there on points can be reached if \
                     a checkpoint leads to them, and all of them {days} days later"
                );
                Err(ErrorBody { code: ErrorCode::NotFound, message })
            }
        }
    }

    /// Waits until the projection has read so far: a fact that is stored is read within moments.
    async fn until_read(&self, seq: u64, deadline: Instant) -> Result<(), ErrorBody> {
        if seq <= self.projection.progress().read_through() {
            return Ok(());
        }
        let last_seq = in_time(deadline, self.bus.stream_state(LEDGER)).await?.last_seq;
        if seq > last_seq {
            let words = format!("atSeq: ledger {seq} is in the future; LEDGER ends with {last_seq} now");
            return Err(bad(words));
        }
        let mut read_to = self.projection.progress().follow();
        // The projection outlives the asker, so the sender cannot be dropped during the wait.
        match timeout_at(deadline, read_to.wait_for(|read_to| *read_to >= seq)).await {
            Ok(_) => Ok(()),
            Err(_) => {
                let at = self.projection.progress().read_through();
                let message = format!("still reading LEDGER (at {at} of {seq}); ask again in a moment");
                Err(ErrorBody { code: ErrorCode::NotReady, message })
            }
        }
    }
}

/// Reads LEDGER within the deadline. After it, the error says that too many questions wait.
async fn in_time<T>(
    deadline: Instant,
    look: impl Future<Output = Result<T, ReadError>>,
) -> Result<T, ErrorBody> {
    let busy = |words: &str| ErrorBody { code: ErrorCode::NotReady, message: words.to_owned() };
    if Instant::now() >= deadline {
        return Err(busy("as many questions about the past wait as may; ask again in a moment"));
    }
    match timeout_at(deadline, look).await {
        Ok(seen) => seen.map_err(|error| unreadable(&error)),
        Err(_) => Err(busy("LEDGER is slow to say which fact that is; ask again in a moment")),
    }
}

fn bad(message: String) -> ErrorBody {
    ErrorBody { code: ErrorCode::BadRequest, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn no_look_into_ledger_outlasts_the_time_there_is() {
        let never = || std::future::pending::<Result<(), ReadError>>();
        let deadline = Instant::now() + std::time::Duration::from_millis(20);
        let slow = in_time(deadline, never()).await.unwrap_err();
        assert_eq!(slow.code, ErrorCode::NotReady);
        let late = in_time(deadline, async { panic!("is not begun") as Result<(), ReadError> }).await;
        assert!(late.unwrap_err().message.contains("as many"));
    }
}
