//! The command line of a program, whose help is wrapped once: at the width of the terminal.
//!
//! The text behind the options stands in the source with lines of its own. clap wraps each of these lines by itself, so a
//! paragraph that stands on several of them would come out ragged.

use clap::{Command, Error, Parser};

/// Parses the command line of this process; ends it with the help, the version, or what is wrong.
pub fn parse<P: Parser>() -> P {
    try_parse().unwrap_or_else(|error: Error| error.exit())
}

/// Parses the command line of this process.
///
/// # Errors
/// What is wrong with it; or its help or its version, where one was asked for.
pub fn try_parse<P: Parser>() -> Result<P, Error> {
    let mut command = with_paragraphs(P::command());
    let mut matches = command.clone().try_get_matches()?;
    P::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))
}

/// The command with each paragraph of its after-help on one line, and so its subcommands.
fn with_paragraphs(command: Command) -> Command {
    let text = command.get_after_help().map(ToString::to_string);
    let command = match text {
        Some(text) => command.after_help(paragraphs(&text)),
        None => command,
    };
    command.mut_subcommands(with_paragraphs)
}

/// Joins the lines of each paragraph. Indented lines are examples and tables, which stay; a line that ends with a colon
/// introduces some.
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
