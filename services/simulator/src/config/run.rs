//! The settings that runs share: their directory, programs, seed and length, and the names of sites and devices.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use muster_contract::DeviceKey;
use muster_service::config::Problems;

/// Marks the directory of a run, which the next run may empty; locked during the run.
pub(crate) const MARKER: &str = ".muster-demo";
/// The NATS server to start if no other is named.
const NATS_SERVER_DEFAULT: &str = ".tools/nats-server";

/// Most devices of a run: each is a process of its own.
pub const DEVICES_MAX: u64 = 1000;
/// Longest run with an end.
pub(crate) const SECONDS_MAX: u64 = 24 * 60 * 60;

/// Where a run takes place.
#[derive(Debug, Clone)]
pub struct RunLocation {
    /// Directory of the run.
    pub dir: PathBuf,
    /// Where Muster's programs are.
    pub programs: PathBuf,
    /// The NATS server's program.
    pub nats_server: PathBuf,
}

/// Where a run takes place, as typed.
#[derive(Debug, Args)]
pub(crate) struct RunLocationArgs {
    /// Where Muster's programs are; beside this one if left out
    #[arg(long, env = "MUSTER_BIN_DIR", value_name = "DIR")]
    bin_dir: Option<PathBuf>,
    /// The NATS server to start
    #[arg(long, env = "MUSTER_NATS_SERVER", value_name = "FILE", default_value = NATS_SERVER_DEFAULT)]
    nats_server: PathBuf,
}

impl RunLocationArgs {
    /// Refuses what was named and is not there. What is only where it is by default is looked for when it is needed.
    pub(super) fn check(self, problems: &mut Problems, dir: PathBuf, programs: PathBuf) -> RunLocation {
        if let Some(dir) = self.bin_dir.as_ref().filter(|dir| !dir.is_dir()) {
            problems.refuse("--bin-dir", dir.display(), "must be a directory with Muster's programs");
        }
        if self.nats_server != Path::new(NATS_SERVER_DEFAULT) {
            problems.file("--nats-server", &self.nats_server.display().to_string());
        }
        let occupied = std::fs::read_dir(&dir).is_ok_and(|mut entries| entries.next().is_some());
        if occupied && !dir.join(MARKER).is_file() {
            let rule =
                "is not empty and was not made by a run of this program: it would be emptied; name another";
            problems.refuse("--dir", dir.display(), rule);
        }
        RunLocation { dir, programs: self.bin_dir.unwrap_or(programs), nats_server: self.nats_server }
    }
}

/// A seed as typed; `otherwise` if none is.
pub(super) fn seed(
    problems: &mut Problems,
    flag: &'static str,
    text: Option<&str>,
    otherwise: u64,
) -> Option<u64> {
    let given =
        problems.optional(flag, text, |problems, flag, text| problems.number(flag, text, 0..=u64::MAX));
    given.map(|given| given.unwrap_or(otherwise))
}

/// A length in seconds, as typed.
pub(super) fn seconds(problems: &mut Problems, text: &str, min: u64) -> Option<Duration> {
    problems.number("--seconds", text, min..=SECONDS_MAX).map(Duration::from_secs)
}

/// `site-1`, `site-2` and so on.
pub(crate) fn site_names(sites: usize) -> Vec<String> {
    (1..=sites).map(|site| format!("site-{site}")).collect()
}

/// The `number`th device of the `site`th site, both counted from 1.
pub fn device_key(site: usize, number: usize) -> Option<DeviceKey> {
    let (site, device) = (format!("site-{site}").parse().ok()?, format!("device-{number}").parse().ok()?);
    Some(DeviceKey { site, device })
}
