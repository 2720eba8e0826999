//! The notes of a watch without news: at once that the connection is lost, and after a moment, and then seldom, since
//! when nothing was heard and from where it tries. A redrawn screen has it on top.

use std::time::Duration;

use muster_contract::Timestamp;
use tokio::time::Instant;

use crate::session::Session;

/// The note while there is no connection.
const LOST: &str = "muster: the connection to NATS is lost; what is shown may be old\n";
/// Silence that is worth a word of its own. Most are over by then.
const TOLD_AFTER: Duration = Duration::from_secs(10);
/// Time between two words on the same silence.
const TOLD_EVERY: Duration = Duration::from_secs(10 * 60);

const _: () = assert!(TOLD_AFTER.as_secs() < TOLD_EVERY.as_secs());

/// How long nothing was heard.
#[derive(Debug)]
pub(super) struct Silence {
    /// The address of the server.
    from: String,
    is_up: bool,
    began: Option<Began>,
}

#[derive(Debug, Clone, Copy)]
struct Began {
    at: Timestamp,
    since: Instant,
    told: Option<Instant>,
}

impl Silence {
    /// Something is heard from there until told otherwise.
    pub(super) const fn new(from: String) -> Self {
        Self { from, is_up: true, began: None }
    }

    /// Records whether there is a connection; returns the line about it.
    pub(super) fn connection_changed(&mut self, is_up: bool) -> &'static str {
        self.is_up = is_up;
        if is_up { "muster: connected again\n" } else { LOST }
    }

    /// Records whether the hub answered; returns a line if the silence is to be announced now.
    fn note_silence(&mut self, is_answered: bool, at: Timestamp, now: Instant) -> Option<String> {
        if self.is_up && is_answered {
            self.began = None;
            return None;
        }
        let began = self.began.get_or_insert(Began { at, since: now, told: None });
        let is_long = now.duration_since(began.since) >= TOLD_AFTER;
        let is_news = began.told.is_none_or(|told| now.duration_since(told) >= TOLD_EVERY);
        if !is_long || !is_news {
            return None;
        }
        began.told = Some(now);
        self.words()
    }

    /// Runs each second: prints a due line on standard error, unless the screen is redrawn.
    pub(super) fn tick(&mut self, session: &mut Session<'_>, is_answered: bool) {
        let words = self.note_silence(is_answered, session.clock.now(), Instant::now());
        if let Some(words) = words.filter(|_| !session.is_redrawn()) {
            session.terminal.print_note(&words);
        }
    }

    /// The line above the screen.
    pub(super) fn above(&self) -> String {
        let lost = if self.is_up { "" } else { LOST };
        format!("{lost}{}", self.words().unwrap_or_default())
    }

    /// The line about an announced silence.
    fn words(&self) -> Option<String> {
        let began = self.began.filter(|began| began.told.is_some())?;
        let second = Timestamp::from_second(began.at.as_second()).unwrap_or(began.at);
        let who = if self.is_up { "muster-rollup at " } else { "" };
        Some(format!("muster: nothing was heard from {who}{} since {second}; trying on\n", self.from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silence_is_noted_once_then_seldom_and_anew_after_an_answer() {
        let (at, begun) = (Timestamp::UNIX_EPOCH, Instant::now());
        let mut silence = Silence::new("nats://hub:4222".to_owned());
        let mut said = Vec::new();
        let second = Duration::from_secs(1);
        for tick in 0..(2 * TOLD_EVERY.as_secs() as u32) {
            if tick == 1 {
                assert!(silence.connection_changed(false).contains("lost"));
            }
            said.extend(silence.note_silence(true, at, begun + second * tick));
        }
        let words = "muster: nothing was heard from nats://hub:4222 since 1970-01-01T00:00:00Z; trying on\n";
        assert_eq!(said, [words, words]);
        assert!(silence.above().contains("lost") && silence.above().ends_with(words));

        let again = begun + 3 * TOLD_EVERY;
        silence.connection_changed(true);
        assert_eq!((silence.note_silence(true, at, again), silence.above()), (None, String::new()));
        assert_eq!(silence.note_silence(false, at, again), None, "a moment is no silence");
        let said = silence.note_silence(false, at, again + TOLD_AFTER).unwrap();
        assert!(said.contains("from muster-rollup at nats://hub:4222"), "{said}");
    }
}
