//! EMCO's notifications for clients that are not event streams: the present one first, then each change. They share the polled
//! questions with event streams.

use axum::body::Bytes;
use tokio::sync::watch::Receiver;

use super::subscribe;
use crate::people::People;
use crate::people::emco::watched::WatchedStatus;
use crate::people::watch::topics::{Known, Topic};
use crate::problem::Problem;

/// The next message to a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Notice {
    /// The notification as JSON.
    Status(Bytes),
    /// No service answers, for this cause.
    Unanswered(String),
    /// There is no such deployment or device any more.
    Gone,
}

/// The notifications of one question.
pub(crate) struct Notices {
    known: Receiver<Known>,
    last: Option<Notice>,
}

impl Notices {
    /// Follows a question.
    ///
    /// # Errors
    /// There is no such deployment or device, no service answers, or as many questions are followed as may be.
    pub(crate) async fn follow(people: &People, watched: WatchedStatus) -> Result<Self, Problem> {
        let known = subscribe(people, &Topic::Notifications(watched)).await?;
        Ok(Self { known, last: None })
    }

    /// The next notice if it is another one than the last.
    pub(crate) fn due(&mut self, people: &People) -> Option<Notice> {
        let notice = match self.known.borrow_and_update().clone().judged(people.clock().now()) {
            Known::Asking => return None,
            Known::Current { document, .. } => Notice::Status(document.data),
            Known::Unanswered { cause, .. } => Notice::Unanswered(cause),
            Known::Gone => Notice::Gone,
        };
        let is_same = match (&notice, &self.last) {
            // Another cause is no news.
            (Notice::Unanswered(_), Some(Notice::Unanswered(_))) => true,
            (notice, last) => last.as_ref() == Some(notice),
        };
        if is_same {
            return None;
        }
        self.last = Some(notice.clone());
        Some(notice)
    }

    /// Waits until a notice may be due; `None` if none will come.
    pub(crate) async fn changed(&mut self) -> Option<()> {
        self.known.changed().await.ok()
    }
}
