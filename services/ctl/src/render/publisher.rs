//! The publisher: its sources, and its answers to apply, remove and retire.

use std::fmt::Write as _;

use muster_contract::query::{GitStatus, PublishAnswer, PublisherStatus, RefusedCommit};
use muster_contract::{DeviceKey, Timestamp};

use super::colour::{BAD, styled};
use super::commit::problems_of;
use super::format::{age, clean, names, plural};

/// The publisher's sources.
pub fn status(status: &PublisherStatus, now: Timestamp) -> String {
    let mut text = match &status.git {
        Some(git) => source(git, now),
        None => "git          no repository is watched\n".to_owned(),
    };
    text += &devices(status);
    let _ = writeln!(text, "sent         {} since the start", plural(status.published, "desired state"));
    text
}

/// How many devices there are, and which of them want a person.
fn devices(status: &PublisherStatus) -> String {
    let mut text = format!("devices      {} with a desired state", status.devices);
    if let Some(in_git) = status.in_git {
        let _ = write!(text, ", {in_git} of them with a folder in Git");
    }
    if status.retired > 0 {
        let _ = write!(text, "; {} retired", status.retired);
    }
    text.push('\n');
    if !status.left_over.is_empty() {
        let _ = writeln!(
            text,
            "no folder    {}: no folder in Git and no deployment; `muster retire SITE/DEVICE` removes such a device",
            names(&status.left_over)
        );
    }
    if !status.unreadable.is_empty() {
        let head = format!("unreadable   {}", names(&status.unreadable));
        let _ = writeln!(
            text,
            "{}: the published document cannot be read, and the device keeps its workloads; a folder in Git, `muster \
             apply` or `muster retire` replaces it",
            styled(BAD, &head)
        );
    }
    text
}

fn source(git: &GitStatus, now: Timestamp) -> String {
    let polled = match (git.polled_at, git.failures) {
        (None, 0) => "not yet".to_owned(),
        (None, failures) => format!("never with success; {} failed", plural(failures, "attempt")),
        (Some(at), 0) => age(now, at),
        (Some(at), failures) => {
            format!("{} with success; {} failed since", age(now, at), plural(failures, "attempt"))
        }
    };
    let applied = match (&git.applied, git.applied_through) {
        (None, _) => "none since the start; devices keep what they have".to_owned(),
        (Some(commit), None) => format!("{commit}; LEDGER does not hold all of it, or another is on its way"),
        (Some(commit), Some(through)) => format!("{commit}, in LEDGER as of {through}"),
    };
    let mut text = format!("git          {}, branch {}\n", clean(&git.url), clean(&git.branch));
    let _ = writeln!(text, "asked        {polled}");
    let _ = writeln!(text, "commit       {}", clean(&applied));
    if let Some(since) = git.hanging_since {
        let line = format!(
            "hangs        since {since} ({}): the repository takes requests and gives no answer",
            age(now, since)
        );
        let _ = writeln!(text, "{}", styled(BAD, &line));
    }
    if let Some(error) = &git.error {
        let _ = writeln!(text, "{}", styled(BAD, &format!("failed       {}", clean(error))));
    }
    if let Some(refused) = &git.refused {
        text += &refusal(refused);
    }
    if let Some(held_back) = &git.held_back {
        let head = format!("held back    {}, which keep what they have", names(&held_back.devices));
        text += &format!("{}\n{}", styled(BAD, &head), problems_of(&held_back.problems));
    }
    text.extend(git.held.iter().map(|change| super::rollout::held(change, now)));
    if git.held_omitted > 0 {
        let _ = writeln!(text, "held         {} more", plural(git.held_omitted, "change"));
    }
    text
}

/// A refused commit with everything that is wrong with it, each problem as `file:line: field: rule`.
fn refusal(refused: &RefusedCommit) -> String {
    let problems = plural(refused.problems.len() as u64, "problem");
    let head = format!("refused      commit {}, as a whole: {problems}", clean(&refused.revision));
    let mut text = format!("{}\n", styled(BAD, &head));
    text += &problems_of(&refused.problems);
    text
}

/// A device that was taken out.
pub fn retired(device: &DeviceKey, answer: &PublishAnswer) -> String {
    let generation = answer.generation;
    if answer.changed {
        format!("{device}: retired in generation {generation}; it is in no view any more\n")
    } else {
        format!("{device}: is retired since generation {generation}\n")
    }
}

/// The changes by a request.
pub fn changed(device: &DeviceKey, answer: &PublishAnswer) -> String {
    let generation = answer.generation;
    let what = if answer.changed {
        format!("{device}: generation {generation} is published")
    } else {
        format!("{device}: nothing to change, generation {generation} says so already")
    };
    let names: Vec<_> = answer.deployments.iter().map(ToString::to_string).collect();
    let mut text = match names.as_slice() {
        [] => format!("{what}; it shall run nothing\n"),
        names => format!("{what}; it shall run {}\n", names.join(", ")),
    };
    text += &beside(device, answer);
    text
}

/// Effects of a request that its author may not have intended.
fn beside(device: &DeviceKey, answer: &PublishAnswer) -> String {
    let mut text = String::new();
    if answer.new_device {
        let _ = writeln!(
            text,
            "{device} is new: no folder in Git and nothing published before; check the name, or undo with `muster \
             retire {device}`"
        );
    }
    if answer.returned {
        let _ = writeln!(text, "{device} was retired and is part of the fleet again");
    }
    for id in &answer.overrides {
        let _ = writeln!(text, "this overrides Git's {id} until `muster remove --device {device} {id}`");
    }
    text
}
