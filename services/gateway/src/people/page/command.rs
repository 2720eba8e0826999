//! Commands of `muster` for a reader to copy. Devices choose error codes, and a command is pasted into a shell: each argument stays one
//! argument. On a page of the past a command names the moment of the page with `--at`, if it takes one.

use std::fmt::Display;

use muster_contract::Timestamp;

/// A command: fixed words of this program, then arguments and flags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Command {
    text: String,
    /// It has a flag `--at`.
    takes_moment: bool,
}

/// A command by its fixed words, which no device or person has chosen.
impl From<&'static str> for Command {
    fn from(words: &'static str) -> Self {
        Self { text: words.to_owned(), takes_moment: takes_moment(words) }
    }
}

impl Command {
    /// The same with another argument.
    #[must_use]
    pub(crate) fn with(mut self, argument: impl Display) -> Self {
        self.text += " ";
        self.text += &quoted(&argument.to_string());
        self
    }

    /// The same with a flag and its value.
    #[must_use]
    pub(crate) fn flag(mut self, flag: &'static str, value: impl Display) -> Self {
        let value = value.to_string();
        self.text += " ";
        self.text += flag;
        // Otherwise a value that begins like a flag is one.
        if value.starts_with('-') {
            self.text += "=";
            self.text += &quoted(&value);
            return self;
        }
        self.with(value)
    }

    /// The command for a page of a moment of the past, or of the present.
    pub(super) fn at(self, moment: Option<Timestamp>) -> String {
        match moment.filter(|_| self.takes_moment) {
            Some(moment) => self.flag("--at", moment).text,
            None => self.text,
        }
    }
}

/// Whether the command with these words has a flag `--at`.
fn takes_moment(words: &'static str) -> bool {
    let words: Vec<&str> = words.split(' ').collect();
    match words[..] {
        ["muster", "rollout", "show"] => true,
        ["muster", verb, ..] => {
            matches!(verb, "status" | "devices" | "device" | "site" | "fleet" | "why")
        }
        _ => false,
    }
}

/// A text as one argument for a shell.
fn quoted(text: &str) -> String {
    let is_plain = |sign: char| sign.is_ascii_alphanumeric() || "-_./:@,+".contains(sign);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_of_the_past_names_the_moment_if_it_takes_one() {
        let moment = "2026-11-20T08:00:00.5Z".parse().ok();
        for command in [
            Command::from("muster fleet"),
            Command::from("muster status").with("web").flag("--output", "brief"),
            Command::from("muster site").with("plant7"),
            Command::from("muster device").with("plant7/press-1"),
            Command::from("muster devices --freshness stale --freshness never"),
            Command::from("muster why").with("rollout").flag("--device", "plant7/press-1"),
            Command::from("muster rollout show").with("web"),
        ] {
            let present = command.clone().at(None);
            assert_eq!(command.at(moment), format!("{present} --at 2026-11-20T08:00:00.5Z"));
        }
    }

    #[test]
    fn a_command_without_the_flag_names_no_moment() {
        for command in [
            Command::from("muster rollout list"),
            Command::from("muster rollout history").with("status"),
            Command::from("muster quarantine list"),
            Command::from("muster changes").flag("--since", "1h"),
            Command::from("muster login").with("https://status").flag("--nonce", "n"),
            Command::from("status"),
        ] {
            assert_eq!(command.clone().at("2026-11-20T08:00:00Z".parse().ok()), command.at(None));
        }
    }

    #[test]
    fn an_argument_that_looks_like_a_flag_does_not_hide_the_moment() {
        let moment = "2026-11-20T08:00:00Z".parse().ok();
        for code in ["E --at 7", "E --instance 7", "--at"] {
            let shown = Command::from("muster devices").flag("--error", code).at(moment);
            assert!(shown.ends_with(" --at 2026-11-20T08:00:00Z"), "{shown}");
        }
        let shown = Command::from("muster devices").flag("--error", "--at").at(moment);
        assert!(shown.starts_with("muster devices --error=--at "), "{shown}");
    }

    #[test]
    fn an_argument_of_a_command_stays_one_argument() {
        assert_eq!((quoted("E-DISK"), quoted("")), ("E-DISK".to_owned(), "''".to_owned()));
        assert_eq!(quoted("it's $(here)"), "'it'\\''s $(here)'");
    }
}
