//! Derives the state of a unit from the states of its containers. Pure.
//!
//! A container is in order when it runs and its health check, if it has one, passes; or when it has ended with 0
//! before the unit was ready, or with a policy that leaves it so (`on-failure`): a job. Any other end is the end of
//! the unit.

use std::collections::BTreeSet;

use super::engine::Container;
use crate::runtime::code;

/// Restarts by the engine after which a container that is down again counts as ended.
pub(super) const RESTARTS_MAX: u64 = 3;
/// Characters of a health check's output that are reported.
const CHECK_CHARS_MAX: usize = 200;

/// The progress of a unit's start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum UnitProgress {
    /// Everything is in order; the ids of its completed jobs.
    Ready(BTreeSet<String>),
    /// Not ready yet, and the reason.
    Waiting(String),
    /// It failed.
    Ended(UnitEnd),
}

/// The end of a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UnitEnd {
    /// A code of [`code`].
    pub(super) code: &'static str,
    /// The message.
    pub(super) message: String,
    /// The container whose log says more, if there is one.
    pub(super) container: Option<String>,
}

/// The version of a unit that runs: `None` if its containers are of different versions, if one was never started, or
/// if one is down and not among `done`, the jobs that were complete when the unit was ready.
pub(super) fn version(containers: &[Container], done: &BTreeSet<String>) -> Option<String> {
    let first = containers.first()?;
    let runs = |it: &Container| {
        let is_left = it.state.status == "created";
        let stays_down = done.contains(&it.id) || it.restart_policy == "on-failure";
        !is_left && end(it).is_none() && (!is_down(it) || stays_down)
    };
    let whole = containers.iter().all(|it| it.digest_prefix == first.digest_prefix && runs(it));
    whole.then(|| first.digest_prefix.clone())
}

/// The progress of a unit whose containers were created. All containers of a job end. `is_settled` says whether a container
/// without a health check has been up for long enough.
pub(super) fn start_progress(
    containers: &[Container],
    is_job: bool,
    is_settled: impl Fn(&Container) -> bool,
) -> UnitProgress {
    if let Some(end) = containers.iter().find_map(end) {
        return UnitProgress::Ended(end);
    }
    if let Some(missing) = missing(containers) {
        return UnitProgress::Waiting(missing);
    }
    let runs_on = |it: &Container| {
        (is_job && !is_down(it)).then(|| format!("service '{}' has not ended yet", it.service))
    };
    match containers.iter().find_map(|it| awaited(it, &is_settled).or_else(|| runs_on(it))) {
        Some(awaited) => UnitProgress::Waiting(awaited),
        None => {
            UnitProgress::Ready(containers.iter().filter(|it| is_down(it)).map(|it| it.id.clone()).collect())
        }
    }
}

/// The end of a unit that was ready; `None` while it is in order. `done` are the jobs that were complete before.
pub(super) fn end_after_ready(
    containers: &[Container],
    services: usize,
    done: &BTreeSet<String>,
) -> Option<UnitEnd> {
    let not_done = |it: &&Container| !done.contains(&it.id);
    if let Some(end) = containers.iter().filter(not_done).find_map(|it| end(it).or_else(|| late_end(it))) {
        return Some(end);
    }
    let there: BTreeSet<_> = containers.iter().map(|it| &it.service).collect();
    (there.len() < services).then(|| UnitEnd {
        code: code::EXITED,
        message: format!("of {services} services {} have a container: the others were removed", there.len()),
        container: None,
    })
}

/// The end of a unit that one container shows, whether the unit was ready or not.
fn end(it: &Container) -> Option<UnitEnd> {
    let (service, state) = (&it.service, &it.state);
    let unit_end = |code, message| Some(UnitEnd { code, message, container: Some(it.id.clone()) });
    match state.status.as_str() {
        "exited" | "dead" if state.oom_killed => {
            unit_end(code::KILLED, format!("service '{service}' was killed because memory ran out"))
        }
        "exited" | "dead" if state.exit_code != 0 || !may_end(it) => {
            unit_end(code::EXITED, format!("service '{service}' ended with exit code {}", state.exit_code))
        }
        "created" if !state.error.is_empty() => {
            unit_end(code::START_FAILED, format!("service '{service}' cannot be started: {}", state.error))
        }
        "restarting" if it.restarts >= RESTARTS_MAX => unit_end(
            code::EXITED,
            format!(
                "service '{service}' ended with exit code {}, also after {} restarts by the engine",
                state.exit_code, it.restarts
            ),
        ),
        "running" => unhealthy(it).and_then(|message| unit_end(code::UNHEALTHY, message)),
        _ => None,
    }
}

/// The end of a container that would have been in order before the unit was ready: without a policy that leaves it
/// so, the container was meant to keep running.
fn late_end(it: &Container) -> Option<UnitEnd> {
    let unexpected = is_down(it) && it.restart_policy != "on-failure";
    unexpected.then(|| UnitEnd {
        code: code::EXITED,
        message: format!(
            "service '{}' ended with exit code 0 (a service that may end needs 'restart: on-failure')",
            it.service
        ),
        container: Some(it.id.clone()),
    })
}

fn unhealthy(it: &Container) -> Option<String> {
    let health = it.state.health.as_ref().filter(|health| health.status == "unhealthy")?;
    let said = health.log.last().map(|check| check.output.trim()).unwrap_or_default();
    let said: String = said.chars().take(CHECK_CHARS_MAX).collect();
    let words = if said.is_empty() { String::new() } else { format!(": {said}") };
    Some(format!("service '{}' is unhealthy{words}", it.service))
}

/// The reason why a container is not ready yet.
fn awaited(it: &Container, is_settled: impl Fn(&Container) -> bool) -> Option<String> {
    let service = &it.service;
    let health = it.state.health.as_ref().map(|health| health.status.as_str());
    match (it.state.status.as_str(), health) {
        ("exited", _) | ("running", Some("healthy")) => None,
        ("running", Some("starting")) => {
            Some(format!("the health check of service '{service}' has not passed yet"))
        }
        ("running", _) if is_settled(it) => None,
        ("running", _) => Some(format!("service '{service}' has just started")),
        (status, _) => Some(format!("service '{service}' is {status}")),
    }
}

fn missing(containers: &[Container]) -> Option<String> {
    let services = services(containers);
    let there: BTreeSet<_> = containers.iter().map(|it| &it.service).collect();
    let all = !containers.is_empty() && there.len() >= services;
    (!all).then(|| format!("{} of {services} services have a container", there.len()))
}

/// The number of services of a unit, according to its containers.
pub(super) fn services(containers: &[Container]) -> usize {
    containers.iter().map(|it| it.services).max().unwrap_or_default()
}

fn is_down(it: &Container) -> bool {
    it.state.status == "exited"
}

/// Whether an end with 0 may be intended.
fn may_end(it: &Container) -> bool {
    matches!(it.restart_policy.as_str(), "" | "no" | "on-failure")
}

#[cfg(test)]
mod tests {
    use super::super::engine::{Check, ContainerState, Health};
    use super::*;
    use crate::runtime::UnitName;

    fn container(service: &str, status: &str) -> Container {
        Container {
            id: format!("id-{service}"),
            unit: UnitName { deployment: "line".parse().unwrap(), component: "web".parse().unwrap() },
            digest_prefix: "00".to_owned(),
            services: 2,
            service: service.to_owned(),
            state: ContainerState { status: status.to_owned(), ..ContainerState::default() },
            restarts: 0,
            restart_policy: "no".to_owned(),
        }
    }

    fn with_health(service: &str, status: &str) -> Container {
        let mut made = container(service, "running");
        let log = vec![Check { output: "old".to_owned() }, Check { output: "no answer\n".to_owned() }];
        made.state.health = Some(Health { status: status.to_owned(), log });
        made
    }

    fn progress(containers: &[Container]) -> UnitProgress {
        start_progress(containers, false, |_| true)
    }

    fn code_of(containers: &[Container]) -> Option<&'static str> {
        match progress(containers) {
            UnitProgress::Ended(end) => Some(end.code),
            _ => None,
        }
    }

    #[test]
    fn ready_is_all_services_up_healthy_or_done() {
        let done = container("job", "exited");
        let all = [with_health("web", "healthy"), done.clone()];
        assert_eq!(progress(&all), UnitProgress::Ready([done.id].into()));
        let settled = [container("web", "running"), container("db", "running")];
        assert_eq!(progress(&settled), UnitProgress::Ready(BTreeSet::new()));
        assert!(
            matches!(start_progress(&settled, false, |it| it.service == "db"), UnitProgress::Waiting(why) if why.contains("'web'"))
        );
        assert!(matches!(progress(&settled[..1]), UnitProgress::Waiting(why) if why.contains("1 of 2")));
        let starting = [with_health("web", "starting"), container("db", "running")];
        assert!(matches!(progress(&starting), UnitProgress::Waiting(why) if why.contains("health check")));
        assert!(matches!(progress(&[]), UnitProgress::Waiting(_)));
    }

    #[test]
    fn an_end_before_readiness_has_its_cause() {
        let db = container("db", "running");
        let mut failed = container("web", "exited");
        failed.state.exit_code = 3;
        assert_eq!(code_of(&[failed.clone(), db.clone()]), Some(code::EXITED));
        failed.state.oom_killed = true;
        assert_eq!(code_of(&[failed, db.clone()]), Some(code::KILLED));
        let mut taken = container("web", "created");
        assert_eq!(code_of(&[taken.clone(), db.clone()]), None);
        taken.state.error = "port is already allocated".to_owned();
        assert_eq!(code_of(&[taken, db.clone()]), Some(code::START_FAILED));
        let UnitProgress::Ended(end) = progress(&[with_health("web", "unhealthy"), db.clone()]) else {
            panic!()
        };
        assert_eq!(
            (end.code, end.message.as_str()),
            (code::UNHEALTHY, "service 'web' is unhealthy: no answer")
        );
        let mut again = container("web", "restarting");
        assert_eq!(code_of(&[again.clone(), db.clone()]), None);
        again.restarts = RESTARTS_MAX;
        assert_eq!(code_of(&[again, db.clone()]), Some(code::EXITED));
        let mut stopped = container("web", "exited");
        stopped.restart_policy = "always".to_owned();
        assert_eq!(code_of(&[stopped, db]), Some(code::EXITED), "a container with `always` was stopped");
    }

    #[test]
    fn after_readiness_only_jobs_may_end() {
        let (web, job) = (container("web", "running"), container("job", "exited"));
        let done = BTreeSet::from([job.id.clone()]);
        assert_eq!(end_after_ready(&[web.clone(), job.clone()], 2, &done), None);
        let late = end_after_ready(&[web.clone(), job.clone()], 2, &BTreeSet::new()).unwrap();
        assert!(late.message.contains("'job' ended with exit code 0"), "{}", late.message);
        let mut policy = job;
        policy.restart_policy = "on-failure".to_owned();
        assert_eq!(end_after_ready(&[web.clone(), policy], 2, &BTreeSet::new()), None);
        assert!(end_after_ready(&[web], 2, &done).unwrap().message.contains("of 2 services 1"));
        assert!(end_after_ready(&[], 2, &done).is_some());
    }

    #[test]
    fn a_job_is_ready_once_all_its_containers_have_ended_with_0() {
        let of_job = |containers: &[Container]| start_progress(containers, true, |_| true);
        let (ended, mut other) = (container("drain", "exited"), container("backup", "running"));
        let waits = of_job(&[ended.clone(), other.clone()]);
        assert!(
            matches!(&waits, UnitProgress::Waiting(why) if why.contains("'backup' has not ended")),
            "{waits:?}"
        );
        other = container("backup", "exited");
        let ready = UnitProgress::Ready([ended.id.clone(), other.id.clone()].into());
        assert_eq!(of_job(&[ended.clone(), other.clone()]), ready);
        other.state.exit_code = 3;
        assert!(matches!(of_job(&[ended, other]), UnitProgress::Ended(_)));
    }

    #[test]
    fn a_version_runs_as_a_whole_or_not_at_all() {
        let (web, mut db) = (container("web", "running"), container("db", "running"));
        let none = BTreeSet::new();
        assert_eq!(version(&[web.clone(), db.clone()], &none).as_deref(), Some("00"));
        db.digest_prefix = "01".to_owned();
        assert_eq!(version(&[web.clone(), db.clone()], &none), None);
        db = container("db", "exited");
        assert_eq!(version(&[web.clone(), db.clone()], &none), None, "it may not have been a job");
        assert!(version(&[web.clone(), db.clone()], &BTreeSet::from([db.id.clone()])).is_some());
        db.state.exit_code = 137;
        assert_eq!(version(&[web.clone(), db.clone()], &BTreeSet::from([db.id])), None);
        assert_eq!(version(&[web, container("db", "created")], &none), None);
        assert_eq!(version(&[], &none), None);
    }
}
