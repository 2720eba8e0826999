//! The arguments of every call of `helm`: the same for Helm 3 (from 3.13 on) and Helm 4. Pure.

use std::path::Path;
use std::time::Duration;

/// Labels of a release that Helm sets itself, and refuses from others.
const RESERVED_LABELS: [&str; 6] = ["createdAt", "modifiedAt", "name", "owner", "status", "version"];

/// Revisions that Helm keeps of a release.
const HISTORY_MAX: &str = "10";

/// A release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Release {
    pub(crate) name: String,
    pub(crate) namespace: String,
}

/// A call of `helm`.
#[derive(Debug, Clone)]
pub(crate) enum HelmCall<'a> {
    /// Installs or upgrades a release.
    Upgrade {
        release: &'a Release,
        /// The folder of the chart.
        chart: &'a Path,
        /// The file of the values: every user of the device can read arguments.
        values: &'a Path,
        /// Labels by which the agent finds the release.
        labels: &'a [(String, String)],
        timeout: Duration,
    },
    /// Restores a revision of the release.
    Rollback { release: &'a Release, revision: u64, timeout: Duration },
    /// Removes the release and its history.
    Uninstall { release: &'a Release, timeout: Duration },
    /// Prints the manifest of the newest revision.
    Manifest { release: &'a Release, timeout: Duration },
}

impl HelmCall<'_> {
    /// Its name in errors.
    pub(super) const fn verb(&self) -> &'static str {
        match self {
            Self::Upgrade { .. } => "upgrade",
            Self::Rollback { .. } => "rollback",
            Self::Uninstall { .. } => "uninstall",
            Self::Manifest { .. } => "get manifest",
        }
    }

    /// Its time limit.
    pub(super) const fn timeout(&self) -> Duration {
        match self {
            Self::Upgrade { timeout, .. }
            | Self::Rollback { timeout, .. }
            | Self::Uninstall { timeout, .. }
            | Self::Manifest { timeout, .. } => *timeout,
        }
    }

    /// Its arguments.
    pub(super) fn arguments(&self) -> Vec<String> {
        let seconds = |timeout: &Duration| format!("{}s", timeout.as_secs().max(1));
        let text = |parts: &[&str]| parts.iter().map(|part| (*part).to_owned()).collect::<Vec<_>>();
        match self {
            Self::Upgrade { release, chart, values, labels, timeout } => {
                let allowed = labels.iter().filter(|(name, _)| !RESERVED_LABELS.contains(&name.as_str()));
                let labels: Vec<_> = allowed.map(|(name, value)| format!("{name}={value}")).collect();
                let (chart, values) = (chart.display().to_string(), values.display().to_string());
                text(&[
                    "upgrade",
                    &release.name,
                    &chart,
                    "--install",
                    "--namespace",
                    &release.namespace,
                    "--values",
                    &values,
                    "--labels",
                    &labels.join(","),
                    "--history-max",
                    HISTORY_MAX,
                    "--timeout",
                    &seconds(timeout),
                    "--output",
                    "json",
                ])
            }
            Self::Rollback { release, revision, timeout } => text(&[
                "rollback",
                &release.name,
                &revision.to_string(),
                "--namespace",
                &release.namespace,
                "--history-max",
                HISTORY_MAX,
                "--timeout",
                &seconds(timeout),
            ]),
            Self::Uninstall { release, timeout } => text(&[
                "uninstall",
                &release.name,
                "--namespace",
                &release.namespace,
                "--timeout",
                &seconds(timeout),
            ]),
            Self::Manifest { release, .. } => {
                text(&["get", "manifest", &release.name, "--namespace", &release.namespace])
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_call_has_the_arguments_that_helm_3_and_4_share() {
        let release = &Release { name: "web-1a2b3c4d".to_owned(), namespace: "line".to_owned() };
        let (chart, values) = (Path::new("/d/chart"), Path::new("/d/values.json"));
        let labels = [("version", "2"), ("io.muster.device", "00ff"), ("io.muster.digest", "1234")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()));
        let labels = &labels;
        let timeout = Duration::from_secs(300);
        for (call, expected) in [
            (
                HelmCall::Upgrade { release, chart, values, labels, timeout },
                "upgrade web-1a2b3c4d /d/chart --install --namespace line --values /d/values.json --labels \
                 io.muster.device=00ff,io.muster.digest=1234 --history-max 10 --timeout 300s --output json",
            ),
            (
                HelmCall::Rollback { release, revision: 3, timeout },
                "rollback web-1a2b3c4d 3 --namespace line --history-max 10 --timeout 300s",
            ),
            (
                HelmCall::Uninstall { release, timeout },
                "uninstall web-1a2b3c4d --namespace line --timeout 300s",
            ),
            (HelmCall::Manifest { release, timeout }, "get manifest web-1a2b3c4d --namespace line"),
        ] {
            assert_eq!(call.arguments().join(" "), expected);
            assert!(expected.starts_with(call.verb()));
        }
    }

    #[test]
    fn helm_waits_for_at_least_a_second() {
        let release = &Release { name: "a".to_owned(), namespace: "b".to_owned() };
        let call = HelmCall::Uninstall { release, timeout: Duration::ZERO };
        assert_eq!(call.arguments().last().unwrap(), "1s");
    }
}
