//! Rebuilds a point of the past from the nearest usable checkpoint and LEDGER from there up to the point.

use std::sync::Arc;

use muster_bus::{Bus, ReadError};
use muster_contract::Timestamp;
use muster_contract::history::EventTimeCertainty;
use muster_contract::query::{ErrorBody, ErrorCode};
use muster_contract::question::bad;
use muster_contract::subjects::stream;
use muster_domain::fold::{ChangeRecord, EventTimeFold, Fleet, TooManyChanges};
use muster_service::error::chain;

use super::archive::Archive;
use super::base::{Base, TooOld, Window, bases, first_reachable};
use super::checkpoint_retention::Mark;
use super::progress::ReadProgress;
use super::tail::{Read, Tail};
use crate::projection::Origin;

/// Rebuilds points of one LEDGER.
#[derive(Debug, Clone)]
pub struct Rebuilder {
    bus: Bus,
    archive: Arc<Archive>,
    origin: Origin,
}

/// A point of the past.
#[derive(Debug)]
pub struct Past {
    /// The fold as of it.
    pub fleet: Fleet,
    /// For an event time: how certain the state is.
    pub certainty: Option<EventTimeCertainty>,
}

impl Rebuilder {
    /// Rebuilds from LEDGER and its checkpoints.
    pub const fn new(bus: Bus, archive: Arc<Archive>, origin: Origin) -> Self {
        Self { bus, archive, origin }
    }

    /// The fold as of a fact that LEDGER holds, or as of a checkpoint.
    ///
    /// # Errors
    /// The obstacle, for the asker.
    pub async fn at(&self, ledger_seq: u64, progress: &dyn ReadProgress) -> Result<Fleet, ErrorBody> {
        if ledger_seq == 0 {
            return Ok(Fleet::default());
        }
        let window = self.window().await?;
        let stored_at = self.stored_at(ledger_seq).await?;
        let marks = self.archive.marks(self.origin);
        let bases = bases(ledger_seq, stored_at, &marks, window).map_err(|old| too_old(ledger_seq, old))?;
        for base in bases {
            let fleet = match base {
                Base::Checkpoint(mark) => self.load(mark, window).await?,
                Base::Ledger | Base::Window => Some(Fleet::default()),
            };
            if let Some(mut fleet) = fleet {
                let after = fleet.as_of().ledger_seq;
                if after < ledger_seq {
                    let mut tail = self.tail(after).await?;
                    fold_to(&mut fleet, &mut tail, ledger_seq, progress).await?;
                }
                return Ok(fleet);
            }
        }
        let words =
            format!("no checkpoint of ledger {ledger_seq} holds, and LEDGER has forgotten what came before");
        Err(ErrorBody { code: ErrorCode::NotFound, message: words })
    }

    /// The state at the event time for which `then` is the last fact, as known at the fact `by`.
    ///
    /// # Errors
    /// As [`Self::at`].
    pub async fn at_event_time(
        &self,
        moment: Timestamp,
        then: u64,
        by: u64,
        progress: &dyn ReadProgress,
    ) -> Result<Past, ErrorBody> {
        let mut fold = EventTimeFold::of(self.at(then, progress).await?, moment);
        if then < by {
            let mut tail = self.tail(then).await?;
            while fold.as_of().ledger_seq < by {
                let read = tail.next(by).await.map_err(|error| unreadable(&error))?;
                if read.is_empty() {
                    // The fact was removed from LEDGER: the fold equals that of the fact before.
                    break;
                }
                for (at, fact) in read {
                    match fact {
                        Some((subject, fact)) => fold.apply(at, &subject, fact),
                        None => fold.pass(at),
                    }
                }
                progress.read(fold.as_of().ledger_seq, by);
            }
        }
        let (fleet, certainty) = fold.finish();
        Ok(Past { fleet, certainty: Some(certainty) })
    }

    /// The changes after one fact up to another.
    ///
    /// # Errors
    /// As [`Self::at`], or there are too many.
    pub async fn changes(
        &self,
        from: u64,
        to: u64,
        progress: &dyn ReadProgress,
    ) -> Result<ChangeRecord, ErrorBody> {
        let (record, whole) = self.record(from, to, progress).await?;
        whole.map(|()| record).map_err(|error| bad(error.to_string()))
    }

    /// The changes after one fact up to another, as far as they can be rebuilt: from the first point after `from` that can
    /// be reached, up to where one record has room. None where no point up to `to` can be reached.
    ///
    /// # Errors
    /// LEDGER cannot be read.
    pub(crate) async fn remaining_changes(
        &self,
        from: u64,
        to: u64,
        progress: &dyn ReadProgress,
    ) -> Result<Option<ChangeRecord>, ErrorBody> {
        let window = self.window().await?;
        let stored_at = if from == 0 { None } else { self.stored_at(from).await? };
        let marks = self.archive.marks(self.origin);
        let start = first_reachable(from, stored_at, &marks, window).filter(|start| *start <= to);
        let Some(start) = start else { return Ok(None) };
        self.record(start, to, progress).await.map(|(record, _)| Some(record))
    }

    /// Records changes up to a fact, or up to where there are too many.
    async fn record(
        &self,
        from: u64,
        to: u64,
        progress: &dyn ReadProgress,
    ) -> Result<(ChangeRecord, Result<(), TooManyChanges>), ErrorBody> {
        let mut fleet = self.at(from, progress).await?;
        let mut record = ChangeRecord::begin(&fleet);
        if from >= to {
            return Ok((record, Ok(())));
        }
        let mut tail = self.tail(from).await?;
        while fleet.as_of().ledger_seq < to {
            let read = tail.next(to).await.map_err(|error| unreadable(&error))?;
            if read.is_empty() {
                break;
            }
            for (at, fact) in read {
                match fact {
                    Some((subject, fact)) => {
                        if let Err(too_many) = record.apply(&mut fleet, at, &subject, fact) {
                            return Ok((record, Err(too_many)));
                        }
                    }
                    None => record.pass(&mut fleet, at),
                }
            }
            progress.read(fleet.as_of().ledger_seq, to);
        }
        Ok((record, Ok(())))
    }

    /// The window of facts that LEDGER holds now.
    ///
    /// # Errors
    /// LEDGER cannot be read.
    pub async fn window(&self) -> Result<Window, ErrorBody> {
        let ledger = self.bus.stream_state(stream::LEDGER).await.map_err(|error| unreadable(&error))?;
        let first_at = self.stored_at(ledger.first_seq).await?;
        Ok(Window { first_seq: ledger.first_seq, first_at })
    }

    /// A reader of what follows a sequence.
    ///
    /// # Errors
    /// LEDGER cannot be read, or has forgotten it.
    pub async fn tail(&self, after: u64) -> Result<Tail, ErrorBody> {
        Tail::after(&self.bus, after).await.map_err(|error| unreadable(&error))
    }

    /// When the message at a sequence was stored, or the next one where LEDGER has forgotten it, as it does with pulses.
    async fn stored_at(&self, ledger_seq: u64) -> Result<Option<Timestamp>, ErrorBody> {
        let message = self.bus.from(stream::LEDGER, ledger_seq).await.map_err(|error| unreadable(&error))?;
        Ok(message.map(|message| message.stored_at))
    }

    /// Loads a checkpoint; none if it does not hold, which drops it, or cannot be read now, which does not.
    /// LEDGER's own fact must match as far as it holds it: a LEDGER that was set back to a backup and has grown
    /// again has another one there.
    ///
    /// # Errors
    /// LEDGER cannot be read.
    pub async fn load(&self, mark: Mark, window: Window) -> Result<Option<Fleet>, ErrorBody> {
        let seq = mark.as_of.ledger_seq;
        let same = seq < window.first_seq || self.stored_at(seq).await? == Some(mark.as_of.at);
        let archive = Arc::clone(&self.archive);
        let loaded = tokio::task::spawn_blocking(move || {
            if !same {
                archive.remove(seq);
                return Err("LEDGER has another fact there".to_owned());
            }
            archive.load(mark).map_err(|error| {
                if error.is_damage() {
                    archive.remove(seq);
                }
                chain(&error)
            })
        });
        match loaded.await {
            Ok(Ok(fleet)) => Ok(Some(fleet)),
            Ok(Err(reason)) => {
                tracing::warn!(ledger.seq = seq, reason, "cannot use a checkpoint; using an older one");
                Ok(None)
            }
            Err(error) => Err(ErrorBody { code: ErrorCode::Internal, message: error.to_string() }),
        }
    }
}

/// Folds what follows, up to a sequence; where LEDGER has no fact there any more, up to the one before.
///
/// # Errors
/// LEDGER can no longer be read on.
pub(crate) async fn fold_to(
    fleet: &mut Fleet,
    tail: &mut Tail,
    ledger_seq: u64,
    progress: &dyn ReadProgress,
) -> Result<(), ErrorBody> {
    while fleet.as_of().ledger_seq < ledger_seq {
        let read = tail.next(ledger_seq).await.map_err(|error| unreadable(&error))?;
        if read.is_empty() {
            break;
        }
        fold(fleet, read);
        progress.read(fleet.as_of().ledger_seq, ledger_seq);
    }
    Ok(())
}

/// Folds what was read.
pub fn fold(fleet: &mut Fleet, read: Vec<Read>) {
    for (at, fact) in read {
        match fact {
            Some((subject, fact)) => drop(fleet.apply(at, &subject, fact)),
            None => fleet.pass(at),
        }
    }
}

/// An error of the bus, for the asker.
pub fn unreadable(error: &ReadError) -> ErrorBody {
    let code = if error.is_transient() { ErrorCode::NotReady } else { ErrorCode::NotFound };
    ErrorBody { code, message: chain(error) }
}

fn too_old(ledger_seq: u64, old: TooOld) -> ErrorBody {
    let reach = match (old.oldest, old.from) {
        (Some(oldest), _) => {
            format!("the oldest point that can be reached is ledger {} ({})", oldest.ledger_seq, oldest.at)
        }
        (None, Some(from)) => format!("no point before {from} can be reached"),
        (None, None) => "LEDGER is empty, and there is no checkpoint".to_owned(),
    };
    let message = format!("ledger {ledger_seq} is too old: LEDGER has forgotten what led to it; {reach}");
    ErrorBody { code: ErrorCode::NotFound, message }
}

#[cfg(test)]
mod tests {
    use muster_contract::view::AsOf;

    use super::*;

    #[test]
    fn a_point_that_is_too_old_names_the_oldest_that_is_not() {
        let at: Timestamp = "2026-11-20T08:00:00Z".parse().unwrap();
        let oldest = Some(AsOf { ledger_seq: 4711, at });
        let words = |oldest, from| too_old(12, TooOld { oldest, from });
        let error = words(oldest, Some(at));
        assert_eq!(error.code, ErrorCode::NotFound);
        assert!(error.message.starts_with("ledger 12 is too old"), "{}", error.message);
        assert!(error.message.ends_with("ledger 4711 (2026-11-20T08:00:00Z)"), "{}", error.message);
        assert!(
            words(None, Some(at)).message.ends_with("no point before 2026-11-20T08:00:00Z can be reached")
        );
        assert!(words(None, None).message.ends_with("there is no checkpoint"));
    }
}
