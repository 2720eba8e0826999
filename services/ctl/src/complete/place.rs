//! Determines which kind of name a command line expects as its last word. No IO.

use clap::{Arg, Command, CommandFactory as _};

use crate::config::Cli;

/// Flags of the command line that say how to reach the hub.
const CONNECTION_FLAGS: [&str; 4] = ["--nats-url", "--creds", "--tls-ca", "--context"];

/// A kind of name that the hub knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Expected {
    /// A deployment.
    Deployment,
    /// A site.
    Site,
    /// A device, as `SITE/DEVICE`.
    Device,
    /// A plan.
    Plan,
    /// An instance of a plan.
    Instance,
    /// An operation on an instance.
    Operation,
    /// A node of the planner's inventory.
    Node,
    /// A cluster of nodes.
    Cluster,
    /// A capability of nodes.
    Capability,
}

/// The kind of name that the last word is; none if it is no name of the fleet.
pub(super) fn expected(words: &[String]) -> Option<Expected> {
    let (last, before) = words.split_last()?;
    let mut root = Cli::command();
    root.build();
    let (mut command, mut positionals, mut open) = (&root, 0, None);
    // A shell may take `--site=` apart.
    for word in before.iter().filter(|word| *word != "=") {
        if open.take().is_some() {
            continue;
        }
        if let Some(flag) = word.strip_prefix("--") {
            open = valued(command, flag);
        } else if let Some(next) = command.find_subcommand(word) {
            (command, positionals) = (next, 0);
        } else if !word.starts_with('-') {
            positionals += 1;
        }
    }
    match open {
        Some(flag) => named(flag),
        None if last.starts_with('-') => None,
        None => command.get_positionals().nth(positionals).and_then(named),
    }
}

/// The flag of this name, if its value is the next word.
fn valued<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    let mut flags = command.get_arguments().filter(|flag| flag.get_action().takes_values());
    flags.find(|flag| flag.get_long() == Some(name))
}

fn named(arg: &Arg) -> Option<Expected> {
    match arg.get_id().as_str() {
        "deployment" | "not_running" => Some(Expected::Deployment),
        "site" => Some(Expected::Site),
        "device" => Some(Expected::Device),
        "plan" => Some(Expected::Plan),
        "instance" | "meta_instance_name" => Some(Expected::Instance),
        "operations" | "operation_id" => Some(Expected::Operation),
        "node" => Some(Expected::Node),
        "cluster" => Some(Expected::Cluster),
        "capability" => Some(Expected::Capability),
        _ => None,
    }
}

/// The flags of a line, with their values, that say how to reach the hub.
pub(super) fn connection_flags(words: &[String]) -> Vec<&str> {
    let mut flags = Vec::new();
    for (at, word) in words.iter().enumerate() {
        let value = words.get(at + 1).filter(|_| at + 2 < words.len());
        match (CONNECTION_FLAGS.contains(&word.as_str()), value) {
            (true, Some(value)) => flags.extend([word.as_str(), value.as_str()]),
            (false, _) if CONNECTION_FLAGS.iter().any(|flag| word.starts_with(&format!("{flag}="))) => {
                flags.push(word.as_str());
            }
            _ => {}
        }
    }
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn the_position_of_a_word_decides_which_kind_of_name_it_is() {
        for (line, kind) in [
            ("status we", Some(Expected::Deployment)),
            ("status ", Some(Expected::Deployment)),
            ("--context hub watch ", Some(Expected::Deployment)),
            ("status web --site ", Some(Expected::Site)),
            ("status --site = pl", Some(Expected::Site)),
            ("status web ", None),
            ("device plant7/", Some(Expected::Device)),
            ("why web --device ", Some(Expected::Device)),
            ("why rollout ", Some(Expected::Deployment)),
            ("rollout verify ", Some(Expected::Deployment)),
            ("rollout watch w", Some(Expected::Deployment)),
            ("watch approvals ", None),
            ("timeline ", Some(Expected::Deployment)),
            ("timeline web --since ", None),
            ("remove --device plant7/press-4 w", Some(Expected::Deployment)),
            ("devices --not-running ", Some(Expected::Deployment)),
            ("devices --freshness ", None),
            ("site ", Some(Expected::Site)),
            ("quarantine list --device ", Some(Expected::Device)),
            ("plan show we", Some(Expected::Plan)),
            ("plan approve web --operation-id ", Some(Expected::Operation)),
            ("plan deploy -m ", None),
            ("instance stop ", Some(Expected::Instance)),
            ("operation approve ", Some(Expected::Operation)),
            ("operation list --plan ", Some(Expected::Plan)),
            ("node state plant7/press-4 --cluster ", Some(Expected::Cluster)),
            ("disruption approve ", Some(Expected::Node)),
            ("capability delete ", Some(Expected::Capability)),
            ("status --ver", None),
            ("sta", None),
            ("", None),
        ] {
            assert_eq!(expected(&words(line)), kind, "{line}");
        }
    }

    #[test]
    fn the_hub_that_the_line_names_is_asked() {
        let line = words("--context hub status --creds=me.creds --site plant7 --nats-url");
        assert_eq!(connection_flags(&line), ["--context", "hub", "--creds=me.creds"]);
    }
}
