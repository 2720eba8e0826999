//! The setting of a link: its condition and its shape, which are independent and can change at any time.

use std::num::NonZeroU64;
use std::time::Duration;

/// A direction of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    Up,
    /// From the server to the client.
    Down,
}

/// Whether a link carries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Condition {
    /// Carries everything.
    #[default]
    Open,
    /// Carries nothing; every connection was reset (RST), and so is a new one.
    Cut,
    /// Carries nothing; every connection was closed in good order (FIN), and so is a new one.
    Closed,
    /// Carries nothing and keeps what it was given; connections look alive, as with a pulled cable.
    Stalled,
    /// The link drops the bytes of this direction, also the end of a connection; the other direction works. Nothing closes.
    /// Afterwards a connection that has lost bytes is reset, as by a peer that does not know it.
    HalfOpen(Direction),
}

/// How fast and how late a link carries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Shape {
    /// Time from one end to the other.
    pub latency: Duration,
    /// How much more or less than `latency` it may be; what was sent first arrives first all the same.
    pub jitter: Duration,
    /// Bytes a second from clients to the server, all connections together; unbounded if none.
    pub up: Option<NonZeroU64>,
    /// Bytes a second from the server to clients, likewise.
    pub down: Option<NonZeroU64>,
}

/// The whole of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Setting {
    /// Whether it carries.
    pub condition: Condition,
    /// How.
    pub shape: Shape,
}

impl Shape {
    /// As fast as this machine.
    pub const PLAIN: Self = Self { latency: Duration::ZERO, jitter: Duration::ZERO, up: None, down: None };

    /// The same with a latency.
    #[must_use]
    pub const fn late(self, latency: Duration, jitter: Duration) -> Self {
        Self { latency, jitter, ..self }
    }

    /// The same with rates; 0 is unbounded.
    #[must_use]
    pub const fn slow(self, up: u64, down: u64) -> Self {
        Self { up: NonZeroU64::new(up), down: NonZeroU64::new(down), ..self }
    }

    /// The rate of a direction.
    pub const fn rate(&self, direction: Direction) -> Option<NonZeroU64> {
        match direction {
            Direction::Up => self.up,
            Direction::Down => self.down,
        }
    }

    /// One latency of this shape.
    pub(super) fn draw(&self, rng: &mut fastrand::Rng) -> Duration {
        if self.jitter.is_zero() {
            return self.latency;
        }
        let nanos = u64::try_from(self.jitter.as_nanos()).unwrap_or(u64::MAX / 2);
        let offset = Duration::from_nanos(rng.u64(0..=nanos.saturating_mul(2)));
        (self.latency + offset).saturating_sub(self.jitter)
    }
}

impl Setting {
    /// A condition in plain shape.
    pub const fn of(condition: Condition) -> Self {
        Self { condition, shape: Shape::PLAIN }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_is_within_its_jitter_and_never_below_zero() {
        let mut rng = fastrand::Rng::with_seed(1);
        let ms = Duration::from_millis;
        for shape in [Shape::PLAIN.late(ms(100), ms(30)), Shape::PLAIN.late(ms(10), ms(40)), Shape::PLAIN] {
            for _ in 0..1000 {
                let drawn = shape.draw(&mut rng);
                assert!(drawn <= shape.latency + shape.jitter, "{shape:?} drew {drawn:?}");
                assert!(drawn >= shape.latency.saturating_sub(shape.jitter), "{shape:?} drew {drawn:?}");
            }
        }
    }
}
