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
}
