//! Whether the views of the bucket may still be believed: each says until when, and its writer renews it before that.

use muster_contract::Timestamp;
use muster_contract::validity::valid_until;

/// Until when the views that were seen may be believed.
#[derive(Debug, Default)]
pub(super) struct Validity {
    /// The time that the view written last names: one writer renews them all, and takes the validity back from all.
    until: Option<Timestamp>,
    is_said: bool,
}

impl Validity {
    /// Records the validity of a view of the bucket.
    pub(super) fn record_view(&mut self, view: Option<&[u8]>) {
        self.until = view.and_then(valid_until).or(self.until);
    }

    /// The line about views that are no longer valid, once.
    pub(super) fn expiry_note(&mut self, now: Timestamp) -> Option<String> {
        let words = self.words(now);
        let is_news = words.is_some() && !self.is_said;
        self.is_said = words.is_some();
        words.filter(|_| is_news)
    }

    /// The line above the screen.
    pub(super) fn above(&self, now: Timestamp) -> String {
        self.words(now).unwrap_or_default()
    }

    fn words(&self, now: Timestamp) -> Option<String> {
        let until = self.until.filter(|until| *until < now)?;
        let second = Timestamp::from_second(until.as_second()).unwrap_or(until);
        Some(format!("muster: the view expired at {second} and was not renewed: does muster-rollup run?\n"))
    }
}

#[cfg(test)]
mod tests {
    use muster_contract::validity::valid_to;

    use super::*;

    #[test]
    fn views_that_are_not_renewed_are_noted_once_and_anew_after_a_renewal() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let view = |second| valid_to(br#"{"asOf":{"ledgerSeq":1,"at":"2026-11-24T08:00:00Z"}}"#, at(second));
        let mut validity = Validity::default();
        validity.record_view(Some(br#"{"asOf":{"ledgerSeq":1,"at":"2026-11-24T08:00:00Z"}}"#));
        assert_eq!(validity.expiry_note(at(1_000)), None, "a view of an older release says nothing");
        validity.record_view(Some(&view(100)));
        assert_eq!((validity.expiry_note(at(100)), validity.above(at(100))), (None, String::new()));
        assert!(validity.expiry_note(at(101)).unwrap().contains("expired at 1970-01-01T00:01:40Z"));
        assert_eq!(validity.expiry_note(at(102)), None);
        validity.record_view(Some(&view(200)));
        assert_eq!(validity.expiry_note(at(150)), None);
        assert!(validity.expiry_note(at(201)).is_some() && !validity.above(at(201)).is_empty());
        validity.record_view(Some(&view(900)));
        assert_eq!(validity.expiry_note(at(300)), None);
        validity.record_view(Some(&view(290)));
        assert!(validity.expiry_note(at(300)).is_some(), "the rollup has taken the validity back");
    }
}
