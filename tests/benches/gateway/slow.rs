//! Clients that open an event stream and read nothing: the memory that each costs a gateway, and its end.
//!
//! The gateway notices such a client once the kernel takes nothing more for it. A segment of the loopback has 64 KiB, for which the
//! kernel would take megabytes; so these clients have segments as over Ethernet, and the smallest receive buffer. From then on the
//! gateway's write buffer fills, until the gateway ends the connection.
//!
//! Memory is measured in waves, one after the other, with one client beside them that reads. The gateway's allocator keeps what it
//! gets back, and with gaps, which the first two waves fill; the growth after them shows whether anything of ended clients is lost.
//! The kernel's buffers are counted apart, those of every other socket of the machine among them. It measures no TLS and no client
//! that reads a little.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use muster_tests::load::PATIENCE;
use muster_tests::wait::within;
use socket2::{Domain, Socket, Type};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, timeout};

use super::client::Client;
use super::process::Gateway;

/// Bytes of a segment, as over Ethernet.
const SEGMENT_BYTES: u32 = 1_460;
/// The receive buffer that is asked for; the system's least one is about as large.
const RECEIVE_BYTES: usize = 2_048;
/// The stream of each: its frames are the same for all, so all are ended at about the same time.
const PATH: &str = "/api/v1/watch/fleet";
/// Frames that the reading client gets first, so that the gateway is warm.
const WARM_FRAMES: usize = 10;
/// Frames of the reading client, one a second, between the two looks at full buffers. A buffer is full after 16 frames at most, and
/// its client is ended 20 s after the kernel took nothing more.
const FULL_FRAMES: usize = 3;
/// Frames of the reading client after the last slow client was ended.
const REST_FRAMES: usize = 5;
/// Waves, one after the other.
const WAVES: usize = 6;
/// The most by which each wave after the second may grow the gateway, in KiB of each client: a lost write buffer is 16.
const GROWTH_KIB_MAX: f64 = 0.5;
/// The longest that a wave may take.
const WAVE_MAX: Duration = Duration::from_secs(180);
/// The gateway's bound of a write buffer, in KiB: it holds less than this and one frame.
const WRITE_BUFFER_KIB: f64 = 16.0;

/// Opens so many streams that nobody reads.
pub(crate) async fn open(gateway: &Gateway, clients: usize) -> Vec<TcpStream> {
    let streams = gateway.open_streams().await + clients;
    let mut held = Vec::with_capacity(clients);
    for _ in 0..clients {
        held.push(connect(gateway.addr()).await.unwrap());
    }
    let look = || gateway.open_streams();
    within(PATIENCE, "every slow client has a stream", look, |open| *open >= streams).await;
    held
}

async fn connect(addr: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.set_tcp_mss(SEGMENT_BYTES)?;
    socket.set_recv_buffer_size(RECEIVE_BYTES)?;
    let mut stream = TcpSocket::from_std_stream(socket.into()).connect(addr).await?;
    stream.write_all(format!("GET {PATH} HTTP/1.1\r\nHost: {addr}\r\n\r\n").as_bytes()).await?;
    Ok(stream)
}

/// The state of a gateway and of the kernel at one time.
struct Sample {
    elapsed: Duration,
    /// Open streams of slow clients.
    slow: usize,
    /// Bytes of the gateway.
    resident: u64,
    /// Bytes of all TCP buffers in the kernel.
    kernel: u64,
}

impl Sample {
    /// The state now, without the one stream that is read.
    async fn take(gateway: &Gateway, begin: Instant) -> Self {
        Self {
            elapsed: begin.elapsed(),
            slow: gateway.open_streams().await.saturating_sub(1),
            resident: gateway.resident_bytes(),
            kernel: kernel_bytes(),
        }
    }
}

/// Bytes of all TCP buffers in the kernel.
fn kernel_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/net/sockstat").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("TCP:")).unwrap();
    let pages = line.split_once(" mem ").unwrap().1.split_whitespace().next().unwrap();
    pages.parse::<u64>().unwrap() * rustix::param::page_size() as u64
}

/// The cost of slow clients. Memory is in KiB of each client, above what the gateway or the kernel had before.
pub(crate) struct Cost {
    clients: usize,
    frame_kib: f64,
    opened_kib: f64,
    /// The two looks at full buffers.
    full_kib: [f64; 2],
    kernel_kib: f64,
    /// After the last client of each wave was ended.
    left_kib: [f64; WAVES],
    /// The most of each wave.
    most_kib: [f64; WAVES],
    first_end: Option<Duration>,
    last_end: Option<Duration>,
}

/// Measures so many slow clients of a gateway that has no other client.
pub(crate) async fn cost(gateway: &Gateway, clients: usize) -> Cost {
    let mut reader = Client::connect(gateway.addr()).await.unwrap();
    reader.follow(PATH).await.unwrap();
    for _ in 0..WARM_FRAMES {
        read(&mut reader).await;
    }
    let before = Sample::take(gateway, Instant::now()).await;
    let mut waves = Vec::new();
    for _ in 0..WAVES {
        waves.push(wave(gateway, &mut reader, clients).await);
    }
    let each = |bytes: u64, before: u64| (bytes as f64 - before as f64) / clients as f64 / 1024.0;
    let resident = |sample: &Sample| each(sample.resident, before.resident);
    let first = &waves[0];
    let first_end = first.iter().position(|sample| sample.slow < clients);
    let full = first_end.unwrap_or(first.len()).saturating_sub(1);
    Cost {
        clients,
        frame_kib: reader.frame_bytes() as f64 / 1024.0,
        opened_kib: resident(&first[0]),
        full_kib: [full.saturating_sub(FULL_FRAMES), full].map(|at| resident(&first[at])),
        kernel_kib: each(first[full].kernel, before.kernel),
        left_kib: std::array::from_fn(|at| waves[at].last().map_or(f64::NAN, resident)),
        most_kib: std::array::from_fn(|at| waves[at].iter().map(resident).fold(f64::NAN, f64::max)),
        first_end: first_end.map(|at| first[at].elapsed),
        last_end: first.iter().find(|sample| sample.slow == 0).map(|sample| sample.elapsed),
    }
}

/// Opens slow clients and waits until the gateway has ended them; a sample with each frame of the client that reads.
async fn wave(gateway: &Gateway, reader: &mut Client, clients: usize) -> Vec<Sample> {
    let begin = Instant::now();
    let held = open(gateway, clients).await;
    let (mut samples, mut rest) = (Vec::new(), REST_FRAMES);
    while rest > 0 && begin.elapsed() < WAVE_MAX {
        read(reader).await;
        let sample = Sample::take(gateway, begin).await;
        rest -= usize::from(sample.slow == 0);
        samples.push(sample);
    }
    drop(held);
    within(PATIENCE, "no slow client is left", || gateway.open_streams(), |open| *open == 1).await;
    samples
}

async fn read(reader: &mut Client) {
    timeout(PATIENCE, reader.event()).await.expect("a frame in time").unwrap();
}

impl Cost {
    /// The longest that a client was held; at most [`WAVE_MAX`].
    pub(crate) fn longest(&self) -> Duration {
        self.last_end.unwrap_or(WAVE_MAX)
    }

    /// The rows of the table.
    pub(crate) fn rows(&self) -> Vec<String> {
        let end = |end: Option<Duration>| match end {
            Some(end) => format!("{:.0}", end.as_secs_f64()),
            None => format!("not in {}", WAVE_MAX.as_secs()),
        };
        let bound = self.opened_kib + WRITE_BUFFER_KIB + self.frame_kib;
        let [earlier, later] = self.full_kib;
        let growth = (self.left_kib[WAVES - 1] - self.left_kib[1]) / (WAVES - 2) as f64;
        let list = |waves: [f64; WAVES]| waves.map(|kib| format!("{kib:.1}")).join(", ");
        vec![
            format!("| slow clients | {} | |", self.clients),
            format!("| a frame of theirs, KiB | {:.1} | |", self.frame_kib),
            format!("| memory of each, when all are open, KiB | {:.1} | |", self.opened_kib),
            format!(
                "| memory of each, {FULL_FRAMES} s before the first is ended, KiB | {earlier:.1} | {bound:.1} |"
            ),
            format!("| memory of each, when the first is ended, KiB | {later:.1} | {bound:.1} |"),
            format!(
                "| memory of each after the last is ended, in {WAVES} waves, KiB | {} | |",
                list(self.left_kib)
            ),
            format!("| growth of it with each wave after the second, KiB | {growth:.2} | {GROWTH_KIB_MAX} |"),
            format!("| memory of each in {WAVES} waves, the most, KiB | {} | |", list(self.most_kib)),
            format!("| TCP buffers in the kernel of each, KiB | {:.1} | |", self.kernel_kib),
            format!("| first slow client ended after, s | {} | |", end(self.first_end)),
            format!("| last slow client ended after, s | {} | {} |", end(self.last_end), WAVE_MAX.as_secs()),
        ]
    }
}
