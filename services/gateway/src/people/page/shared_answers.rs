//! Answers that the readers of a page share for a second, so a thousand open pages ask the hub no more than one.
//!
//! A reader who asks while the question is under way waits for its answer. An error is shared as any answer is: a dead service is
//! asked once a second. If the reader who asked goes away, the next one asks. [`SharedAnswers::clear`] also parts new readers from
//! questions under way, whose answers may be older than the change that it follows.
//!
//! It knows no session: what an answer shows to some roles alone must be in its question.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::OnceCell;
use tokio::time::Instant;

/// Time for which an answer is shared.
const SHARED_FOR: Duration = Duration::from_secs(1);
/// Most answers of one kind: one of a plan may have several hundred KiB.
const ANSWERS_MAX: usize = 64;

/// The time of an answer, and the answer; empty while the question is under way.
type AnswerCell<A> = OnceCell<(Instant, Arc<A>)>;
type Entries<Q, A> = VecDeque<(Q, Arc<AnswerCell<A>>)>;

/// Answers of one kind by their questions, the oldest first.
pub(super) struct SharedAnswers<Q, A>(Mutex<Entries<Q, A>>);

impl<Q, A> Default for SharedAnswers<Q, A> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<Q: PartialEq, A> SharedAnswers<Q, A> {
    /// The answer to a question, at most a second old. `ask` runs only if no other reader has asked.
    pub(super) async fn read(&self, question: Q, ask: impl Future<Output = A>) -> Arc<A> {
        let cell = self.cell(question);
        let answered = cell.get_or_init(|| async {
            let answer = Arc::new(ask.await);
            (Instant::now(), answer)
        });
        let (_, answer) = answered.await;
        Arc::clone(answer)
    }

    /// Forgets every answer: the next reader of each asks again.
    pub(super) fn clear(&self) {
        self.entries().clear();
    }

    fn cell(&self, question: Q) -> Arc<AnswerCell<A>> {
        // An empty one that nobody waits for is of a reader who went away.
        let is_current = |cell: &Arc<AnswerCell<A>>| match cell.get() {
            Some((at, _)) => at.elapsed() < SHARED_FOR,
            None => Arc::strong_count(cell) > 1,
        };
        let mut entries = self.entries();
        entries.retain(|(_, cell)| is_current(cell));
        if let Some((_, cell)) = entries.iter().find(|(known, _)| *known == question) {
            return Arc::clone(cell);
        }
        if entries.len() >= ANSWERS_MAX {
            entries.pop_front();
        }
        let cell = Arc::default();
        entries.push_back((question, Arc::clone(&cell)));
        cell
    }

    fn entries(&self) -> MutexGuard<'_, Entries<Q, A>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::time::{advance, sleep};

    use super::*;

    /// Time that a service takes for an answer.
    const ANSWER_TIME: Duration = Duration::from_millis(300);

    /// A service that counts its answers; the answer is their number.
    #[derive(Default)]
    struct Service {
        answers: SharedAnswers<u64, Result<usize, String>>,
        asked: AtomicUsize,
    }

    impl Service {
        async fn read(&self, question: u64) -> Arc<Result<usize, String>> {
            let ask = async {
                let number = self.asked.fetch_add(1, Ordering::Relaxed);
                sleep(ANSWER_TIME).await;
                if question == 0 { Err("no service answers".to_owned()) } else { Ok(number) }
            };
            self.answers.read(question, ask).await
        }

        fn asked(&self) -> usize {
            self.asked.load(Ordering::Relaxed)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn readers_at_the_same_time_share_one_question_and_its_error() {
        let service = Service::default();
        for (question, asked) in [(7, 1), (0, 2)] {
            let (one, other) = tokio::join!(service.read(question), service.read(question));
            assert!(Arc::ptr_eq(&one, &other));
            assert_eq!(one.is_err(), question == 0);
            service.read(question).await;
            assert_eq!(service.asked(), asked, "{question}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_shared_for_one_second_after_it_came() {
        let service = Service::default();
        service.read(7).await;
        advance(SHARED_FOR - Duration::from_millis(1)).await;
        assert_eq!(*service.read(7).await, Ok(0));
        advance(Duration::from_millis(1)).await;
        assert_eq!(*service.read(7).await, Ok(1));
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_reader_asks_if_the_first_one_goes_away() {
        let service = Service::default();
        let first = tokio::time::timeout(ANSWER_TIME / 2, service.read(7));
        let (first, second) = tokio::join!(first, service.read(7));
        assert!(first.is_err());
        assert_eq!((second.as_ref(), service.asked()), (&Ok(1), 2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_after_a_change_takes_no_answer_from_before_it() {
        let service = Service::default();
        assert_eq!(*service.read(7).await, Ok(0));
        service.answers.clear();
        assert_eq!(*service.read(7).await, Ok(1));
        advance(SHARED_FOR).await;
        let change = async {
            sleep(ANSWER_TIME / 2).await;
            service.answers.clear();
            service.read(7).await
        };
        let (before, after) = tokio::join!(service.read(7), change);
        assert_eq!((before.as_ref(), after.as_ref()), (&Ok(2), &Ok(3)), "the question was under way");
        assert_eq!(*service.read(7).await, Ok(3), "the older answer does not come back");
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_of_too_many_answers_is_asked_for_again() {
        let service = Service::default();
        let answers: Vec<_> = (1..=ANSWERS_MAX as u64 + 1).map(|question| service.read(question)).collect();
        futures_util::future::join_all(answers).await;
        assert_eq!(service.answers.entries().len(), ANSWERS_MAX);
        service.read(2).await;
        assert_eq!(service.asked(), ANSWERS_MAX + 1, "it is the oldest that is left");
        service.read(1).await;
        assert_eq!(service.asked(), ANSWERS_MAX + 2);
        advance(SHARED_FOR).await;
        service.read(1).await;
        assert_eq!(service.answers.entries().len(), 1, "old answers take no memory");
    }
}
