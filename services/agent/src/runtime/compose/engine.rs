//! Queries and changes the Docker engine through its command line: containers, networks and volumes of this device.
//! It knows labels and states; [`super::unit_state`] interprets them for a unit.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_contract::DeviceKey;
use serde::Deserialize;
use tokio::time::Instant;

use super::command::{CommandError, Run};
use crate::runtime::{Stopped, UnitName};

/// Label with the device, as SITE/DEVICE.
pub(super) const DEVICE_LABEL: &str = "io.muster.device";
/// Label with the unit, as DEPLOYMENT/COMPONENT.
pub(super) const UNIT_LABEL: &str = "io.muster.unit";
/// Label with the first digits of the unit's digest.
pub(super) const DIGEST_LABEL: &str = "io.muster.digest";
/// Label with the number of services of the unit.
pub(super) const SERVICES_LABEL: &str = "io.muster.services";
/// Compose's label with the name of the service.
const SERVICE_LABEL: &str = "com.docker.compose.service";

/// Compose's label with the name of the project.
const PROJECT_LABEL: &str = "com.docker.compose.project";

/// Time limit of a query.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// Time beyond a unit's stop timeout that the engine gets to stop it.
const STOP_SLACK: Duration = Duration::from_secs(30);
/// The exit code of a container whose main process was ended by SIGKILL.
const KILLED_EXIT_CODE: i64 = 137;
/// Attempts to list and inspect containers, because one may be removed in between.
const LISTS_MAX: usize = 5;
/// Lines of a container's log that are reported with its end.
const LOG_LINES: &str = "5";

/// The engine, filtered by one device.
#[derive(Debug, Clone)]
pub(super) struct Engine {
    device: String,
}

/// A container of this device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Container {
    /// The engine's id of it.
    pub(super) id: String,
    /// Its unit.
    pub(super) unit: UnitName,
    /// The version of the unit.
    pub(super) digest_prefix: String,
    /// The number of services of the unit.
    pub(super) services: usize,
    /// Its service.
    pub(super) service: String,
    /// Its state.
    pub(super) state: ContainerState,
    /// How often the engine restarted it.
    pub(super) restarts: u64,
    /// When the engine restarts it: `no`, `always`, `unless-stopped`, `on-failure`.
    pub(super) restart_policy: String,
}

/// The state of a container, in the engine's words.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct ContainerState {
    /// `created`, `running`, `restarting`, `paused`, `exited`, `dead`, `removing`.
    pub(super) status: String,
    /// Its exit code.
    pub(super) exit_code: i64,
    /// Why it could not be started.
    pub(super) error: String,
    /// Whether the kernel killed it because memory ran out.
    #[serde(rename = "OOMKilled")]
    pub(super) oom_killed: bool,
    /// When it was last started; compared only.
    pub(super) started_at: String,
    /// The result of its health check.
    pub(super) health: Option<Health>,
}

impl ContainerState {
    /// Whether its main process was killed by its stop, or will be by its removal.
    fn is_killed(&self) -> bool {
        self.status == "running" || self.exit_code == KILLED_EXIT_CODE && !self.oom_killed
    }
}

/// The result of a health check.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Health {
    /// `starting`, `healthy`, `unhealthy`, or `none`.
    pub(super) status: String,
    /// The last checks.
    pub(super) log: Vec<Check>,
}

/// One run of a health check.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Check {
    /// Its output.
    pub(super) output: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Inspected {
    id: String,
    state: ContainerState,
    #[serde(default)]
    restart_count: u64,
    config: InspectedConfig,
    host_config: HostConfig,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct InspectedConfig {
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct HostConfig {
    #[serde(default)]
    restart_policy: RestartPolicy,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct RestartPolicy {
    name: String,
}

impl Engine {
    /// The engine that `docker` finds, for a device.
    pub(super) fn of(device: &DeviceKey) -> Self {
        Self { device: device.to_string() }
    }

    /// All containers of the device.
    pub(super) async fn containers(&self) -> Result<Vec<Container>, CommandError> {
        self.listed(None).await
    }

    /// The containers of a unit.
    pub(super) async fn containers_of(&self, name: &UnitName) -> Result<Vec<Container>, CommandError> {
        self.listed(Some(name)).await
    }

    /// The unit and the project of each named volume.
    pub(super) async fn volumes(&self) -> Result<Vec<(UnitName, String)>, CommandError> {
        let format = format!("{{{{.Label \"{UNIT_LABEL}\"}}}} {{{{.Label \"{PROJECT_LABEL}\"}}}}");
        let args = ["volume", "ls", "--filter", &self.device_filter(), "--format", &format];
        let said = docker(args).stdout(None, ANSWER_LIMIT).await?;
        let volume = |line: &str| {
            let (unit, project) = line.split_once(' ')?;
            Some((unit_name(unit)?, project.to_owned()))
        };
        Ok(said.lines().filter_map(volume).collect())
    }

    /// Stops a unit's containers, then removes them and its networks.
    pub(super) async fn end(&self, name: &UnitName, timeout: Duration) -> Result<Stopped, CommandError> {
        let ids = self.ids(Some(name)).await?;
        let mut stopped = Stopped::InTime;
        if !ids.is_empty() {
            let seconds = timeout.as_secs().max(u64::from(timeout.subsec_nanos() > 0)).to_string();
            let stop = docker(["stop", "-t", &seconds].into_iter().chain(ids.iter().map(String::as_str)));
            let asked_at = Instant::now();
            // A container that cannot be stopped is killed by its removal, which reports its own failure.
            let asked = stop.stdout(None, timeout + STOP_SLACK).await;
            if let Err(error) = &asked {
                tracing::warn!(error = %error, deployment.id = %name.deployment, "the engine did not stop every container");
            }
            if asked.is_err() || asked_at.elapsed() >= timeout {
                // A slow engine takes as long without a kill.
                let left = self.containers_of(name).await.unwrap_or_default();
                stopped = Stopped::killed_if(left.iter().any(|one| one.state.is_killed()));
            }
            let rm = ["rm", "--force", "--volumes"].into_iter().chain(ids.iter().map(String::as_str));
            let removed = docker(rm).stdout(None, ANSWER_LIMIT + STOP_SLACK).await;
            check_removed(removed, "container", self.ids(Some(name)).await?.len())?;
        }
        self.remove_all("network", name).await?;
        Ok(stopped)
    }

    /// Removes a unit's named volumes.
    pub(super) async fn remove_volumes(&self, name: &UnitName) -> Result<(), CommandError> {
        self.remove_all("volume", name).await
    }

    /// The last lines of a container's log; empty if the engine has none.
    pub(super) async fn last_lines(&self, id: &str) -> String {
        let logs = docker(["logs", "--tail", LOG_LINES, id]).output(None, ANSWER_LIMIT).await;
        let Ok(output) = logs else { return String::new() };
        let text = [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
        let lines = text.iter().flat_map(|text| text.lines()).map(str::trim).filter(|line| !line.is_empty());
        lines.collect::<Vec<_>>().join("; ")
    }

    /// A run that writes a line at every event of this device's containers.
    pub(super) fn events(&self) -> Run {
        let kinds = ["die", "destroy", "health_status"].map(|kind| format!("event={kind}"));
        let filters = ["type=container".to_owned(), self.device_filter()].into_iter().chain(kinds);
        let filters = filters.flat_map(|filter| ["--filter".to_owned(), filter]);
        let format = ["--format".to_owned(), "{{.ID}}".to_owned()];
        Run::of("docker", ["events".to_owned()].into_iter().chain(filters).chain(format))
    }

    async fn remove_all(&self, kind: &'static str, name: &UnitName) -> Result<(), CommandError> {
        let ids = self.all(kind, name).await?;
        if ids.is_empty() {
            return Ok(());
        }
        let rm = docker([kind, "rm"].into_iter().chain(ids.iter().map(String::as_str)));
        let removed = rm.stdout(None, ANSWER_LIMIT).await;
        check_removed(removed, kind, self.all(kind, name).await?.len())
    }

    /// The networks or the volumes of a unit.
    async fn all(&self, kind: &str, name: &UnitName) -> Result<Vec<String>, CommandError> {
        let list =
            docker([kind, "ls", "--quiet", "--filter", &self.device_filter(), "--filter", &of_unit(name)]);
        let said = list.stdout(None, ANSWER_LIMIT).await?;
        Ok(said.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect())
    }

    async fn listed(&self, name: Option<&UnitName>) -> Result<Vec<Container>, CommandError> {
        let mut attempt = 1;
        loop {
            let ids = self.ids(name).await?;
            if ids.is_empty() {
                return Ok(Vec::new());
            }
            let inspect =
                docker(["inspect", "--type", "container"].into_iter().chain(ids.iter().map(String::as_str)));
            match inspect.stdout(None, ANSWER_LIMIT).await {
                Ok(said) => return read(&said),
                Err(error) if is_missing(&error) && attempt < LISTS_MAX => attempt += 1,
                Err(error) => return Err(error),
            }
        }
    }

    async fn ids(&self, name: Option<&UnitName>) -> Result<Vec<String>, CommandError> {
        let unit = name.map(|name| ["--filter".to_owned(), of_unit(name)]);
        let args =
            ["ps", "--all", "--quiet", "--no-trunc", "--filter", &self.device_filter()].map(str::to_owned);
        let said =
            docker(args.into_iter().chain(unit.into_iter().flatten())).stdout(None, ANSWER_LIMIT).await?;
        Ok(said.lines().map(str::to_owned).collect())
    }

    fn device_filter(&self) -> String {
        format!("label={DEVICE_LABEL}={}", self.device)
    }
}

fn docker<S: Into<String>>(args: impl IntoIterator<Item = S>) -> Run {
    Run::of("docker", args)
}

fn of_unit(name: &UnitName) -> String {
    format!("label={UNIT_LABEL}={}", unit_label(name))
}

/// The value of a unit's label.
pub(super) fn unit_label(name: &UnitName) -> String {
    format!("{}/{}", name.deployment, name.component)
}

fn unit_name(label: &str) -> Option<UnitName> {
    let (deployment, component) = label.split_once('/')?;
    Some(UnitName { deployment: deployment.parse().ok()?, component: component.parse().ok()? })
}

/// Checks a removal by what is left: the error about an object that was already removed must not hide another that
/// cannot be removed.
fn check_removed(
    removed: Result<String, CommandError>,
    kind: &'static str,
    count: usize,
) -> Result<(), CommandError> {
    match removed {
        _ if count == 0 => Ok(()),
        Err(error) => Err(error),
        Ok(_) => Err(CommandError::Left { kind, count }),
    }
}

fn is_missing(error: &CommandError) -> bool {
    let words = ["No such", "no such", "not found", "already in progress"];
    matches!(error, CommandError::Failed { said } if words.iter().any(|word| said.contains(word)))
}

fn read(said: &str) -> Result<Vec<Container>, CommandError> {
    let what = || "docker inspect".to_owned();
    let inspected: Vec<Inspected> =
        serde_json::from_str(said).map_err(|source| CommandError::Garbled { what: what(), source })?;
    Ok(inspected.into_iter().filter_map(container).collect())
}

/// A container by its labels; `None` if it has the device's label, but no unit.
fn container(inspected: Inspected) -> Option<Container> {
    let labels = inspected.config.labels.unwrap_or_default();
    let label = |name: &str| labels.get(name).cloned().unwrap_or_default();
    Some(Container {
        id: inspected.id,
        unit: unit_name(&label(UNIT_LABEL))?,
        digest_prefix: label(DIGEST_LABEL),
        services: label(SERVICES_LABEL).parse().unwrap_or_default(),
        service: label(SERVICE_LABEL),
        state: inspected.state,
        restarts: inspected.restart_count,
        restart_policy: inspected.host_config.restart_policy.name,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removal_succeeds_when_nothing_is_left() {
        let said =
            || CommandError::Failed { said: "No such network: a; network b has active endpoints".to_owned() };
        assert!(check_removed(Err(said()), "network", 0).is_ok());
        assert!(check_removed(Ok(String::new()), "network", 0).is_ok());
        let hidden = check_removed(Err(said()), "network", 1).unwrap_err().to_string();
        assert!(hidden.contains("active endpoints"), "{hidden}");
        let silent = check_removed(Ok(String::new()), "network", 2).unwrap_err().to_string();
        assert!(silent.contains("2 network"), "{silent}");
    }

    #[test]
    fn a_container_is_read_as_the_engine_tells_it() {
        let said = r#"[{"Id": "3f2a", "Created": "x", "RestartCount": 2,
            "State": {"Status": "running", "Running": true, "ExitCode": 0, "Error": "", "OOMKilled": false,
                      "StartedAt": "2026-01-01T00:00:00Z", "Health": {"Status": "healthy", "FailingStreak": 0,
                      "Log": [{"Start": "x", "End": "y", "ExitCode": 0, "Output": "ready\n"}]}},
            "HostConfig": {"RestartPolicy": {"Name": "always", "MaximumRetryCount": 0}},
            "Config": {"Labels": {"io.muster.device": "plant/press", "io.muster.unit": "line/web",
                       "io.muster.digest": "00ff", "io.muster.services": "2", "com.docker.compose.service": "http"}}},
           {"Id": "4d", "State": {"Status": "exited", "ExitCode": 3}, "HostConfig": {}, "Config": {"Labels": null}}]"#;
        let [container] = read(said).unwrap().try_into().unwrap();
        assert_eq!(unit_label(&container.unit), "line/web");
        assert_eq!((container.services, &*container.service, container.restarts), (2, "http", 2));
        assert_eq!(container.state.health.unwrap().log[0].output, "ready\n");
        assert!(matches!(read("nonsense"), Err(CommandError::Garbled { .. })));
    }
}
