//! The commands of `muster` compared with the page of REST, which has an address for each or names it as without one.

use clap::{Command, CommandFactory as _};
use muster_ctl::config::Cli;

/// The headings under which the page names commands.
const HEADINGS: [&str; 2] = ["Reads\n", "Changes\n"];

/// Every command that can be run, by its words after `muster`.
pub(crate) fn commands() -> Vec<String> {
    let mut found = Vec::new();
    collect(&Cli::command(), "", &mut found);
    found
}

fn collect(group: &Command, prefix: &str, found: &mut Vec<String>) {
    for command in group.get_subcommands().filter(|command| !command.is_hide_set()) {
        let name = format!("{prefix}{}", command.get_name());
        // `muster why web` is a command beside `muster why rollout web`.
        if !command.has_subcommands() || command.is_args_conflicts_with_subcommands_set() {
            found.push(name.clone());
        }
        collect(command, &format!("{name} "), found);
    }
}

/// The commands that a page does not name. A group without a verb names all its commands.
pub(crate) fn left_out(page: &str, commands: &[String]) -> Vec<String> {
    let parts = page.split("\n## ").filter(|part| HEADINGS.iter().any(|heading| part.starts_with(heading)));
    let named: Vec<String> = parts.flat_map(str::lines).flat_map(named_in).collect();
    let is_named = |command: &&String| {
        let rest = |named: &String| command.strip_prefix(named.as_str());
        named.iter().filter_map(rest).any(|rest| rest.is_empty() || rest.starts_with(' '))
    };
    commands.iter().filter(|command| !is_named(command)).cloned().collect()
}

/// The commands that a line names. After `muster plan list`, `show` is a command of the same group.
fn named_in(line: &str) -> Vec<String> {
    let (mut group, mut named) = (None, Vec::new());
    for span in line.split('`').skip(1).step_by(2) {
        let own = span.strip_prefix("muster ");
        let is_word = |word: &&str| word.starts_with(|c: char| c.is_ascii_lowercase());
        let words: Vec<&str> = own.unwrap_or(span).split(' ').take_while(is_word).collect();
        if own.is_some() {
            group = (words.len() > 1).then(|| words[0]);
        }
        match (group, &words[..]) {
            (_, []) => {}
            (Some(group), [verb]) if own.is_none() => named.push(format!("{group} {verb}")),
            _ => named.push(words.join(" ")),
        }
    }
    named
}
