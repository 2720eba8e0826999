//! The publisher: its sources, and its answers to apply, remove and retire.

use std::fmt::Write as _;

use muster_contract::query::{GitStatus, PublishAnswer, PublisherStatus, RefusedCommit};
use muster_contract::{DeviceKey, Timestamp};

use super::paint::{BAD, styled};
use super::words::{age, clean, plural};

/// The publisher's sources.
pub fn status(status: &PublisherStatus, now: Timestamp) -> String {
    let mut text = match &status.git {
        Some(git) => source(git, now),
        None => "git          no repository is watched\n".to_owned(),
    };
    let _ = writeln!(text, "devices      {} with a desired state", status.devices);
    let _ = writeln!(text, "published    {} since the start", plural(status.published, "desired state"));
    text
}

fn source(git: &GitStatus, now: Timestamp) -> String {
    let polled = git.polled_at.map_or_else(|| "not yet".to_owned(), |at| age(now, at));
    let applied = git.applied.as_deref().unwrap_or("none yet");
    let mut text = format!("git          {}, branch {}\n", clean(&git.url), clean(&git.branch));
    let _ = writeln!(text, "asked        {polled}");
    let _ = writeln!(text, "published    commit {}", clean(applied));
    if let Some(error) = &git.error {
        let _ = writeln!(text, "{}", styled(BAD, &format!("failed       {}", clean(error))));
    }
    if let Some(refused) = &git.refused {
        text += &refusal(refused);
    }
    text
}

/// A refused commit with everything that is wrong with it, each problem as `file:line: field: rule`.
fn refusal(refused: &RefusedCommit) -> String {
    let problems = plural(refused.problems.len() as u64, "problem");
    let head = format!("refused      commit {}, as a whole: {problems}", clean(&refused.revision));
    let mut text = format!("{}\n", styled(BAD, &head));
    for problem in &refused.problems {
        let line = problem.line.map(|line| format!(":{line}")).unwrap_or_default();
        let field =
            if problem.field.is_empty() { String::new() } else { format!(" {}:", clean(&problem.field)) };
        let _ = writeln!(text, "  {}{line}:{field} {}", clean(&problem.file), clean(&problem.rule));
    }
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

/// What a request changed.
pub fn changed(device: &DeviceKey, answer: &PublishAnswer) -> String {
    let generation = answer.generation;
    let what = if answer.changed {
        format!("{device}: generation {generation} is published")
    } else {
        format!("{device}: nothing to change, generation {generation} says so already")
    };
    let names: Vec<_> = answer.deployments.iter().map(ToString::to_string).collect();
    match names.as_slice() {
        [] => format!("{what}; it shall run nothing\n"),
        names => format!("{what}; it shall run {}\n", names.join(", ")),
    }
}
