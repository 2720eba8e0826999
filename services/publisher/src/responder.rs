//! Answers the requests on `muster.publisher.*`: parses each, passes it to the announcer, and serialises the answer.

use std::sync::Arc;

use bytes::Bytes;
use muster_bus::{Bus, Call, Fault};
use muster_contract::query::ErrorBody;
use muster_contract::question::{ANSWER_BYTES_MAX, checked_limit, fewer};
use muster_contract::rollout::{TargetsAnswer, TargetsQuery};
use muster_service::health::Latch;
use tokio_util::sync::CancellationToken;

use crate::announce::AnnouncerHandle;
use crate::past_commits::PastCommits;
use crate::requests::{self, PublisherRequest, bad_request};
use crate::status::Status;

/// Largest request, in bytes, that is parsed on the runtime's thread: parsing takes well under a millisecond.
const PARSED_AT_ONCE_MAX: usize = 4 * 1024;

/// Parses a call. A long one is parsed on another thread, because parsing much YAML would delay other tasks.
async fn parse_call(call: Call) -> Result<PublisherRequest, ErrorBody> {
    if call.payload.len() <= PARSED_AT_ONCE_MAX {
        return requests::parse_request(&call);
    }
    let parsed = tokio::task::spawn_blocking(move || requests::parse_request(&call)).await;
    parsed.unwrap_or_else(|error| {
        Err(requests::internal(format!(
            "reading the request failed, which is an error of the publisher: {error}"
        )))
    })
}

/// Answers requests.
#[derive(Debug, Clone)]
pub struct Responder {
    /// Carries out changes, releases and decisions.
    pub announcer: AnnouncerHandle,
    /// The publisher's status.
    pub status: Arc<Status>,
    /// Earlier commits, if it watches a repository.
    pub past: Option<PastCommits>,
}

impl Responder {
    /// Answers requests until `stop`, and then those that have arrived.
    pub(crate) async fn serve(self, bus: Bus, offered: Latch, stop: CancellationToken) {
        let handler = move |call| self.clone().answer(call);
        bus.offer(requests::spec(), handler, || offered.release(), stop).await;
    }

    /// Answers one request.
    ///
    /// # Errors
    /// The refusal, with its body.
    pub async fn answer(self, call: Call) -> Result<Bytes, Fault> {
        match parse_call(call).await {
            Ok(PublisherRequest::Status(query)) => requests::reply(Ok(self.status.answer_to(&query))),
            Ok(PublisherRequest::Targets(query)) => self.targets(query).await,
            Ok(PublisherRequest::Release(release)) => requests::reply(self.announcer.release(release).await),
            Ok(PublisherRequest::Decide(decide)) => requests::reply(self.announcer.decide(decide).await),
            Ok(PublisherRequest::Change(request)) => requests::reply(self.announcer.change(request).await),
            Err(error) => requests::reply::<()>(Err(error)),
        }
    }

    /// A page of targets that fits into a message.
    async fn targets(&self, query: TargetsQuery) -> Result<Bytes, Fault> {
        let mut limit = checked_limit(query.limit)?;
        loop {
            let page = TargetsQuery { limit: Some(limit), ..query.clone() };
            let reply = requests::reply(self.page(page).await)?;
            if reply.len() <= ANSWER_BYTES_MAX || limit == 1 {
                return Ok(reply);
            }
            limit = fewer(limit, reply.len());
        }
    }

    async fn page(&self, query: TargetsQuery) -> Result<TargetsAnswer, ErrorBody> {
        match (query.revision.clone(), &self.past) {
            (None, _) => self.announcer.targets(query).await,
            (Some(revision), Some(past)) => past.targets(&query, &revision).await,
            (Some(_), None) => {
                Err(bad_request("revision: this publisher watches no Git repository".to_owned()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future as _;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use muster_contract::query::{ApplyRequest, ErrorCode};

    use super::*;

    fn call(documents: String) -> Call {
        let request = ApplyRequest { key: "a/one".parse().unwrap(), documents, file: None };
        let payload = serde_json::to_vec(&request).unwrap().into();
        let (subject, headers) = ("muster.publisher.apply".to_owned(), muster_bus::Headers::default());
        Call { endpoint: "apply", subject, payload, headers, requester: muster_bus::Requester::Unverified }
    }

    #[test]
    fn a_long_request_is_parsed_on_another_thread() {
        let runtime = tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).build().unwrap();
        let long = "# nothing\n".repeat(PARSED_AT_ONCE_MAX);
        for (documents, at_once) in [("# nothing\n".to_owned(), true), (long, false)] {
            runtime.block_on(async {
                // The only other thread is busy until after the first poll.
                let (looked, wait) = std::sync::mpsc::channel::<()>();
                let busy = tokio::task::spawn_blocking(move || wait.recv());
                let mut answer = pin!(parse_call(call(documents)));
                let first = answer.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                assert_eq!(first.is_ready(), at_once);
                drop(looked);
                assert!(busy.await.unwrap().is_err());
                let answer = if at_once { first } else { std::task::Poll::Ready(answer.await) };
                let std::task::Poll::Ready(Err(refused)) = answer else { panic!("holds no deployment") };
                assert_eq!(refused.code, ErrorCode::BadRequest, "{refused:?}");
            });
        }
    }
}
