//! The subjects of the stream PLANS.

use std::fmt;

use crate::ids::{CapabilityName, ClusterName, DeviceKey, InstanceName, PlanName};

/// A subject of PLANS.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PlansSubject {
    /// `muster.plan.<plan>`
    Plan(PlanName),
    /// `muster.instance.<plan>.<instance>`
    Instance(PlanName, InstanceName),
    /// `muster.inventory.node.<site>.<device>`
    Node(DeviceKey),
    /// `muster.inventory.cluster.<name>`
    Cluster(ClusterName),
    /// `muster.inventory.capability.<name>`
    Capability(CapabilityName),
}

impl PlansSubject {
    /// Parses a subject; `None` if PLANS has none of that shape.
    pub fn parse(subject: &str) -> Option<Self> {
        let tokens: Vec<&str> = subject.split('.').collect();
        match tokens[..] {
            ["muster", "plan", plan] => Some(Self::Plan(plan.parse().ok()?)),
            ["muster", "instance", plan, name] => {
                Some(Self::Instance(plan.parse().ok()?, name.parse().ok()?))
            }
            ["muster", "inventory", "node", site, device] => {
                Some(Self::Node(DeviceKey { site: site.parse().ok()?, device: device.parse().ok()? }))
            }
            ["muster", "inventory", "cluster", name] => Some(Self::Cluster(name.parse().ok()?)),
            ["muster", "inventory", "capability", name] => Some(Self::Capability(name.parse().ok()?)),
            _ => None,
        }
    }
}

/// Checks filters of PLANS' subjects.
///
/// # Errors
/// A filter that no subject of PLANS can match, or two filters that can match the same one, with the rule that is broken.
pub fn check_filters(filters: &[String]) -> Result<(), String> {
    for (nth, filter) in filters.iter().enumerate() {
        if !is_filter(filter) {
            return Err(format!(
                "'{filter}' is no subject of PLANS: use muster.plan.NAME, muster.instance.PLAN.NAME or \
                 muster.inventory.KIND.NAME, with * for any name"
            ));
        }
        if let Some(other) = filters[..nth].iter().find(|other| overlap(filter, other)) {
            return Err(format!("'{other}' and '{filter}' overlap: leave one out"));
        }
    }
    Ok(())
}

fn is_filter(filter: &str) -> bool {
    let tokens: Vec<&str> = filter.split('.').collect();
    let is_name = |token: &str| token.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let is_token = |(nth, token): (usize, &&str)| match *token {
        "" => false,
        "*" => true,
        ">" => nth + 1 == tokens.len(),
        token => is_name(token),
    };
    matches!(tokens[..], ["muster", "plan" | "instance" | "inventory", _, ..])
        && tokens.iter().enumerate().all(is_token)
}

/// Whether a subject can match both filters.
fn overlap(a: &str, b: &str) -> bool {
    let (mut a, mut b) = (a.split('.'), b.split('.'));
    loop {
        match (a.next(), b.next()) {
            (Some(">"), Some(_)) | (Some(_), Some(">")) | (None, None) => return true,
            (Some(one), Some(other)) if one == other || one == "*" || other == "*" => {}
            _ => return false,
        }
    }
}

impl fmt::Display for PlansSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plan(name) => write!(f, "muster.plan.{name}"),
            Self::Instance(plan, name) => write!(f, "muster.instance.{plan}.{name}"),
            Self::Node(key) => write!(f, "muster.inventory.node.{}.{}", key.site, key.device),
            Self::Cluster(name) => write!(f, "muster.inventory.cluster.{name}"),
            Self::Capability(name) => write!(f, "muster.inventory.capability.{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_of_plans_are_read_as_they_are_written() {
        for text in [
            "muster.plan.web",
            "muster.instance.web.web-6f0b",
            "muster.inventory.node.plant7.press-4",
            "muster.inventory.cluster.kind",
            "muster.inventory.capability.a100",
        ] {
            assert_eq!(PlansSubject::parse(text).unwrap().to_string(), text);
        }
        for other in ["muster.plan", "muster.plan.a.b", "muster.instance.web", "muster.inventory.node.a"] {
            assert_eq!(PlansSubject::parse(other), None, "{other}");
        }
    }

    #[test]
    fn filters_match_subjects_of_plans_and_not_the_same_ones() {
        let checked =
            |filters: &[&str]| check_filters(&filters.iter().map(|&text| text.into()).collect::<Vec<_>>());
        for good in [
            &["muster.plan.web", "muster.instance.web.*", "muster.inventory.node.plant7.>"][..],
            &["muster.plan.*", "muster.instance.*.*"],
            &["muster.inventory.cluster.*", "muster.inventory.node.*.*"],
            &[],
        ] {
            assert_eq!(checked(good), Ok(()), "{good:?}");
        }
        for bad in [
            "muster.>",
            "muster.plan",
            "muster.plan.",
            "muster.plan.>.a",
            "muster.desired.a.b",
            "muster.plan.a b",
        ] {
            assert!(checked(&[bad]).is_err_and(|rule| rule.contains("no subject")), "{bad}");
        }
        for two in [
            ["muster.plan.web", "muster.plan.*"],
            ["muster.instance.*.a", "muster.instance.web.*"],
            ["muster.inventory.>", "muster.inventory.node.a.b"],
            ["muster.plan.web", "muster.plan.web"],
        ] {
            assert!(checked(&two).is_err_and(|rule| rule.contains("overlap")), "{two:?}");
        }
    }
}
