//! One direction of one connection: reads from one end and writes to the other when the bytes are due.

use std::io::ErrorKind;
use std::sync::atomic::Ordering;

use tokio::io::AsyncWriteExt;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::LinkState;
use super::bucket::BURST;
use super::condition::{Condition, Direction, Setting, Shape};
use super::line::Line;
use super::relay::ConnectionContext;

/// Bytes taken in at once.
const PIECE_BYTES_MAX: usize = 16 * 1024;
/// Bytes taken in at once on the slowest of links: less would be a packet too small to be real.
const PIECE_BYTES_MIN: usize = 512;

const _: () = assert!(PIECE_BYTES_MAX < super::line::LINE_BYTES_MAX);

/// The connection failed: both of its ends must be reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BrokenConnection;

/// One direction of a connection.
pub(super) struct Pump<'a> {
    direction: Direction,
    from: ReadHalf<'a>,
    to: WriteHalf<'a>,
    state: watch::Receiver<LinkState>,
    shape: Shape,
    road: &'a ConnectionContext,
    rng: fastrand::Rng,
    line: Line,
    /// The reading end is at its end of stream, or has failed.
    ended: bool,
    /// Bytes were dropped, so the connection must be reset once the link is no longer half open.
    lost: bool,
}

impl<'a> Pump<'a> {
    pub(super) fn new(
        direction: Direction,
        from: ReadHalf<'a>,
        to: WriteHalf<'a>,
        road: &'a ConnectionContext,
        rng: fastrand::Rng,
    ) -> Self {
        let state = road.state.clone();
        let shape = state.borrow().effective().shape;
        Self {
            direction,
            from,
            to,
            state,
            shape,
            road,
            rng,
            line: Line::default(),
            ended: false,
            lost: false,
        }
    }

    /// Relays until the sender has closed and all its bytes are written to the receiver.
    pub(super) async fn run(mut self) -> Result<(), BrokenConnection> {
        loop {
            let Setting { condition, shape } = self.state.borrow_and_update().effective();
            if self.lost && !matches!(condition, Condition::HalfOpen(_)) {
                return Err(BrokenConnection);
            }
            self.follow(shape);
            if self.ended && self.line.is_empty() && !self.lost {
                // The other end may be closed already.
                return self.to.shutdown().await.map_err(|_| BrokenConnection);
            }
            self.apply_condition(condition).await?;
        }
    }

    /// Waits for one event and handles it.
    async fn apply_condition(&mut self, condition: Condition) -> Result<(), BrokenConnection> {
        let carries = condition != Condition::Stalled;
        let now = Instant::now();
        let due = self.line.due().filter(|_| carries);
        let reads = carries && !self.ended && self.line.room() > 0;
        tokio::select! {
            // The link is gone, and its connections with it.
            changed = self.state.changed() => changed.map_err(|_| BrokenConnection),
            ready = self.from.readable(), if reads => match ready {
                Ok(()) => self.read_ready(condition),
                Err(_) => self.fail(condition),
            },
            ready = self.to.writable(), if due.is_some_and(|due| due <= now) => match ready {
                Ok(()) => self.write_ready(condition),
                Err(_) => self.fail(condition),
            },
            () = sleep_until(due.unwrap_or(now)), if due.is_some_and(|due| due > now) => Ok(()),
        }
    }

    fn read_ready(&mut self, condition: Condition) -> Result<(), BrokenConnection> {
        let mut piece = [0; PIECE_BYTES_MAX];
        let most = self.piece_bytes().min(self.line.room());
        let vanishes = condition == Condition::HalfOpen(self.direction);
        match self.from.try_read(&mut piece[..most]) {
            Ok(0) => {
                self.ended = true;
                self.lost |= vanishes;
            }
            Ok(bytes) if vanishes => {
                self.lost = true;
                self.road.traffic.swallowed.fetch_add(bytes as u64, Ordering::Relaxed);
            }
            Ok(bytes) => {
                let due = self.due(bytes);
                self.line.push(&piece[..bytes], due);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => return self.fail(condition),
        }
        Ok(())
    }

    fn write_ready(&mut self, condition: Condition) -> Result<(), BrokenConnection> {
        match self.to.try_write(self.line.front()) {
            Ok(bytes) => {
                self.line.advance(bytes);
                self.road.traffic.of(self.direction).fetch_add(bytes as u64, Ordering::Relaxed);
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            Err(_) => self.fail(condition),
        }
    }

    /// Handles an end that failed. A half-open link hides the failure from the other end.
    fn fail(&mut self, condition: Condition) -> Result<(), BrokenConnection> {
        if !matches!(condition, Condition::HalfOpen(_)) {
            return Err(BrokenConnection);
        }
        self.ended = true;
        self.lost = true;
        let lost = self.line.clear();
        self.road.traffic.swallowed.fetch_add(lost as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Adopts a new shape, also for the bytes in flight.
    fn follow(&mut self, shape: Shape) {
        if shape == self.shape {
            return;
        }
        self.shape = shape;
        let now = Instant::now();
        let Self { line, road, direction, rng, .. } = self;
        line.replan(|bytes| road.through(*direction, &shape, bytes, now) + shape.draw(rng));
    }

    /// When bytes that are read now arrive.
    fn due(&mut self, bytes: usize) -> Instant {
        let through = self.road.through(self.direction, &self.shape, bytes, Instant::now());
        through + self.shape.draw(&mut self.rng)
    }

    /// The most bytes of one piece. A slow link carries small pieces, because a large one would arrive in a burst after a long
    /// pause.
    fn piece_bytes(&self) -> usize {
        let burst = |rate: u64| (rate as f64 * BURST.as_secs_f64()) as usize;
        let bytes = self.shape.rate(self.direction).map_or(PIECE_BYTES_MAX, |rate| burst(rate.get()));
        bytes.clamp(PIECE_BYTES_MIN, PIECE_BYTES_MAX)
    }
}
