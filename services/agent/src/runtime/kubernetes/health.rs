//! The health of a unit from the statuses of its objects. Pure. A unit without objects is never ready.

use super::kstatus::pod::PodProblem;
use super::kstatus::{Failure, ObjectStatus};
use super::object::ObjectRef;
use crate::runtime::code;

/// Objects that a message names; it counts the others.
const NAMED_MAX: usize = 3;

/// The status of a unit's object, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum OwnedStatus {
    /// It exists.
    Known(ObjectStatus),
    /// It does not exist.
    Missing,
    /// It is not listed yet.
    Unknown,
}

/// The health of a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum UnitHealth {
    /// Every object is as desired.
    Ready,
    /// Some are in progress; with the code of a pod's problem, if there is one.
    Waiting(Failure),
    /// Some do not exist.
    Missing(Failure),
    /// Some have failed.
    Failed(Failure),
}

/// The health of a unit: the worst status of its objects, with the first problem of their pods as the cause.
pub(super) fn verdict<'a>(
    objects: impl Iterator<Item = (&'a ObjectRef, OwnedStatus, Option<&'a PodProblem>)>,
) -> UnitHealth {
    let (mut failed, mut missing, mut waiting, mut count) =
        (ObjectList::default(), ObjectList::default(), ObjectList::default(), 0);
    for (object, status, problem) in objects {
        count += 1;
        match status {
            OwnedStatus::Known(ObjectStatus::Current) => {}
            OwnedStatus::Known(ObjectStatus::Failed(failure)) => {
                failed.add(object, &failure.message, Some(&failure.code), problem);
            }
            OwnedStatus::Known(ObjectStatus::InProgress(words)) => waiting.add(object, &words, None, problem),
            OwnedStatus::Known(ObjectStatus::Terminating) => {
                waiting.add(object, "it is being deleted", None, problem);
            }
            OwnedStatus::Missing => missing.add(object, "it does not exist", None, problem),
            OwnedStatus::Unknown => waiting.add(object, "its status is not known yet", None, problem),
        }
    }
    if count == 0 {
        let message = "it has no objects in the cluster".to_owned();
        return UnitHealth::Missing(Failure { code: code::OBJECT_MISSING.to_owned(), message });
    }
    if failed.count > 0 {
        return UnitHealth::Failed(failed.failure(code::UNHEALTHY));
    }
    if missing.count > 0 {
        return UnitHealth::Missing(missing.failure(code::OBJECT_MISSING));
    }
    if waiting.count > 0 { UnitHealth::Waiting(waiting.failure(code::NOT_READY)) } else { UnitHealth::Ready }
}

/// Objects of the same status, for one message.
#[derive(Debug, Default)]
struct ObjectList {
    texts: Vec<String>,
    count: usize,
    cause: Option<String>,
    code: Option<String>,
}

impl ObjectList {
    fn add(&mut self, object: &ObjectRef, words: &str, code: Option<&str>, problem: Option<&PodProblem>) {
        self.count += 1;
        self.cause = self.cause.take().or_else(|| problem.map(|it| it.code.clone()));
        self.code = self.code.take().or_else(|| code.map(str::to_owned));
        if self.texts.len() < NAMED_MAX {
            let cause = problem.map(|it| format!("; {}", it.message)).unwrap_or_default();
            self.texts.push(format!("{object}: {words}{cause}"));
        }
    }

    fn failure(self, otherwise: &str) -> Failure {
        let more = self.count - self.texts.len();
        let more = if more > 0 { format!("; and {more} more") } else { String::new() };
        let code = self.cause.or(self.code).unwrap_or_else(|| otherwise.to_owned());
        Failure { code, message: format!("{}{more}", self.texts.join("; ")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(name: &str) -> ObjectRef {
        let (api_version, kind) = ("apps/v1".to_owned(), "Deployment".to_owned());
        ObjectRef { api_version, kind, namespace: Some("line".to_owned()), name: name.to_owned() }
    }

    fn health(statuses: &[(&str, OwnedStatus)], problem: Option<&PodProblem>) -> UnitHealth {
        let objects: Vec<_> = statuses.iter().map(|(name, status)| (object(name), status.clone())).collect();
        verdict(objects.iter().map(|(object, status)| (object, status.clone(), problem)))
    }

    fn waits() -> OwnedStatus {
        OwnedStatus::Known(ObjectStatus::InProgress("0 of 1 replicas are available".to_owned()))
    }

    fn failed() -> OwnedStatus {
        let failure =
            Failure { code: code::PROGRESS_DEADLINE_EXCEEDED.to_owned(), message: "too late".to_owned() };
        OwnedStatus::Known(ObjectStatus::Failed(failure))
    }

    #[test]
    fn the_worst_object_decides_and_nothing_is_no_success() {
        let current = || OwnedStatus::Known(ObjectStatus::Current);
        assert!(matches!(health(&[], None), UnitHealth::Missing(_)));
        assert_eq!(health(&[("a", current())], None), UnitHealth::Ready);
        assert!(matches!(health(&[("a", current()), ("b", waits())], None), UnitHealth::Waiting(_)));
        assert!(matches!(
            health(&[("a", current()), ("b", OwnedStatus::Unknown)], None),
            UnitHealth::Waiting(_)
        ));
        assert!(matches!(
            health(&[("a", waits()), ("b", OwnedStatus::Missing)], None),
            UnitHealth::Missing(_)
        ));
        assert!(matches!(
            health(&[("a", OwnedStatus::Missing), ("b", failed())], None),
            UnitHealth::Failed(_)
        ));
    }

    #[test]
    fn a_pods_problem_is_the_cause() {
        let problem =
            PodProblem { code: code::IMAGE_PULL.to_owned(), message: "pod web-1: no such tag".to_owned() };
        for status in [waits(), failed()] {
            let (UnitHealth::Waiting(failure) | UnitHealth::Failed(failure)) =
                health(&[("a", status)], Some(&problem))
            else {
                panic!("it is not well")
            };
            assert_eq!(failure.code, code::IMAGE_PULL);
            assert!(failure.message.contains("Deployment a: ") && failure.message.contains("no such tag"));
        }
        let UnitHealth::Failed(failure) = health(&[("a", failed())], None) else { panic!("it has failed") };
        assert_eq!(failure.code, code::PROGRESS_DEADLINE_EXCEEDED);
    }

    #[test]
    fn many_objects_are_named_by_the_first_and_their_number() {
        let statuses: Vec<_> = ["a", "b", "c", "d", "e"].map(|name| (name, waits())).into();
        let UnitHealth::Waiting(failure) = health(&statuses, None) else { panic!("it waits") };
        assert!(failure.message.ends_with("; and 2 more"), "{}", failure.message);
    }
}
