//! The settings of services that create the streams: the sizes of the streams and their number of replicas. Existing
//! streams keep theirs.

use super::{Problems, ValueError};

/// Least size of UPLINK: it holds the full quota of several devices with the largest reports, so that no device fills it.
pub const UPLINK_BYTES_MIN: u64 = 512 * 1024 * 1024;
/// Least size of LEDGER: far more than ingest writes between two checks of its size.
const LEDGER_BYTES_MIN: u64 = 64 * 1024 * 1024;

/// The settings of services that create missing streams, as text.
#[derive(Debug, Clone, clap::Args)]
pub struct StreamArgs {
    /// Size of UPLINK, which holds reports until ingest reads them, reserved when it is created; an existing one keeps its
    /// size
    #[arg(
        long,
        help_heading = super::HEADING,
        env = "MUSTER_UPLINK_MAX_BYTES",
        value_name = "SIZE",
        default_value = "4GiB"
    )]
    pub uplink_max_bytes: String,

    /// Size of LEDGER, which holds the facts, reserved when it is created; an existing one keeps its size. When it is full,
    /// the newest fact of each subject stays and the oldest others are deleted
    #[arg(
        long,
        help_heading = super::HEADING,
        env = "MUSTER_LEDGER_MAX_BYTES",
        value_name = "SIZE",
        default_value = "8GiB"
    )]
    pub ledger_max_bytes: String,

    /// Number of servers of a NATS cluster that keep a copy of each new stream: 1, 3 or 5; with 3, one may be lost
    #[arg(
        long,
        help_heading = super::HEADING,
        env = "MUSTER_REPLICAS",
        value_name = "N",
        default_value = "1"
    )]
    pub replicas: String,
}

/// The checked settings of new streams.
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
    /// The checked settings; `None` if one was refused, with the reason in `problems`.
    pub fn check(&self, problems: &mut Problems) -> Option<Streams> {
        let size = problems.size("--uplink-max-bytes", &self.uplink_max_bytes, UPLINK_BYTES_MIN);
        let replicas = problems.parse::<Replicas>("--replicas", &self.replicas);
        let ledger = problems.size("--ledger-max-bytes", &self.ledger_max_bytes, LEDGER_BYTES_MIN);
        Some(Streams { uplink_bytes_max: size?, ledger_bytes_max: ledger?, replicas: replicas?.0 })
    }
}

struct Replicas(usize);

impl std::str::FromStr for Replicas {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // One more copy that makes the number even costs a server and survives no further loss.
        text.parse().ok().filter(|number| [1, 3, 5].contains(number)).map(Self).ok_or(ValueError::Replicas)
    }
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
