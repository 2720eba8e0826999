//! The raw publish as the client's library has it: so many messages under way, each answer awaited in the order of sending.

use std::collections::VecDeque;
use std::time::Instant;

use async_nats::HeaderMap;
use async_nats::jetstream::context::PublishAckFuture;
use muster_bus::{Headers, Outgoing};
use muster_contract::limits::IN_FLIGHT_MAX;
use muster_tests::server::Server;

use super::{converged, stored, way};

/// Messages a second, made before the clock starts.
pub(crate) async fn publish(messages: Vec<Outgoing>, bits_a_second: Option<u64>) -> f64 {
    let server = Server::start();
    let bus = converged(&server).await;
    let messages: Vec<_> =
        messages.into_iter().map(|it| (it.subject, headers(&it.headers), it.payload)).collect();
    let count = messages.len();
    let (settings, _link) = way(&server, bits_a_second).await;
    let begin = Instant::now();
    let context = async_nats::jetstream::new(async_nats::connect(settings.url).await.unwrap());
    let mut under_way: VecDeque<PublishAckFuture> = VecDeque::with_capacity(IN_FLIGHT_MAX);
    for (subject, headers, payload) in messages {
        if under_way.len() == IN_FLIGHT_MAX
            && let Some(oldest) = under_way.pop_front()
        {
            oldest.await.expect("a local server stores");
        }
        under_way.push_back(context.publish_with_headers(subject, headers, payload).await.unwrap());
    }
    for answer in under_way {
        answer.await.expect("a local server stores");
    }
    stored(&bus, count as u64, begin).await;
    count as f64 / begin.elapsed().as_secs_f64()
}

fn headers(of: &Headers) -> HeaderMap {
    let mut headers = HeaderMap::new();
    of.iter().for_each(|(name, value)| headers.append(name, value));
    headers
}
