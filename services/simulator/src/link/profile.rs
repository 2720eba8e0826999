//! Profiles of links in the field, by name: the shape without faults, and the kinds, rates and durations of faults.

use std::ops::Range;
use std::str::FromStr;
use std::time::Duration;

use super::condition::{Condition, Direction, Setting, Shape};

const KIB: u64 = 1024;
const SECOND: u64 = 1000;
const MINUTE: u64 = 60 * SECOND;

/// Something that goes wrong with a link for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// Connections are reset.
    Cut,
    /// Connections are closed in good order.
    Close,
    /// Nothing comes through and nothing closes.
    Stall,
    /// The link drops the bytes of the client.
    DeafServer,
    /// The link drops the bytes of the server.
    DeafClient,
    /// A trickle: two kibibytes a second each way.
    Throttle,
    /// Late, and by how much changes all the time.
    Delay,
}

/// A kind of link.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    /// Its name.
    pub name: &'static str,
    /// A short description.
    pub about: &'static str,
    /// Its shape while nothing is wrong.
    pub shape: Shape,
    /// Shortest and longest time between two faults, in milliseconds.
    pub well_ms: Range<u64>,
    /// Shortest and longest time of a fault, in milliseconds.
    pub broken_ms: Range<u64>,
    /// The faults, each with its weight.
    pub faults: &'static [(Fault, u32)],
}

/// There is no profile of that name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("must be one of {}", names())]
pub struct UnknownProfile;

impl Fault {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Cut,
        Self::Close,
        Self::Stall,
        Self::DeafServer,
        Self::DeafClient,
        Self::Throttle,
        Self::Delay,
    ];

    /// Its name in summaries and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cut => "cut",
            Self::Close => "close",
            Self::Stall => "stall",
            Self::DeafServer => "deafServer",
            Self::DeafClient => "deafClient",
            Self::Throttle => "throttle",
            Self::Delay => "delay",
        }
    }

    /// The setting of a link of this shape during the fault.
    pub const fn setting(self, shape: Shape) -> Setting {
        match self {
            Self::Cut => Setting { condition: Condition::Cut, shape },
            Self::Close => Setting { condition: Condition::Closed, shape },
            Self::Stall => Setting { condition: Condition::Stalled, shape },
            Self::DeafServer => Setting { condition: Condition::HalfOpen(Direction::Up), shape },
            Self::DeafClient => Setting { condition: Condition::HalfOpen(Direction::Down), shape },
            Self::Throttle => Setting { condition: Condition::Open, shape: shape.slow(2 * KIB, 2 * KIB) },
            Self::Delay => {
                let (latency, jitter) = (Duration::from_millis(1500), Duration::from_millis(1400));
                Setting { condition: Condition::Open, shape: shape.late(latency, jitter) }
            }
        }
    }
}

impl Profile {
    /// Nothing goes wrong.
    pub const STEADY: Self = Self {
        name: "steady",
        about: "nothing goes wrong",
        shape: Shape::PLAIN,
        well_ms: MINUTE..2 * MINUTE,
        broken_ms: 0..1,
        faults: &[],
    };
    /// The profile of the demo's links.
    pub(crate) const FLAPPING: Self = Self {
        name: "flapping",
        about: "fast, and cut or stalled for up to 5 s every few seconds",
        shape: Shape::PLAIN,
        well_ms: 3 * SECOND..12 * SECOND,
        broken_ms: 800..5 * SECOND,
        faults: &[(Fault::Cut, 3), (Fault::Stall, 1)],
    };
    /// Everything goes wrong, often.
    pub(crate) const FLAKY: Self = Self {
        name: "flaky",
        about: "fast, and every kind of fault for up to 12 s every few seconds",
        shape: Shape::PLAIN,
        well_ms: 2 * SECOND..20 * SECOND,
        broken_ms: 500..12 * SECOND,
        faults: &[
            (Fault::Cut, 4),
            (Fault::Close, 2),
            (Fault::Stall, 3),
            (Fault::DeafServer, 2),
            (Fault::DeafClient, 2),
            (Fault::Throttle, 2),
            (Fault::Delay, 3),
        ],
    };
    /// A narrow line.
    pub(crate) const THIN: Self = Self {
        name: "thin",
        about: "16 KiB/s up, 64 KiB/s down, 80 ms; cut for seconds every few minutes",
        shape: Shape::PLAIN
            .slow(16 * KIB, 64 * KIB)
            .late(Duration::from_millis(80), Duration::from_millis(40)),
        well_ms: MINUTE..5 * MINUTE,
        broken_ms: SECOND..20 * SECOND,
        faults: &[(Fault::Cut, 2), (Fault::Stall, 1), (Fault::Throttle, 2)],
    };
    /// By way of a geostationary satellite.
    pub(crate) const SATELLITE: Self = Self {
        name: "satellite",
        about: "32 KiB/s up, 256 KiB/s down, 600 ms; dark for up to minutes",
        shape: Shape::PLAIN
            .slow(32 * KIB, 256 * KIB)
            .late(Duration::from_millis(600), Duration::from_millis(50)),
        well_ms: 2 * MINUTE..10 * MINUTE,
        broken_ms: 5 * SECOND..3 * MINUTE,
        faults: &[(Fault::Stall, 3), (Fault::DeafServer, 1), (Fault::DeafClient, 1)],
    };
    /// A vehicle.
    pub(crate) const MOBILE: Self = Self {
        name: "mobile",
        about: "256 KiB/s up, 1 MiB/s down, 60 ms, all of it changing; away for up to minutes",
        shape: Shape::PLAIN
            .slow(256 * KIB, 1024 * KIB)
            .late(Duration::from_millis(60), Duration::from_millis(50)),
        well_ms: 10 * SECOND..2 * MINUTE,
        broken_ms: 2 * SECOND..2 * MINUTE,
        faults: &[(Fault::Delay, 3), (Fault::Throttle, 3), (Fault::Stall, 3), (Fault::Cut, 2)],
    };
    /// Those that can be asked for by name.
    pub const ALL: [Self; 6] =
        [Self::STEADY, Self::FLAPPING, Self::FLAKY, Self::THIN, Self::SATELLITE, Self::MOBILE];
}

impl FromStr for Profile {
    type Err = UnknownProfile;

    fn from_str(text: &str) -> Result<Self, UnknownProfile> {
        Self::ALL.into_iter().find(|profile| profile.name == text).ok_or(UnknownProfile)
    }
}

fn names() -> String {
    Profile::ALL.map(|profile| profile.name).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_is_known_by_its_name() {
        for profile in Profile::ALL {
            assert_eq!(profile.name.parse(), Ok(profile.clone()));
            assert!(!profile.well_ms.is_empty() && !profile.broken_ms.is_empty(), "{}", profile.name);
        }
        let said = "perfect".parse::<Profile>().unwrap_err().to_string();
        assert!(said.contains("satellite"), "{said}");
    }

    #[test]
    fn every_fault_makes_a_difference() {
        let open = Setting { condition: Condition::Open, shape: Profile::MOBILE.shape };
        for fault in Fault::ALL {
            assert_ne!(fault.setting(open.shape), open, "{}", fault.name());
        }
    }
}
