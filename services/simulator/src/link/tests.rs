//! Each fault of a link, on raw TCP streams.
//!
//! Tests of times pause the clock, which then moves only to the next instant that a task waits for, and so never past one
//! that the link waits for. No deadline may be pending, or the clock would run to it while bytes are between two sockets.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{Instant, pause, resume, timeout};

use super::*;

/// Longest wait for something that comes.
const DEADLINE: Duration = Duration::from_secs(20);
/// Time in which something that comes through by mistake is sure to show, on an idle machine at least.
const A_MOMENT: Duration = Duration::from_millis(100);
/// Time, of a clock that is not the machine's, in which nothing may come.
const FOR_EVER: Duration = Duration::from_secs(100_000);

/// Both ends of a connection through a link.
struct Ends {
    link: Link,
    client: TcpStream,
    server: TcpStream,
    accepted: mpsc::Receiver<TcpStream>,
}

impl Ends {
    async fn new() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, mut accepted) = mpsc::channel(16);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                sender.send(stream).await.unwrap();
            }
        });
        let link = Link::open(address).await.unwrap();
        let client = TcpStream::connect(link.address()).await.unwrap();
        let server = accepted.recv().await.unwrap();
        Self { link, client, server, accepted }
    }

    /// Checks that bytes from either end arrive at the other.
    async fn carry_both_ways(&mut self) {
        said(&mut self.client, &mut self.server, b"up").await;
        said(&mut self.server, &mut self.client, b"down").await;
    }

    /// A new connection, as the server sees it too.
    async fn connect_again(&mut self) {
        self.client = TcpStream::connect(self.link.address()).await.unwrap();
        self.server = soon(self.accepted.recv()).await.unwrap();
    }
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(DEADLINE, future).await.expect("it comes")
}

async fn said(from: &mut TcpStream, to: &mut TcpStream, text: &[u8]) {
    from.write_all(text).await.unwrap();
    heard(to, text).await;
}

async fn heard(to: &mut TcpStream, text: &[u8]) {
    let mut heard = vec![0; text.len()];
    soon(to.read_exact(&mut heard)).await.unwrap();
    assert_eq!(heard, text);
}

/// Nothing is heard, however long one waits.
async fn silent(stream: &mut TcpStream) {
    let mut byte = [0];
    let heard = timeout(A_MOMENT, stream.read(&mut byte)).await;
    assert!(heard.is_err(), "nothing may be heard, and no end: {heard:?}");
    pause();
    let heard = timeout(FOR_EVER, stream.read(&mut byte)).await;
    resume();
    assert!(heard.is_err(), "nothing may be heard, and no end: {heard:?}");
}

async fn is_reset(stream: &mut TcpStream) {
    let mut rest = Vec::new();
    let ended = soon(stream.read_to_end(&mut rest)).await;
    let kind = ended.expect_err("a reset, not an end in good order").kind();
    assert_eq!(kind, std::io::ErrorKind::ConnectionReset);
}

async fn is_closed(stream: &mut TcpStream) {
    let mut rest = Vec::new();
    let ended = soon(stream.read_to_end(&mut rest)).await;
    assert_eq!(ended.expect("an end in good order"), 0);
}

#[tokio::test]
async fn an_open_link_carries_both_ways_and_counts() {
    let mut ends = Ends::new().await;
    ends.carry_both_ways().await;
    assert_eq!(ends.link.connections(), 1);
    assert_eq!((ends.link.carried(Direction::Up), ends.link.carried(Direction::Down)), (2, 4));
}

#[tokio::test]
async fn an_open_link_hands_on_that_one_end_has_said_its_last() {
    let mut ends = Ends::new().await;
    ends.client.write_all(b"bye").await.unwrap();
    ends.client.shutdown().await.unwrap();
    let mut heard = Vec::new();
    soon(ends.server.read_to_end(&mut heard)).await.unwrap();
    assert_eq!(heard, b"bye");
    said(&mut ends.server, &mut ends.client, b"the other way still works").await;
}

#[tokio::test]
async fn an_open_link_hands_on_a_reset() {
    let mut ends = Ends::new().await;
    ends.carry_both_ways().await;
    ends.client.set_zero_linger().unwrap();
    drop(ends.client);
    is_reset(&mut ends.server).await;
}

#[tokio::test]
async fn a_cut_resets_connections_and_turns_new_ones_away_until_it_is_mended() {
    let mut ends = Ends::new().await;
    ends.carry_both_ways().await;
    ends.link.set(Condition::Cut);
    is_reset(&mut ends.client).await;
    is_reset(&mut ends.server).await;
    let mut turned_away = TcpStream::connect(ends.link.address()).await.unwrap();
    is_reset(&mut turned_away).await;
    ends.link.set(Condition::Open);
    ends.connect_again().await;
    ends.carry_both_ways().await;
    assert_eq!(ends.link.connections(), 2);
}

#[tokio::test]
async fn a_closed_link_ends_connections_in_good_order_until_it_is_mended() {
    let mut ends = Ends::new().await;
    ends.carry_both_ways().await;
    ends.link.set(Condition::Closed);
    is_closed(&mut ends.client).await;
    is_closed(&mut ends.server).await;
    let mut turned_away = TcpStream::connect(ends.link.address()).await.unwrap();
    is_closed(&mut turned_away).await;
    ends.link.set(Condition::Open);
    ends.connect_again().await;
    ends.carry_both_ways().await;
}

#[tokio::test]
async fn a_stalled_link_holds_both_ways_and_delivers_afterwards() {
    let mut ends = Ends::new().await;
    ends.carry_both_ways().await;
    ends.link.set(Condition::Stalled);
    ends.client.write_all(b"from the client").await.unwrap();
    ends.server.write_all(b"from the server").await.unwrap();
    silent(&mut ends.server).await;
    silent(&mut ends.client).await;
    ends.link.set(Condition::Open);
    heard(&mut ends.server, b"from the client").await;
    heard(&mut ends.client, b"from the server").await;
}

#[tokio::test]
async fn a_stalled_link_hides_that_an_end_has_gone_and_keeps_new_ones_waiting() {
    let mut ends = Ends::new().await;
    ends.carry_both_ways().await;
    ends.link.set(Condition::Stalled);
    let mut early = TcpStream::connect(ends.link.address()).await.unwrap();
    drop(ends.client);
    silent(&mut ends.server).await;
    silent(&mut early).await;
    assert_eq!(ends.link.connections(), 1, "nothing reached the server");
    ends.link.set(Condition::Open);
    is_closed(&mut ends.server).await;
    let mut server = soon(ends.accepted.recv()).await.unwrap();
    said(&mut early, &mut server, b"at last").await;
}

#[tokio::test]
async fn a_stalled_link_takes_in_a_bounded_amount_and_then_the_sender_waits() {
    let mut ends = Ends::new().await;
    ends.carry_both_ways().await;
    ends.link.set(Condition::Stalled);
    // The kernel's buffers take some megabytes; a link without a bound would take all of it.
    let gigabyte = 1024 * 1024 * 1024;
    let piece = vec![7; 1024 * 1024];
    let mut written = 0;
    while written < gigabyte {
        match timeout(Duration::from_millis(500), ends.client.write(&piece)).await {
            Ok(bytes) => written += bytes.unwrap(),
            Err(_) => break,
        }
    }
    assert!(written < gigabyte, "the sender never had to wait");
    ends.link.set(Condition::Open);
    let mut delivered = vec![0; written];
    soon(ends.server.read_exact(&mut delivered)).await.unwrap();
    assert!(delivered.iter().all(|byte| *byte == 7), "and none of it is lost");
}

#[tokio::test]
async fn a_half_open_link_swallows_one_way_carries_the_other_and_closes_nothing() {
    for direction in [Direction::Up, Direction::Down] {
        let mut ends = Ends::new().await;
        ends.carry_both_ways().await;
        ends.link.set(Condition::HalfOpen(direction));
        let (lost, kept) = match direction {
            Direction::Up => (&mut ends.client, &mut ends.server),
            Direction::Down => (&mut ends.server, &mut ends.client),
        };
        lost.write_all(b"into the void").await.unwrap();
        silent(kept).await;
        said(kept, lost, b"the other way").await;
        assert_eq!(ends.link.swallowed(), 13);
    }
}

#[tokio::test]
async fn a_half_open_link_hides_that_the_end_it_swallows_has_gone() {
    let mut ends = Ends::new().await;
    ends.carry_both_ways().await;
    ends.link.set(Condition::HalfOpen(Direction::Up));
    drop(ends.client);
    silent(&mut ends.server).await;
    ends.server.write_all(b"is anybody there?").await.unwrap();
    silent(&mut ends.server).await;
    ends.link.set(Condition::Open);
    is_reset(&mut ends.server).await;
}

#[tokio::test]
async fn a_mended_link_resets_only_connections_that_lost_data() {
    let mut ends = Ends::new().await;
    ends.carry_both_ways().await;
    let mut quiet = TcpStream::connect(ends.link.address()).await.unwrap();
    let mut server_of_quiet = soon(ends.accepted.recv()).await.unwrap();
    ends.link.set(Condition::HalfOpen(Direction::Up));
    ends.client.write_all(b"into the void").await.unwrap();
    silent(&mut ends.server).await;
    ends.link.set(Condition::Open);
    is_reset(&mut ends.client).await;
    is_reset(&mut ends.server).await;
    said(&mut quiet, &mut server_of_quiet, b"whole").await;
}

#[tokio::test]
async fn a_throttled_link_keeps_its_rate_over_all_connections_together() {
    let mut ends = Ends::new().await;
    let mut other = TcpStream::connect(ends.link.address()).await.unwrap();
    let mut server_of_other = soon(ends.accepted.recv()).await.unwrap();
    ends.link.shape(Shape::PLAIN.slow(1000, 0));
    pause();
    let begin = Instant::now();
    let text = vec![7; 5000];
    ends.client.write_all(&text).await.unwrap();
    other.write_all(&text).await.unwrap();
    let (mut one, mut two) = (vec![0; 5000], vec![0; 5000]);
    let heard = tokio::join!(ends.server.read_exact(&mut one), server_of_other.read_exact(&mut two));
    assert!(heard.0.is_ok() && heard.1.is_ok() && one == text && two == text);
    assert!(begin.elapsed() >= Duration::from_millis(9900), "10,000 bytes took {:?}", begin.elapsed());
}

#[tokio::test]
async fn a_throttled_direction_leaves_the_other_alone() {
    let mut ends = Ends::new().await;
    ends.link.shape(Shape::PLAIN.slow(1, 0));
    ends.client.write_all(&vec![7; 100_000]).await.unwrap();
    said(&mut ends.server, &mut ends.client, b"fast").await;
    silent_but_for_one_piece(&mut ends.server).await;
}

/// A byte a second: what came through is far from what was said.
async fn silent_but_for_one_piece(stream: &mut TcpStream) {
    let mut rest = vec![0; 100_000];
    assert!(timeout(A_MOMENT, stream.read_exact(&mut rest)).await.is_err());
}

#[tokio::test]
async fn a_late_link_delivers_in_order_and_no_sooner_than_its_latency() {
    let mut ends = Ends::new().await;
    ends.link.shape(Shape::PLAIN.late(Duration::from_secs(10), Duration::from_secs(5)));
    pause();
    for round in 0..5_u8 {
        let begin = Instant::now();
        let numbers: Vec<u8> = (round * 10..(round + 1) * 10).collect();
        for number in &numbers {
            ends.client.write_all(&[*number]).await.unwrap();
        }
        let mut heard = [0; 10];
        ends.server.read_exact(&mut heard).await.unwrap();
        assert_eq!(heard.to_vec(), numbers);
        assert!(begin.elapsed() >= Duration::from_secs(5), "late by {:?}", begin.elapsed());
    }
}

#[tokio::test]
async fn faults_are_combined_and_changed_while_connections_live() {
    let mut ends = Ends::new().await;
    ends.carry_both_ways().await;
    ends.link.shape(Shape::PLAIN.slow(10, 10).late(Duration::from_secs(3600), Duration::ZERO));
    ends.client.write_all(&[7; 2000]).await.unwrap();
    ends.link.set(Condition::Stalled);
    silent(&mut ends.server).await;
    // Bytes that were in flight for hours continue in the new shape.
    ends.link.apply_setting(Setting::default());
    heard(&mut ends.server, &[7; 2000]).await;
    ends.carry_both_ways().await;
    assert_eq!(ends.link.connections(), 1);
}

#[tokio::test]
async fn a_link_without_a_server_resets_and_carries_as_soon_as_there_is_one() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let link = Link::open(address).await.unwrap();
    let mut early = TcpStream::connect(link.address()).await.unwrap();
    is_reset(&mut early).await;
    assert_eq!(link.connections(), 0);
    let listener = TcpListener::bind(address).await.unwrap();
    let mut client = TcpStream::connect(link.address()).await.unwrap();
    let (mut server, _) = soon(listener.accept()).await.unwrap();
    said(&mut client, &mut server, b"there").await;
}

#[tokio::test]
async fn a_dropped_link_ends_its_connections() {
    let mut ends = Ends::new().await;
    ends.carry_both_ways().await;
    drop(ends.link);
    let mut rest = Vec::new();
    // Reset or closed: both say so.
    let _ = soon(ends.client.read_to_end(&mut rest)).await;
    let _ = soon(ends.server.read_to_end(&mut rest)).await;
    assert!(rest.is_empty());
}
