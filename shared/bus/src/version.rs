//! The versions of nats-server that Muster accepts.

/// The rule for versions and what to do, for a person.
pub const SERVER_RULE: &str =
    "2.12.12 or newer is needed, of 2.14 at least 2.14.3 (tested with 2.15.1); install a newer nats-server";

/// True for a version that Muster accepts: older ones have known faults that lose messages or admit strangers.
pub fn is_acceptable(version: &str) -> bool {
    match parse(version) {
        Some((2, 12, patch)) => patch >= 12,
        Some((2, 14, patch)) => patch >= 3,
        Some(version) => version > (2, 12, 12),
        None => false,
    }
}

/// True for a version whose streams can take fast batches; an older one refuses the setting by its name.
pub(crate) fn knows_batches(version: &str) -> bool {
    parse(version).is_some_and(|version| version >= (2, 14, 0))
}

/// Major, minor and patch. A suffix after the digits of the patch (`-RC.1`, `-dev`) is ignored.
fn parse(version: &str) -> Option<(u32, u32, u32)> {
    let mut parts = version.trim_start_matches('v').splitn(3, '.');
    let (major, minor, rest) = (parts.next()?, parts.next()?, parts.next()?);
    let patch = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    Some((major.parse().ok()?, minor.parse().ok()?, patch.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_came_with_2_14() {
        for (version, knows) in [("2.12.15", false), ("2.14.3", true), ("2.15.1", true), ("x", false)] {
            assert_eq!(knows_batches(version), knows, "{version}");
        }
    }

    #[test]
    fn old_servers_and_those_with_known_faults_are_refused() {
        for good in ["2.12.12", "v2.12.15", "2.14.3", "2.15.0-dev", "2.15.1", "2.16.0", "3.0.0"] {
            assert!(is_acceptable(good), "{good} was refused");
        }
        for bad in ["2.9.10", "2.11.15", "2.12.11", "2.14.0", "2.14.2", "1.99.99", "", "x.y.z", "2.15"] {
            assert!(!is_acceptable(bad), "{bad} was accepted");
        }
    }
}
