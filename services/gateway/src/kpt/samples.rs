//! Reads the states of deployments from samples of metrics, and makes ResourceGroups of them. Pure.
//!
//! | series | its value |
//! |---|---|
//! | `muster_deployment_state{deployment, state, revision or generation, reason, device}` | 1 while the deployment is in that state with that content |
//! | `muster_deployments{device}` | how many deployments the cluster has: a request with as many is the whole cluster |
//!
//! A request may have any part of a scrape, in any order, so each series is a statement of its own. The newest statement about a
//! deployment counts, and the most severe one of a time. All other series and labels are ignored.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::SignedDuration;
use muster_contract::{DeploymentId, State, Timestamp};
use muster_proto::prometheus::{Sample, TimeSeries, WriteRequest};

use super::group::{Content, ResourceGroup, ResourceGroups};
use crate::margo::problems;
use crate::problem::Problem;

/// The metric with the state of a deployment.
const STATE: &str = "muster_deployment_state";
/// The metric with the number of deployments.
const DEPLOYMENTS: &str = "muster_deployments";
/// Bytes of a label that are read.
const LABEL_BYTES_MAX: usize = 512;
/// How far the clock of a source may be ahead.
const AHEAD_MAX: SignedDuration = SignedDuration::from_secs(30);

/// The statements of one time about one device.
#[derive(Debug, PartialEq)]
pub(crate) struct DeviceSamples {
    /// Its id at the client, as in Margo's API; none for the client's own device.
    pub device: Option<String>,
    /// A group of each statement.
    pub groups: ResourceGroups,
    /// When the samples were taken.
    pub at: Timestamp,
}

/// The statements of a request.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct RequestSamples {
    /// The statements by device and time.
    pub parts: Vec<DeviceSamples>,
    /// The first series that breaks a rule.
    pub refused: Option<Problem>,
}

/// A series that says in which state a deployment is.
#[derive(Debug)]
struct Statement<'a> {
    deployment: &'a str,
    state: State,
    content: Content,
    reason: &'a str,
    at: Timestamp,
}

/// The statements about a device while they are read.
#[derive(Debug, Default)]
struct DeviceStatements<'a> {
    /// The newest of each deployment.
    newest: BTreeMap<&'a str, Vec<Statement<'a>>>,
    /// The newest number of deployments.
    count: Option<DeploymentCount>,
}

/// A number of deployments, with its time.
#[derive(Debug, Clone, Copy)]
struct DeploymentCount {
    number: f64,
    at: Timestamp,
}

/// The statements of a request that are younger than `period` at `now`. `own` is the id of the client's own device.
pub(crate) fn read(request: &WriteRequest, own: &str, period: Duration, now: Timestamp) -> RequestSamples {
    let since = now.checked_sub(period).unwrap_or(Timestamp::MIN);
    let mut collected: BTreeMap<&str, DeviceStatements<'_>> = BTreeMap::new();
    let mut read = RequestSamples::default();
    for series in &request.timeseries {
        let name = label(series, "__name__");
        if name != STATE && name != DEPLOYMENTS {
            continue;
        }
        let is_wanted = |sample: &&Sample| name == DEPLOYMENTS || (sample.value - 1.0).abs() < f64::EPSILON;
        let samples = series.samples.iter().filter(|sample| !sample.value.is_nan()).filter(is_wanted);
        let times = samples.filter_map(|sample| Some((time_of(sample)?, sample.value)));
        let newest = times.filter(|(at, _)| *at > since).max_by_key(|(at, _)| *at);
        let Some((at, number)) = newest else { continue };
        if at.duration_since(now) > AHEAD_MAX {
            let rule = format!("has a sample of {at}, which is ahead of the gateway's clock: set the clocks");
            read.refuse(problems::semantic_error(name, rule));
            continue;
        }
        let at = at.min(now);
        let device = Some(label(series, "device")).filter(|device| *device != own).unwrap_or_default();
        let of_device = collected.entry(device).or_default();
        if name == DEPLOYMENTS {
            of_device.count =
                of_device.count.filter(|held| held.at > at).or(Some(DeploymentCount { number, at }));
            continue;
        }
        match Statement::of(series, at) {
            Ok(statement) => of_device.add(statement),
            Err(problem) => read.refuse(problem),
        }
    }
    read.parts = collected.into_iter().flat_map(|(device, all)| all.finish(device)).collect();
    read
}

impl RequestSamples {
    fn refuse(&mut self, problem: Problem) {
        self.refused.get_or_insert(problem);
    }
}

/// The time of a sample; none if it is no time.
fn time_of(sample: &Sample) -> Option<Timestamp> {
    Timestamp::from_millisecond(sample.timestamp).ok()
}

/// The value of a label; empty if the series has none.
fn label<'a>(series: &'a TimeSeries, name: &str) -> &'a str {
    series.labels.iter().find(|label| label.name == name).map_or("", |label| &label.value)
}

impl<'a> Statement<'a> {
    fn of(series: &'a TimeSeries, at: Timestamp) -> Result<Self, Problem> {
        let deployment = label(series, "deployment");
        let refuse = |rule: String| {
            Err(problems::semantic_error(format!("{STATE}{{deployment=\"{deployment}\"}}"), rule))
        };
        let too_long = series.labels.iter().find(|label| label.value.len() > LABEL_BYTES_MAX);
        if let Some(too_long) = too_long {
            return Err(problems::semantic_error(
                STATE,
                format!("the label {} has more than {LABEL_BYTES_MAX} bytes", too_long.name),
            ));
        }
        if let Err(error) = deployment.parse::<DeploymentId>() {
            return refuse(format!("names no deployment: {error}"));
        }
        let word = label(series, "state");
        let Some(state) = State::ALL.into_iter().find(|state| state.as_str() == word) else {
            let words = State::ALL.map(State::as_str).join(", ");
            return refuse(format!("has the state '{word}'; must be one of {words}"));
        };
        let content = match (label(series, "generation"), label(series, "revision")) {
            ("", "") => {
                return refuse("names no content: add the label revision or generation".to_owned());
            }
            ("", revision) => Content::Revision(revision.to_owned()),
            (generation, _) => Content::Generation(generation.to_owned()),
        };
        Ok(Self { deployment, state, content, reason: label(series, "reason"), at })
    }

    fn group(self) -> ResourceGroup {
        ResourceGroup::of_state(self.deployment, self.content, self.state, self.reason)
    }
}

impl<'a> DeviceStatements<'a> {
    /// Adds a statement, unless a newer one about the deployment is there.
    fn add(&mut self, statement: Statement<'a>) {
        let held = self.newest.entry(statement.deployment).or_default();
        let newest = held.first().map_or(Timestamp::MIN, |held| held.at);
        if statement.at > newest {
            held.clear();
        }
        if statement.at >= newest {
            held.push(statement);
        }
    }

    /// As groups, by time.
    fn finish(self, device: &str) -> impl Iterator<Item = DeviceSamples> {
        let (mut by_time, counted) = (BTreeMap::<_, Vec<_>>::new(), self.count);
        if let Some(count) = counted {
            by_time.entry(count.at).or_default();
        }
        for statements in self.newest.into_values() {
            let Some(at) = statements.first().map(|statement| statement.at) else { continue };
            by_time.entry(at).or_default().push(statements);
        }
        let device = Some(device.to_owned()).filter(|id| !id.is_empty());
        let all = by_time.into_iter().map(move |(at, deployments)| {
            // With fewer or more deployments, a part of the scrape is in another request.
            let is_count = |count: DeploymentCount| count.at == at && count.is(deployments.len());
            let is_whole = counted.is_some_and(is_count);
            let groups = deployments.into_iter().flatten().map(Statement::group).collect();
            let groups = ResourceGroups { groups, is_list: true, is_whole, next: String::new() };
            DeviceSamples { device: device.clone(), groups, at }
        });
        all.filter(|samples| samples.groups.is_whole || !samples.groups.groups.is_empty())
    }
}

impl DeploymentCount {
    fn is(self, deployments: usize) -> bool {
        (self.number - deployments as f64).abs() < f64::EPSILON
    }
}

#[cfg(test)]
mod tests;
