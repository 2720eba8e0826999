//! Margo's labels of a deployment, which its runtime puts on what it creates. They are no [`crate::labels`]: they group no devices.

use std::collections::BTreeMap;

use crate::limits::{DEPLOYMENT_LABELS_MAX, LABEL_CHARS_MAX, LABEL_PREFIX_CHARS_MAX};

/// Labels of a deployment, by Kubernetes' rules for keys and values.
pub type DeploymentLabels = BTreeMap<String, String>;

/// The prefix of the labels that runtimes set themselves.
const OWN_PREFIX: &str = "io.muster";

const _: () = assert!(DEPLOYMENT_LABELS_MAX == 16, "the rule names it");

/// Whether a deployment may have these labels.
///
/// # Errors
/// The key of the first label that may not be there, and the rule that it breaks.
pub fn check(labels: &DeploymentLabels) -> Result<(), (String, &'static str)> {
    let broken = |key: &String, rule| Err((key.clone(), rule));
    for (nth, (key, value)) in labels.iter().enumerate() {
        if nth >= DEPLOYMENT_LABELS_MAX {
            return broken(key, "is one label too many: 16 are allowed");
        }
        if key.starts_with(OWN_PREFIX) {
            return broken(key, "is a label that Muster sets itself");
        }
        let (prefix, name) =
            key.split_once('/').map_or((None, key.as_str()), |(prefix, name)| (Some(prefix), name));
        if !is_text(name) || !prefix.is_none_or(is_prefix) {
            return broken(key, "is no key of a label, as Kubernetes has them: `name` or `example.com/name`");
        }
        if !value.is_empty() && !is_text(value) {
            return broken(
                key,
                "has no value of a label, as Kubernetes has them: at most 63 letters, digits and '._-'",
            );
        }
    }
    Ok(())
}

/// 1 to 63 letters, digits and `._-`, with a letter or digit at both ends.
fn is_text(text: &str) -> bool {
    let bytes = text.as_bytes();
    let is_edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let is_inner = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-".contains(byte);
    bytes.len() <= LABEL_CHARS_MAX
        && is_edge(bytes.first())
        && is_edge(bytes.last())
        && bytes.iter().all(is_inner)
}

/// A DNS name.
fn is_prefix(text: &str) -> bool {
    let is_lower =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'.';
    text.len() <= LABEL_PREFIX_CHARS_MAX && text.bytes().all(is_lower) && text.split('.').all(is_text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(key: &str, value: &str) -> Option<&'static str> {
        check(&[(key.to_owned(), value.to_owned())].into()).err().map(|(_, rule)| rule)
    }

    #[test]
    fn labels_have_the_keys_and_values_of_kubernetes() {
        for (key, value) in [("line", "press"), ("acme.example/line", "A_1.b-2"), ("empty", "")] {
            assert_eq!(refusal(key, value), None, "{key}");
        }
        for (key, value, words) in [
            ("a b", "x", "no key"),
            ("-a", "x", "no key"),
            ("Acme.example/a", "x", "no key"),
            ("a..b/c", "x", "no key"),
            ("/a", "x", "no key"),
            ("a", "two words", "no value"),
            ("io.muster.device", "x", "sets itself"),
        ] {
            assert!(refusal(key, value).is_some_and(|rule| rule.contains(words)), "{key}={value}");
        }
        let many = (0..=DEPLOYMENT_LABELS_MAX).map(|nth| (format!("k{nth}"), String::new())).collect();
        assert!(check(&many).unwrap_err().1.contains("too many"));
    }
}
