//! The rule of a parameter's values (`configuration.schema`), read from its fields and held against values. Pure.

use regex::RegexBuilder;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Bytes of a compiled pattern: a larger one is refused, so that a description cannot exhaust the memory of its reader.
const PATTERN_BYTES_MAX: usize = 256 * 1024;
/// Options that an error lists.
const OPTIONS_LISTED: usize = 10;

/// The type of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DataType {
    /// Text.
    #[serde(alias = "text")]
    String,
    /// True or false.
    #[serde(alias = "bool")]
    Boolean,
    /// A whole number.
    #[serde(alias = "int")]
    Integer,
    /// A number.
    Double,
    /// One of the options, or some.
    Select,
}

/// A rule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ValueRule {
    /// Its name.
    pub name: String,
    /// The type.
    pub data_type: DataType,
    /// Whether an empty value is allowed. It is read, and no value is refused by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_empty: Option<bool>,
    /// Characters at least.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_length: Option<u64>,
    /// Characters at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_length: Option<u64>,
    /// The pattern of the whole text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub regex_match: Option<String>,
    /// The least number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_value: Option<f64>,
    /// The greatest number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_value: Option<f64>,
    /// Digits after the point at least.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_precision: Option<u64>,
    /// Digits after the point at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_precision: Option<u64>,
    /// Whether several options may be chosen.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub multiselect: bool,
    /// The options.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<Value>,
}

impl ValueRule {
    /// Checks the rule itself; the field and what is wrong with it.
    pub(super) fn check(&self) -> Result<(), (&'static str, String)> {
        if let Some(pattern) = &self.regex_match {
            compiled(pattern).map_err(|rule| ("regexMatch", rule))?;
        }
        if self.data_type == DataType::Select && self.options.is_empty() {
            return Err(("options", "is missing: a select needs options".to_owned()));
        }
        let is_crossed = |least: Option<f64>, most: Option<f64>| least.zip(most).is_some_and(|(a, b)| a > b);
        let length = |bound: Option<u64>| bound.map(|bound| bound as f64);
        for (field, least, most) in [
            ("maxValue", self.min_value, self.max_value),
            ("maxLength", length(self.min_length), length(self.max_length)),
            ("maxPrecision", length(self.min_precision), length(self.max_precision)),
        ] {
            if is_crossed(least, most) {
                return Err((field, "is less than the least that is allowed".to_owned()));
            }
        }
        Ok(())
    }

    /// Holds the rule against a value.
    ///
    /// # Errors
    /// The rule that the value breaks.
    pub fn accepts(&self, value: &Value) -> Result<(), String> {
        if let Value::Array(items) = value
            && (self.data_type != DataType::Select || self.multiselect)
        {
            return items.iter().try_for_each(|item| self.accepts_one(item));
        }
        self.accepts_one(value)
    }

    fn accepts_one(&self, value: &Value) -> Result<(), String> {
        if !self.options.is_empty() {
            return self.accepts_option(value);
        }
        match self.data_type {
            DataType::String => self.accepts_text(value.as_str().ok_or("is not a text")?),
            DataType::Boolean if value.is_boolean() => Ok(()),
            DataType::Boolean => Err("is neither true nor false".to_owned()),
            DataType::Integer if !(value.is_i64() || value.is_u64()) => {
                Err("is not a whole number".to_owned())
            }
            DataType::Integer | DataType::Double => self.accepts_number(value),
            DataType::Select => self.accepts_option(value),
        }
    }

    fn accepts_option(&self, value: &Value) -> Result<(), String> {
        if self.options.contains(value) {
            return Ok(());
        }
        let listed: Vec<_> = self.options.iter().take(OPTIONS_LISTED).map(Value::to_string).collect();
        let more = self.options.len().saturating_sub(OPTIONS_LISTED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        Err(format!("is none of the options: {}{more}", listed.join(", ")))
    }

    fn accepts_text(&self, text: &str) -> Result<(), String> {
        let chars = text.chars().count() as u64;
        if let Some(least) = self.min_length
            && chars < least
        {
            return Err(format!("has {chars} characters; at least {least} are needed"));
        }
        if let Some(most) = self.max_length
            && chars > most
        {
            return Err(format!("has {chars} characters; at most {most} are allowed"));
        }
        match &self.regex_match {
            Some(pattern) if !compiled(pattern)?.is_match(text) => {
                Err(format!("does not match the pattern {pattern}"))
            }
            _ => Ok(()),
        }
    }

    fn accepts_number(&self, value: &Value) -> Result<(), String> {
        let number = value.as_f64().ok_or("is not a number")?;
        if let Some(least) = self.min_value
            && number < least
        {
            return Err(format!("is {value}; at least {least} is needed"));
        }
        if let Some(most) = self.max_value
            && number > most
        {
            return Err(format!("is {value}; at most {most} is allowed"));
        }
        let digits = value.to_string().split_once('.').map_or(0, |(_, digits)| digits.len() as u64);
        if let Some(least) = self.min_precision
            && digits < least
        {
            return Err(format!("has {digits} digits after the point; at least {least} are needed"));
        }
        if let Some(most) = self.max_precision
            && digits > most
        {
            return Err(format!("has {digits} digits after the point; at most {most} are allowed"));
        }
        Ok(())
    }
}

/// A pattern that is held against the whole text, as a form does.
fn compiled(pattern: &str) -> Result<regex::Regex, String> {
    let whole = format!("^(?:{pattern})$");
    let built = RegexBuilder::new(&whole).size_limit(PATTERN_BYTES_MAX).build();
    built.map_err(|error| match error {
        regex::Error::CompiledTooBig(_) => {
            format!("is a pattern of more than {PATTERN_BYTES_MAX} bytes once compiled: shorten it")
        }
        other => {
            // The parser shows the place over several lines, and names the error in the last one.
            let text = other.to_string();
            let reason = text.lines().next_back().unwrap_or_default();
            format!("is not a regular expression: {}", reason.trim_start_matches("error: "))
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rule(fields: &Value) -> ValueRule {
        let mut rule = json!({ "name": "r" });
        rule.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        serde_json::from_value(rule).unwrap()
    }

    #[test]
    fn a_value_that_breaks_its_rule_is_refused_by_name() {
        for (fields, good, bad, words) in [
            (json!({"dataType": "integer", "minValue": 1, "maxValue": 9}), json!(9), json!(10), "at most 9"),
            (json!({"dataType": "integer", "minValue": 1}), json!(1), json!(0), "at least 1"),
            (json!({"dataType": "integer"}), json!([1, 2]), json!([1, "2"]), "whole number"),
            (json!({"dataType": "integer"}), json!(1), json!(1.5), "whole number"),
            (json!({"dataType": "double", "maxPrecision": 2}), json!(1.25), json!(1.125), "at most 2"),
            (json!({"dataType": "double", "minPrecision": 2}), json!(1.25), json!(1.5), "at least 2"),
            (json!({"dataType": "boolean"}), json!(true), json!("true"), "true nor false"),
            (json!({"dataType": "string", "minLength": 2}), json!("ab"), json!("a"), "at least 2"),
            (json!({"dataType": "string", "maxLength": 2}), json!("äö"), json!("abc"), "at most 2"),
            (json!({"dataType": "text", "regexMatch": "[a-z]+"}), json!("ab"), json!("ab1"), "pattern"),
            (json!({"dataType": "string"}), json!("1"), json!(1), "not a text"),
            (json!({"dataType": "select", "options": ["a", "b"]}), json!("a"), json!("c"), "\"a\", \"b\""),
            (json!({"dataType": "select", "options": ["a"]}), json!("a"), json!(["a"]), "none of"),
            (
                json!({"dataType": "select", "multiselect": true, "options": ["a", "b"]}),
                json!(["a", "b"]),
                json!(["a", "c"]),
                "none of",
            ),
        ] {
            let rule = rule(&fields);
            rule.check().unwrap();
            assert_eq!(rule.accepts(&good), Ok(()), "{fields} {good}");
            let said = rule.accepts(&bad).unwrap_err();
            assert!(said.contains(words), "{fields} {bad}: {said}");
        }
    }

    #[test]
    fn a_rule_that_no_value_can_keep_is_refused() {
        for (fields, field, words) in [
            (json!({"dataType": "string", "regexMatch": "("}), "regexMatch", "regular expression: unclosed"),
            (json!({"dataType": "string", "regexMatch": "(a{1000}){1000}"}), "regexMatch", "262144 bytes"),
            (json!({"dataType": "select"}), "options", "is missing"),
            (json!({"dataType": "integer", "minValue": 2, "maxValue": 1}), "maxValue", "is less than"),
        ] {
            let (found, said) = rule(&fields).check().unwrap_err();
            assert_eq!(found, field);
            assert!(said.contains(words), "{fields}: {said}");
        }
    }
}
