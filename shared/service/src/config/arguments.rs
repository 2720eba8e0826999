//! Parses the command line of a program, with help that clap wraps at the width of the terminal.
//!
//! The source has the text after the options on lines of its own. clap wraps each of these lines by itself, so a paragraph
//! of several lines would be ragged.

use clap::{Command, Error, Parser};

/// Parses the command line of this process; prints the help, the version or the error, and exits, if there is one.
pub fn parse<P: Parser>() -> P {
    try_parse().unwrap_or_else(|error: Error| error.exit())
}

/// Parses the command line of this process.
///
/// # Errors
/// The error, or the help or version that the command line asks for.
pub fn try_parse<P: Parser>() -> Result<P, Error> {
    let mut command = with_paragraphs(P::command());
    let mut matches = command.clone().try_get_matches()?;
    P::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))
}

/// The command, and its subcommands, with each paragraph of the after-help on one line.
fn with_paragraphs(command: Command) -> Command {
    let text = command.get_after_help().map(ToString::to_string);
    let command = match text {
        Some(text) => command.after_help(paragraphs(&text)),
        None => command,
    };
    command.mut_subcommands(with_paragraphs)
}

/// Joins the lines of each paragraph. Indented lines are examples and tables and stay; a line that ends with a colon
/// introduces them.
fn paragraphs(text: &str) -> String {
    let mut joined = String::with_capacity(text.len());
    let mut goes_on = false;
    for line in text.lines() {
        let is_prose = !line.is_empty() && !line.starts_with(' ');
        if !joined.is_empty() {
            joined.push(if goes_on && is_prose { ' ' } else { '\n' });
        }
        joined.push_str(line);
        goes_on = is_prose && !line.ends_with(':');
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_paragraph_is_one_line_and_everything_else_stays() {
        let text = "One sentence that\ngoes on.\n\nExamples:\n  a b\n      c\nExit codes: 0 or\n1.";
        let joined = "One sentence that goes on.\n\nExamples:\n  a b\n      c\nExit codes: 0 or 1.";
        assert_eq!(paragraphs(text), joined);
        assert_eq!(paragraphs(joined), joined);
    }

    #[test]
    fn subcommands_have_paragraphs_too() {
        let command = Command::new("a").subcommand(Command::new("b").after_help("c\nd"));
        let command = with_paragraphs(command);
        let after = command.find_subcommand("b").unwrap().get_after_help().unwrap().to_string();
        assert_eq!(after, "c d");
    }
}
