//! What a service that makes the streams has to know about this place: how much disk they may take.

use super::{Problems, ValueError};

/// Least room that is of use: a few thousand reports of the largest size.
const LEAST: u64 = 16 * 1024 * 1024;
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
}

impl StreamArgs {
    /// Bytes of UPLINK, or `None` if that was refused, which `problems` then holds.
    pub fn check(&self, problems: &mut Problems) -> Option<u64> {
        problems.size("--uplink-max-bytes", &self.uplink_max_bytes, LEAST)
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
        let table = [("4GiB", 4 << 30), ("512MiB", 512 << 20), ("16777216", 16 << 20), ("20 MiB", 20 << 20)];
        for (text, bytes) in table {
            let read = StreamArgs { uplink_max_bytes: text.to_owned() }.check(&mut Problems::default());
            assert_eq!(read, Some(bytes), "{text}");
        }
        for bad in ["", "much", "1MiB", "-4GiB", "99999999999GiB", "4GB"] {
            let mut problems = Problems::default();
            assert_eq!(StreamArgs { uplink_max_bytes: bad.to_owned() }.check(&mut problems), None, "{bad}");
        }
    }
}
