//! Questions to the person at the terminal: confirmation of a change, and a choice among several things. Without a terminal a change
//! needs no confirmation, and a choice is an error.

use crate::config::YesArg;
use crate::error::CtlError;
use crate::session::Session;

/// Most things that a choice lists.
const CHOICES_MAX: usize = 50;

/// Asks for confirmation of a change, unless `--yes` is given or nobody is at the terminal; false if the person said no.
///
/// # Errors
/// The terminal cannot be read.
pub(super) fn confirmed(session: &mut Session<'_>, yes: YesArg, change: &str) -> Result<bool, CtlError> {
    if yes.yes {
        return Ok(true);
    }
    let Some(answer) = session.terminal.ask(&format!("{change}? [y/N] "))? else { return Ok(true) };
    let is_yes = matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes");
    if !is_yes {
        session.terminal.print_note("Nothing is changed.\n");
    }
    Ok(is_yes)
}

/// One of several things, each in one line: the only one, or the one that the person picks.
///
/// # Errors
/// There are several and no person picks one; `hint` is how to name one.
pub(super) fn chosen<'a, T>(
    session: &mut Session<'_>,
    what: &str,
    things: &'a [T],
    line: impl Fn(&T) -> String,
    hint: &str,
) -> Result<&'a T, CtlError> {
    if let [only] = things {
        return Ok(only);
    }
    let lines: Vec<_> = things.iter().map(line).collect();
    let numbered = |(at, line): (usize, &String)| format!("{:>3}  {line}\n", at + 1);
    let mut list: String = lines.iter().enumerate().take(CHOICES_MAX).map(numbered).collect();
    if lines.len() > CHOICES_MAX {
        list += &format!("     and {} more\n", lines.len() - CHOICES_MAX);
    }
    let question = format!("{list}Which {what}? [1-{}] ", lines.len());
    let unasked = || {
        let message = format!("{} {what}s match: {hint}\n{}", lines.len(), list.trim_end());
        CtlError::Unknown { message, near: Vec::new() }
    };
    let answer = session.terminal.ask(&question)?.ok_or_else(unasked)?;
    let picked = answer.trim().parse::<usize>().ok().and_then(|number| things.get(number.checked_sub(1)?));
    picked.ok_or_else(|| CtlError::Usage(format!("'{}' is none of 1 to {}", answer.trim(), lines.len())))
}
