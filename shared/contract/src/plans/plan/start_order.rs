//! The order in which the applications of an instance start: as the plan lists them, each after those that it names in `after`.
//! An instance is removed in the reverse order.

use crate::decode::Violation;
use crate::ids::ComponentName;

use super::{Dependency, PlanApplication};

/// The applications in the order in which they start.
///
/// # Errors
/// A name in `after` that is no other application, or a cycle, by its names.
pub(super) fn start_order(applications: &[PlanApplication]) -> Result<Vec<&PlanApplication>, Violation> {
    check_names(applications)?;
    let (mut ordered, mut waiting): (Vec<&PlanApplication>, Vec<_>) =
        (Vec::new(), applications.iter().collect());
    while !waiting.is_empty() {
        let is_there = |of: &Dependency| ordered.iter().any(|before| before.payload_name == of.app);
        let first = waiting.iter().position(|application| application.after.iter().all(is_there));
        let Some(first) = first else {
            let rule = format!("{} is a cycle", cycle(&waiting));
            return Err(Violation::at("applications", rule));
        };
        ordered.push(waiting.remove(first));
    }
    Ok(ordered)
}

fn check_names(applications: &[PlanApplication]) -> Result<(), Violation> {
    for (at, application) in applications.iter().enumerate() {
        for (nth, Dependency { app: name, .. }) in application.after.iter().enumerate() {
            let is_other = *name != application.payload_name
                && applications.iter().any(|other| other.payload_name == *name);
            if !is_other {
                let path = format!("applications[{at}].after[{nth}]");
                return Err(Violation::at(path, format!("'{name}' is no other application of the plan")));
            }
        }
    }
    Ok(())
}

/// A cycle among applications of which each waits for another one: `a after b after a`.
fn cycle(waiting: &[&PlanApplication]) -> String {
    let waits_for = |name: &ComponentName| {
        let of = waiting.iter().find(|application| application.payload_name == *name);
        let mut names = of.into_iter().flat_map(|of| &of.after).map(|after| &after.app);
        names.find(|name| waiting.iter().any(|one| one.payload_name == **name))
    };
    let mut path: Vec<&ComponentName> = Vec::new();
    let mut next = waiting.first().map(|first| &first.payload_name);
    while let Some(name) = next {
        let begins = path.iter().position(|before| *before == name);
        path.push(name);
        if let Some(begins) = begins {
            path.drain(..begins);
            break;
        }
        next = waits_for(name);
    }
    path.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(" after ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Applications of names, each with the names that it starts after.
    fn ordered(applications: &[(&str, &[&str])]) -> Result<String, String> {
        let parsed: Vec<PlanApplication> = applications
            .iter()
            .map(|(name, after)| {
                let resources = json!({ "cores": 1, "memory": 1 });
                serde_json::from_value(json!({ "payloadName": name, "resources": resources, "after": after }))
                    .unwrap()
            })
            .collect();
        let ordered = start_order(&parsed).map_err(|broken| broken.to_string())?;
        Ok(ordered.iter().map(|application| application.payload_name.as_str()).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn applications_start_as_listed_each_after_those_that_it_names() {
        for (applications, order) in [
            (&[("a", &[][..]), ("b", &[]), ("c", &[])][..], "a b c"),
            (&[("a", &["c"]), ("b", &[]), ("c", &[])], "b c a"),
            (&[("web", &["api", "db"]), ("api", &["db"]), ("db", &[])], "db api web"),
        ] {
            assert_eq!(ordered(applications).as_deref(), Ok(order));
        }
    }

    #[test]
    fn a_cycle_or_a_name_of_no_other_application_is_refused() {
        for (applications, rule) in [
            (&[("a", &["b"][..])][..], "applications[0].after[0]: 'b' is no other application of the plan"),
            (&[("a", &["a"])], "applications[0].after[0]: 'a' is no other application of the plan"),
            (&[("x", &["a"]), ("a", &["b"]), ("b", &["a"])], "applications: a after b after a is a cycle"),
        ] {
            assert_eq!(ordered(applications), Err(rule.to_owned()));
        }
    }
}
