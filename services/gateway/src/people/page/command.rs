//! Commands of `muster` on a page of the past: each names the moment of the page with `--at`, if it takes one.

use muster_contract::Timestamp;

/// The command for a page; of the past if there is a moment. A command that names a point itself keeps its own.
pub(super) fn with_moment(command: &str, moment: Option<Timestamp>) -> String {
    match moment.filter(|_| takes_moment(command)) {
        Some(moment) => format!("{command} --at {moment}"),
        None => command.to_owned(),
    }
}

/// Whether the command has a flag `--at`, and names no point of the past yet.
fn takes_moment(command: &str) -> bool {
    let words: Vec<&str> = command.split(' ').collect();
    let has_flag = match words[..] {
        ["muster", "why", "rollout", ..] => false,
        ["muster", "rollout", "show", ..] => true,
        ["muster", verb, ..] => {
            matches!(verb, "status" | "devices" | "device" | "site" | "fleet" | "why")
        }
        _ => false,
    };
    has_flag && !words.iter().any(|word| matches!(*word, "--at" | "--at-seq" | "--instance"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_of_the_past_names_the_moment_if_it_takes_one() {
        let moment = "2026-11-20T08:00:00.5Z".parse().ok();
        for command in [
            "muster fleet",
            "muster status",
            "muster status web --output brief --standing failed",
            "muster site SITE",
            "muster device plant7/press-1",
            "muster devices --freshness stale --freshness never",
            "muster why web --device plant7/press-1",
            "muster rollout show web",
        ] {
            assert_eq!(with_moment(command, moment), format!("{command} --at 2026-11-20T08:00:00.5Z"));
            assert_eq!(with_moment(command, None), command);
        }
    }

    #[test]
    fn a_command_without_the_flag_or_with_a_point_stays() {
        for command in [
            "muster rollout list",
            "muster rollout history web",
            "muster quarantine list",
            "muster changes --since 1h",
            "muster why rollout web",
            "muster status web --instance 4711",
            "muster devices --site plant7 --at 2026-11-20T07:00:00Z",
            "muster fleet --at-seq 4711",
            "muster login https://status --nonce n",
            "status",
        ] {
            assert_eq!(with_moment(command, "2026-11-20T08:00:00Z".parse().ok()), command);
        }
    }
}
