//! What a service that makes the streams has to know about this place: how much disk they may take, and on how many
//! servers. Streams that are there keep what they have.

use super::{Problems, ValueError};

/// Least room of UPLINK: several devices with a full share of the largest reports, so that one of them never fills it.
pub const UPLINK_BYTES_MIN: u64 = 512 * 1024 * 1024;
/// Least room of LEDGER: far more than what is taken in between two looks at how full it is.
const LEAST_OF_LEDGER: u64 = 64 * 1024 * 1024;
const UNITS: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// The settings of services that make missing streams, as typed by a person.
#[derive(Debug, Clone, clap::Args)]
pub struct StreamArgs {
    /// Room for reports that ingest has yet to take, reserved when UPLINK is made; an existing one keeps its own
    #[arg(
        long,
        help_heading = super::HEADING,
        env = "MUSTER_UPLINK_MAX_BYTES",
        value_name = "SIZE",
        default_value = "4GiB"
    )]
    pub uplink_max_bytes: String,

    /// Room for facts, reserved when LEDGER is made; an existing one keeps its own. When it is full, the newest fact of each
    /// standing stays and the oldest others go
    #[arg(
        long,
        help_heading = super::HEADING,
        env = "MUSTER_LEDGER_MAX_BYTES",
        value_name = "SIZE",
        default_value = "8GiB"
    )]
    pub ledger_max_bytes: String,

    /// Servers of a NATS cluster that keep a copy of each stream that is made: 1, 3 or 5; of 3, any one may be lost
    #[arg(
        long,
        help_heading = super::HEADING,
        env = "MUSTER_REPLICAS",
        value_name = "N",
        default_value = "1"
    )]
    pub replicas: String,
}

/// How streams are made here, checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Streams {
    /// Bytes of UPLINK.
    pub uplink_bytes_max: u64,
    /// Bytes of LEDGER.
    pub ledger_bytes_max: u64,
    /// Copies of each stream, each on a server of its own.
    pub replicas: usize,
}

impl StreamArgs {
    /// The checked settings, or `None` if any was refused, which `problems` then holds.
    pub fn check(&self, problems: &mut Problems) -> Option<Streams> {
        let size = problems.size("--uplink-max-bytes", &self.uplink_max_bytes, UPLINK_BYTES_MIN);
        let replicas = problems.parse::<Replicas>("--replicas", &self.replicas);
        let ledger = problems.size("--ledger-max-bytes", &self.ledger_max_bytes, LEAST_OF_LEDGER);
        Some(Streams { uplink_bytes_max: size?, ledger_bytes_max: ledger?, replicas: replicas?.0 })
    }
}

struct Replicas(usize);

impl std::str::FromStr for Replicas {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // A copy more that makes the number even costs a server and survives no further loss.
        text.parse().ok().filter(|number| [1, 3, 5].contains(number)).map(Self).ok_or(ValueError::Replicas)
    }
}

/// Bytes as `4GiB`, `512MiB` or a number.
pub(super) fn bytes_of(text: &str, least: u64) -> Result<u64, ValueError> {
    let unit = UNITS.iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, *bytes)));
    let (number, bytes) = unit.unwrap_or((text, 1));
    let size = number.trim().parse::<u64>().ok().and_then(|number| number.checked_mul(bytes));
    let fits = |size: &u64| *size >= least && i64::try_from(*size).is_ok();
    size.filter(fits).ok_or(ValueError::Size { least })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_a_number_with_or_without_a_unit() {
        let table =
            [("4GiB", 4 << 30), ("512MiB", 512 << 20), ("536870912", 512 << 20), ("600 MiB", 600 << 20)];
        for (text, bytes) in table {
            let read = args(text, "3").check(&mut Problems::default());
            assert_eq!(
                read,
                Some(Streams { uplink_bytes_max: bytes, ledger_bytes_max: 8 << 30, replicas: 3 }),
                "{text}"
            );
        }
        for bad in ["", "much", "511MiB", "-4GiB", "99999999999GiB", "4GB"] {
            let mut problems = Problems::default();
            assert_eq!(args(bad, "1").check(&mut problems), None, "{bad}");
        }
    }

    #[test]
    fn copies_are_an_odd_number_that_servers_can_keep() {
        for bad in ["", "0", "2", "4", "7", "-1", "three"] {
            assert_eq!(args("1GiB", bad).check(&mut Problems::default()), None, "{bad}");
        }
    }

    fn args(uplink_max_bytes: &str, replicas: &str) -> StreamArgs {
        let ledger_max_bytes = "8GiB".to_owned();
        StreamArgs {
            uplink_max_bytes: uplink_max_bytes.to_owned(),
            ledger_max_bytes,
            replicas: replicas.to_owned(),
        }
    }
}
