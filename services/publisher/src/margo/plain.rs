//! Rewrites messages of the parsers, which name Rust's variants, sequences and integers, for people who write YAML. Unknown
//! messages stay as they are.

/// Parsers' names of kinds of values, with plain ones.
const KINDS: [(&str, &str); 9] = [
    ("integer", "a number"),
    ("floating point", "a number"),
    ("boolean", "a truth value"),
    ("string", "a text"),
    ("sequence", "a list"),
    ("map", "a mapping"),
    ("null", "nothing"),
    ("unit value", "nothing"),
    ("Option value", "nothing"),
];

/// Parsers' names of expected values, with plain ones. Longer names come before their parts.
const EXPECTED: [(&str, &str); 10] = [
    ("a nonzero u16", "a whole number from 1 to 65535"),
    ("a nonzero u32", "a whole number from 1 to 4294967295"),
    ("a nonzero u64", "a whole number from 1 on"),
    ("u16", "a whole number from 0 to 65535"),
    ("u32", "a whole number from 0 to 4294967295"),
    ("u64", "a whole number from 0 on"),
    ("a string", "a text"),
    ("string or map", "a text"),
    ("a sequence", "a list"),
    ("a map", "a mapping"),
];

/// A parser's message in plain words.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PlainRule {
    /// The field below the parsed one, if the problem is there.
    pub(super) field: Option<String>,
    /// The broken rule.
    pub(super) rule: String,
}

/// Rewrites a message of serde.
pub(super) fn plain(message: &str) -> PlainRule {
    let here = |rule: String| PlainRule { field: None, rule };
    if let Some(field) =
        message.strip_prefix("missing field ").and_then(|rest| quoted(rest).into_iter().next())
    {
        return PlainRule { field: Some(field.to_owned()), rule: "is missing".to_owned() };
    }
    if let Some(rest) = message.strip_prefix("unknown field ")
        && let [field, known @ ..] = quoted(rest).as_slice()
    {
        return PlainRule { field: Some((*field).to_owned()), rule: not_known("is not a field here", known) };
    }
    if let Some(rest) = message.strip_prefix("unknown variant ")
        && let [word, known @ ..] = quoted(rest).as_slice()
    {
        return here(not_known(&format!("'{word}' is not known here"), known));
    }
    if let Some((kind, _, expected)) = unexpected(message, "invalid type: ") {
        let quotes = expected == "a text" && ["a number", "a truth value"].contains(&kind);
        let hint = if quotes { "; write it in quotes" } else { "" };
        return here(format!("is {kind}, not {expected}{hint}"));
    }
    if let Some((_, value, expected)) = unexpected(message, "invalid value: ") {
        return here(format!("{value} is not {expected}"));
    }
    if message.starts_with("data did not match any variant") {
        return here("is neither true nor false".to_owned());
    }
    here(message.to_owned())
}

fn not_known(what: &str, known: &[&str]) -> String {
    match known {
        [] => what.to_owned(),
        [one] => format!("{what}; there is {one}"),
        all => format!("{what}; there are {}", all.join(", ")),
    }
}

/// The texts between backticks, in order.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// Parses `<start><kind> [<value>], expected <what>` into kind, value and expectation.
fn unexpected<'a>(message: &'a str, start: &str) -> Option<(&'static str, &'a str, &'static str)> {
    let (found, expected) = message.strip_prefix(start)?.rsplit_once(", expected ")?;
    let (name, kind) = KINDS.into_iter().find(|(name, _)| found.starts_with(name))?;
    let known = EXPECTED.into_iter().find(|(name, _)| expected == *name).map(|(_, plain)| plain);
    // A Rust type by its name: in YAML it is a mapping.
    let structure = || ["struct ", "internally tagged enum "].iter().any(|start| expected.starts_with(start));
    let expected = known.or_else(|| structure().then_some("a mapping"))?;
    Some((kind, found[name.len()..].trim().trim_matches('`'), expected))
}

/// Rewrites a message about the syntax of YAML; `line` is the text of its line.
pub(super) fn syntax(message: &str, line: Option<&str>) -> String {
    if message.contains("repetition limit exceeded") {
        return "uses anchors too often: with its aliases expanded it exceeds the limits of a file"
            .to_owned();
    }
    let blank = |line: &str| line.chars().take_while(|char| char.is_whitespace()).any(|char| char == '\t');
    if line.is_some_and(blank) {
        return "is not YAML: the line begins with a tab; indent with spaces".to_owned();
    }
    format!("is not YAML: {message}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_serde_are_rewritten() {
        for (message, field, rule) in [
            ("missing field `command`", Some("command"), "is missing"),
            (
                "unknown field `hots`, expected `port` or `host`",
                Some("hots"),
                "is not a field here; there are port, host",
            ),
            ("unknown field `x`, there are no fields", Some("x"), "is not a field here"),
            (
                "unknown variant `port`, expected one of `exit`, `uptime`, `tcp`, `file`",
                None,
                "'port' is not known here; there are exit, uptime, tcp, file",
            ),
            (r#"invalid type: string "100", expected a sequence"#, None, "is a text, not a list"),
            (r#"invalid type: string "a, expected b", expected a sequence"#, None, "is a text, not a list"),
            (
                "invalid type: integer `8080`, expected a string",
                None,
                "is a number, not a text; write it in quotes",
            ),
            (
                "invalid type: floating point `1.5`, expected u32",
                None,
                "is a number, not a whole number from 0 to 4294967295",
            ),
            ("invalid type: boolean `true`, expected a map", None, "is a truth value, not a mapping"),
            (
                r#"invalid type: string "exit", expected internally tagged enum Readiness"#,
                None,
                "is a text, not a mapping",
            ),
            ("invalid type: null, expected a string", None, "is nothing, not a text"),
            (
                "invalid value: integer `0`, expected a nonzero u16",
                None,
                "0 is not a whole number from 1 to 65535",
            ),
            (
                "invalid value: integer `-1`, expected u32",
                None,
                "-1 is not a whole number from 0 to 4294967295",
            ),
            ("data did not match any variant of untagged enum Flag", None, "is neither true nor false"),
            ("'soon' is not a duration", None, "'soon' is not a duration"),
            (
                "invalid type: integer `1`, expected a moon",
                None,
                "invalid type: integer `1`, expected a moon",
            ),
        ] {
            assert_eq!(
                plain(message),
                PlainRule { field: field.map(str::to_owned), rule: rule.to_owned() },
                "{message}"
            );
        }
    }

    #[test]
    fn messages_of_the_yaml_parser_are_rewritten() {
        for (message, line, wanted) in [
            ("repetition limit exceeded", None, "anchors too often"),
            ("found character that cannot start any token", Some("\tname: x"), "indent with spaces"),
            ("found character that cannot start any token", Some("name: @x"), "is not YAML: found character"),
            ("did not find expected key", None, "is not YAML: did not find expected key"),
        ] {
            assert!(syntax(message, line).contains(wanted), "{message}: {}", syntax(message, line));
        }
    }
}
