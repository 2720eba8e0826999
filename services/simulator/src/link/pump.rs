//! One direction of one connection: takes in what one end says, hands it to the other when it is due.

use std::io::ErrorKind;
use std::sync::atomic::Ordering;

use tokio::io::AsyncWriteExt;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::bucket::BURST;
use super::condition::{Condition, Setting, Shape, Way};
use super::line::Line;
use super::relay::Road;

/// Bytes taken in at once.
const PIECE_BYTES_MAX: usize = 16 * 1024;
/// Bytes taken in at once on the slowest of links: less would be a packet too small to be real.
const PIECE_BYTES_MIN: usize = 512;

const _: () = assert!(PIECE_BYTES_MAX < super::line::LINE_BYTES_MAX);

/// The connection has come to an end that is no good one: both its ends are to be reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Broken;

/// A direction at work.
pub(super) struct Pump<'a> {
    way: Way,
    from: ReadHalf<'a>,
    to: WriteHalf<'a>,
    setting: watch::Receiver<Setting>,
    shape: Shape,
    road: &'a Road,
    chance: fastrand::Rng,
    line: Line,
    /// The end that speaks has said its last.
    ended: bool,
    /// Something vanished: the connection cannot be whole any more.
    lost: bool,
}

impl<'a> Pump<'a> {
    pub(super) fn new(
        way: Way,
        (from, to): (ReadHalf<'a>, WriteHalf<'a>),
        road: &'a Road,
        chance: fastrand::Rng,
    ) -> Self {
        let setting = road.setting.clone();
        let shape = setting.borrow().shape;
        Self { way, from, to, setting, shape, road, chance, line: Line::default(), ended: false, lost: false }
    }

    /// Carries until the speaking end has closed and all it said is handed on.
    pub(super) async fn run(mut self) -> Result<(), Broken> {
        loop {
            let Setting { condition, shape } = *self.setting.borrow_and_update();
            if self.lost && !matches!(condition, Condition::HalfOpen(_)) {
                return Err(Broken);
            }
            self.follow(shape);
            if self.ended && self.line.is_empty() && !self.lost {
                // The other end may have gone already; then there is nobody to tell.
                return self.to.shutdown().await.map_err(|_| Broken);
            }
            self.turn(condition).await?;
        }
    }

    /// Waits for one thing to happen and does what follows.
    async fn turn(&mut self, condition: Condition) -> Result<(), Broken> {
        let carries = condition != Condition::Stalled;
        let now = Instant::now();
        let due = self.line.due().filter(|_| carries);
        let reads = carries && !self.ended && self.line.room() > 0;
        tokio::select! {
            // The link is gone, and its connections with it.
            changed = self.setting.changed() => changed.map_err(|_| Broken),
            ready = self.from.readable(), if reads => match ready {
                Ok(()) => self.take_in(condition),
                Err(_) => self.fail(condition),
            },
            ready = self.to.writable(), if due.is_some_and(|due| due <= now) => match ready {
                Ok(()) => self.hand_on(condition),
                Err(_) => self.fail(condition),
            },
            () = sleep_until(due.unwrap_or(now)), if due.is_some_and(|due| due > now) => Ok(()),
        }
    }

    fn take_in(&mut self, condition: Condition) -> Result<(), Broken> {
        let mut piece = [0; PIECE_BYTES_MAX];
        let most = self.piece_bytes().min(self.line.room());
        let vanishes = condition == Condition::HalfOpen(self.way);
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

    fn hand_on(&mut self, condition: Condition) -> Result<(), Broken> {
        match self.to.try_write(self.line.front()) {
            Ok(bytes) => {
                self.line.advance(bytes);
                self.road.traffic.of(self.way).fetch_add(bytes as u64, Ordering::Relaxed);
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            Err(_) => self.fail(condition),
        }
    }

    /// An end has gone. While the link is half open, nobody hears of that.
    fn fail(&mut self, condition: Condition) -> Result<(), Broken> {
        if !matches!(condition, Condition::HalfOpen(_)) {
            return Err(Broken);
        }
        self.ended = true;
        self.lost = true;
        let lost = self.line.clear();
        self.road.traffic.swallowed.fetch_add(lost as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Takes over a new shape, also for what is on the way.
    fn follow(&mut self, shape: Shape) {
        if shape == self.shape {
            return;
        }
        self.shape = shape;
        let now = Instant::now();
        let Self { line, road, way, chance, .. } = self;
        line.replan(|bytes| road.through(*way, &shape, bytes, now) + shape.draw(chance));
    }

    /// When bytes that come now arrive.
    fn due(&mut self, bytes: usize) -> Instant {
        let through = self.road.through(self.way, &self.shape, bytes, Instant::now());
        through + self.shape.draw(&mut self.chance)
    }

    /// A slow link carries small pieces: a large one would be long silence and then a bang.
    fn piece_bytes(&self) -> usize {
        let burst = |rate: u64| (rate as f64 * BURST.as_secs_f64()) as usize;
        let bytes = self.shape.rate(self.way).map_or(PIECE_BYTES_MAX, |rate| burst(rate.get()));
        bytes.clamp(PIECE_BYTES_MIN, PIECE_BYTES_MAX)
    }
}
