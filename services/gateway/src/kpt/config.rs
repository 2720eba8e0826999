//! The file of `--pull`: the clusters whose ResourceGroups the gateway pulls, each with its address and its times.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_contract::DeviceKey;
use muster_contract::profile::parse_duration;
use serde::Deserialize;

use super::period::{PERIOD_MAX, PERIOD_MIN};
use crate::outbound::is_trusted;

/// Clusters of one file.
const CLUSTERS_MAX: usize = 256;
/// Bounds of the time between two polls.
const INTERVAL_MIN: Duration = Duration::from_millis(100);
const INTERVAL_MAX: Duration = Duration::from_secs(20 * 60);
/// Bounds of the time for one answer.
const TIMEOUT_MIN: Duration = Duration::from_millis(100);
const TIMEOUT_MAX: Duration = Duration::from_secs(60);
/// Intervals after which groups are too old, unless the file names another period: two polls may fail.
const PERIOD_INTERVALS: u32 = 3;

const _: () = assert!(INTERVAL_MAX.as_millis() * PERIOD_INTERVALS as u128 <= PERIOD_MAX.as_millis());

/// Why clusters cannot be pulled from.
#[derive(Debug, thiserror::Error)]
pub enum PullSetupError {
    /// The file, or one that it names, cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: std::io::Error,
    },
    /// The file is no YAML of the expected shape.
    #[error("{} is no list of clusters: {reason}", path.display())]
    Shape {
        /// The file.
        path: PathBuf,
        /// The parser's reason.
        reason: String,
    },
    /// A value breaks a rule.
    #[error("clusters[{at}].{field} {rule}")]
    Rule {
        /// The place of the cluster.
        at: usize,
        /// The key.
        field: &'static str,
        /// The rule.
        rule: String,
    },
    /// There are too many clusters, or none.
    #[error("clusters has {0} entries; 1 to {CLUSTERS_MAX} are allowed")]
    Count(usize),
}

/// A cluster whose groups are pulled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PulledCluster {
    /// The device that it is in the fleet.
    pub device: DeviceKey,
    /// The address of a ResourceGroup or of a list of them.
    pub url: String,
    /// File with the bearer token, read with each poll, because tokens are renewed.
    pub token_file: Option<PathBuf>,
    /// File with authorities (PEM) that are trusted beside the system's.
    pub ca_file: Option<PathBuf>,
    /// Time between two polls.
    pub interval: Duration,
    /// Time for one answer.
    pub timeout: Duration,
    /// Time for which the groups of a poll are fresh.
    pub period: Duration,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    clusters: Vec<ClusterEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ClusterEntry {
    device: String,
    url: String,
    token_file: Option<PathBuf>,
    ca_file: Option<PathBuf>,
    #[serde(default = "interval_default")]
    interval: String,
    #[serde(default = "timeout_default")]
    timeout: String,
    period: Option<String>,
}

fn interval_default() -> String {
    "30s".to_owned()
}

fn timeout_default() -> String {
    "10s".to_owned()
}

/// Reads and checks the file.
///
/// # Errors
/// The first value that cannot be used, with its place.
pub(crate) fn read(path: &Path) -> Result<Vec<PulledCluster>, PullSetupError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| PullSetupError::Read { path: path.to_owned(), source })?;
    let shape = |error: serde_norway::Error| PullSetupError::Shape {
        path: path.to_owned(),
        reason: error.to_string(),
    };
    let File { clusters } = serde_norway::from_str(&text).map_err(shape)?;
    if clusters.is_empty() || clusters.len() > CLUSTERS_MAX {
        return Err(PullSetupError::Count(clusters.len()));
    }
    let checked = clusters.into_iter().enumerate().map(|(at, entry)| entry.check(at));
    let checked = checked.collect::<Result<Vec<_>, _>>()?;
    let mut devices = BTreeSet::new();
    for (at, cluster) in checked.iter().enumerate() {
        if !devices.insert(&cluster.device) {
            let rule = format!("is {} again; a device has one address", cluster.device);
            return Err(PullSetupError::Rule { at, field: "device", rule });
        }
    }
    Ok(checked)
}

impl ClusterEntry {
    fn check(self, at: usize) -> Result<PulledCluster, PullSetupError> {
        let refuse = |field, rule: String| PullSetupError::Rule { at, field, rule };
        let time = |field, text: &str, least: Duration, most: Duration| {
            let read = parse_duration(text).ok().filter(|time| (least..=most).contains(time));
            read.ok_or_else(|| refuse(field, format!("is '{text}'; must be a time of {least:?} to {most:?}")))
        };
        let device = self.device.parse::<DeviceKey>();
        let device = device.map_err(|error| refuse("device", format!("is '{}': {error}", self.device)))?;
        if !is_trusted(&self.url) {
            return Err(refuse("url", "must be https://, or http:// of this machine".to_owned()));
        }
        let interval = time("interval", &self.interval, INTERVAL_MIN, INTERVAL_MAX)?;
        let timeout = time("timeout", &self.timeout, TIMEOUT_MIN, TIMEOUT_MAX)?;
        let period = match &self.period {
            Some(text) => time("period", text, PERIOD_MIN.max(interval), PERIOD_MAX)?,
            None => (interval * PERIOD_INTERVALS).max(PERIOD_MIN),
        };
        let Self { url, token_file, ca_file, .. } = self;
        Ok(PulledCluster { device, url, token_file, ca_file, interval, timeout, period })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Result<Vec<PulledCluster>, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        read(file.path()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_cluster_needs_a_device_and_an_address_and_has_defaults() {
        let text = "clusters: [{device: plant7/press-4, url: 'https://10.0.0.1/apis/kpt.dev/v1alpha1/resourcegroups'}]";
        let one = read_text(text).unwrap().remove(0);
        let times = [one.interval, one.timeout, one.period].map(|time| time.as_secs());
        assert_eq!((times, one.device.to_string().as_str()), ([30, 10, 90], "plant7/press-4"));
    }

    #[test]
    fn a_wrong_value_is_refused_with_its_place() {
        let refused = |entry: &str| read_text(&format!("clusters: [{entry}]")).unwrap_err();
        let good = "device: a/b, url: 'https://c'";
        for (entry, field) in [
            ("device: a, url: 'https://c'".to_owned(), "clusters[0].device"),
            ("device: a/b, url: 'http://c'".to_owned(), "clusters[0].url"),
            (format!("{good}, interval: 2h"), "clusters[0].interval"),
            (format!("{good}, timeout: 0s"), "clusters[0].timeout"),
            (format!("{good}, period: 5s"), "clusters[0].period"),
            (format!("{good}, intervall: 5s"), "intervall"),
        ] {
            let refused = refused(&format!("{{{entry}}}"));
            assert!(refused.contains(field), "{refused}");
        }
        assert!(refused(&format!("{{{good}}}, {{{good}}}")).contains("clusters[1].device"));
        assert!(read_text("clusters: []").unwrap_err().contains("0 entries"));
    }
}
