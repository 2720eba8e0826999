//! Query parameters: the flags of `muster` in camelCase, read into a question for a service. An unknown parameter is
//! refused with similar known ones; a value is checked by the service that takes it, unless it is no number or time.

use muster_client::time::{Side, time_at};
use muster_contract::near::near;
use muster_contract::{DeviceKey, Timestamp};
use serde_json::{Map, Value, json};

use crate::problem::Problem;

/// Longest query string in bytes.
const QUERY_BYTES_MAX: usize = 8 * 1024;
/// Parameters that select a part of a list.
const PAGING: [&str; 3] = ["limit", "after", "cursor"];

/// A query parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Param {
    /// Its name.
    pub name: &'static str,
    /// The field of the question that it sets.
    pub field: &'static str,
    /// The form of its values.
    pub kind: Kind,
    /// Its meaning.
    pub about: &'static str,
}

/// The form of a parameter's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One text.
    Text,
    /// Texts: the parameter may be repeated.
    List,
    /// Words: the parameter may be repeated, and a value may list several, separated by commas.
    Words,
    /// Devices as SITE/DEVICE: the parameter may be repeated.
    Devices,
    /// A number.
    Number,
    /// `true` or `false`.
    Flag,
    /// A time: a timestamp, how long ago, or a word such as `yesterday`.
    Time,
    /// A time or a sequence of LEDGER.
    Point,
}

/// A parameter that sets the field of its own name.
pub(crate) const fn param(name: &'static str, kind: Kind, about: &'static str) -> Param {
    Param { name, field: name, kind, about }
}

/// The values of a request's query string, each with its parameter.
#[derive(Debug, Default)]
pub(crate) struct Values {
    given: Vec<(Param, String)>,
}

impl Values {
    /// Reads a query string.
    ///
    /// # Errors
    /// A parameter is unknown, empty or repeated, or the string is too long.
    pub(crate) fn read(query: &str, known: &[Param]) -> Result<Self, Problem> {
        if query.len() > QUERY_BYTES_MAX {
            return Err(Problem::field("query", format!("is longer than {QUERY_BYTES_MAX} bytes")));
        }
        let pairs = form_urlencoded::parse(query.as_bytes());
        Self::of(pairs.map(|(name, value)| (name.into_owned(), value.into_owned())), known)
    }

    /// Reads the query string of a form with filters, where an empty field is no filter.
    ///
    /// # Errors
    /// A parameter is unknown or repeated.
    pub(crate) fn of_filters(query: &str, known: &[Param]) -> Result<Self, Problem> {
        let filled = form_urlencoded::parse(query.as_bytes()).filter(|(_, value)| !value.is_empty());
        Self::of(filled.map(|(name, value)| (name.into_owned(), value.into_owned())), known)
    }

    /// The values of named fields.
    ///
    /// # Errors
    /// A field is unknown, empty or repeated.
    pub(crate) fn of(
        pairs: impl Iterator<Item = (String, String)>,
        known: &[Param],
    ) -> Result<Self, Problem> {
        let mut given: Vec<(Param, String)> = Vec::new();
        for (name, value) in pairs {
            let Some(param) = known.iter().find(|param| param.name == name) else {
                return Err(unknown(&name, known));
            };
            let is_repeated = given.iter().any(|(before, _)| before == param);
            if is_repeated && !matches!(param.kind, Kind::List | Kind::Words | Kind::Devices) {
                return Err(Problem::field(param.name, "is given twice"));
            }
            if value.is_empty() {
                return Err(Problem::field(param.name, "is empty; leave the parameter out"));
            }
            if param.kind == Kind::Flag && value.parse::<bool>().is_err() {
                return Err(Problem::field(param.name, format!("'{value}' must be true or false")));
            }
            given.push((*param, value));
        }
        Ok(Self { given })
    }

    /// The first value of a parameter.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.given.iter().find(|(param, _)| param.name == name).map(|(_, value)| value.as_str())
    }

    /// All values of a parameter.
    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.given.iter().filter(move |(param, _)| param.name == name).map(|(_, value)| value.as_str())
    }

    /// The time of the past that a parameter names.
    ///
    /// # Errors
    /// The value is no time.
    pub(crate) fn time(&self, name: &str, now: Timestamp) -> Result<Option<Timestamp>, Problem> {
        let read = |text: &str| {
            let time = time_at(text, now, Side::Past);
            time.map_err(|rule| Problem::field(name, format!("'{text}' {rule}")))
        };
        self.get(name).map(read).transpose()
    }

    /// The parameters that say what is asked, not how much of it.
    pub(crate) fn meaning(&self) -> Map<String, Value> {
        let mut meaning: Map<String, Value> = Map::new();
        for (param, value) in self.given.iter().filter(|(param, _)| !PAGING.contains(&param.name)) {
            match meaning.get_mut(param.name) {
                Some(Value::Array(list)) => list.push(json!(value)),
                _ => _ = meaning.insert(param.name.to_owned(), json!([value])),
            }
        }
        meaning
    }

    /// The query string of the next page.
    pub(crate) fn continued(&self, cursor: &str) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        let kept = self.given.iter().filter(|(param, _)| !matches!(param.name, "cursor" | "after"));
        query.extend_pairs(kept.map(|(param, value)| (param.name, value)));
        query.append_pair("cursor", cursor).finish()
    }

    /// The fields of a question.
    ///
    /// # Errors
    /// A value is no number, flag or time.
    pub(crate) fn question(&self, now: Timestamp) -> Result<Map<String, Value>, Problem> {
        let mut question = Map::new();
        for (param, value) in &self.given {
            let value = read(param, value, now)?;
            match (question.get_mut(param.field), value) {
                (Some(Value::Array(list)), Value::Array(more)) => list.extend(more),
                (_, value) => _ = question.insert(param.field.to_owned(), value),
            }
        }
        Ok(question)
    }
}

fn read(param: &Param, value: &str, now: Timestamp) -> Result<Value, Problem> {
    let refuse = |rule: &str| Problem::field(param.name, format!("'{value}' {rule}"));
    match param.kind {
        Kind::Text => Ok(json!(value)),
        Kind::List => Ok(json!([value])),
        Kind::Devices => {
            let key = value.parse::<DeviceKey>().map_err(|_| refuse("must be SITE/DEVICE"))?;
            Ok(json!([key]))
        }
        Kind::Words => Ok(json!(value.split(',').collect::<Vec<_>>())),
        Kind::Number => value.parse::<u64>().map(Value::from).map_err(|_| refuse("is no number")),
        Kind::Flag => value.parse::<bool>().map(Value::from).map_err(|_| refuse("must be true or false")),
        Kind::Time => Ok(json!(time_at(value, now, Side::Past).map_err(|rule| refuse(&rule))?)),
        Kind::Point => match value.parse::<u64>() {
            Ok(seq) => Ok(json!({ "atSeq": seq })),
            Err(_) => {
                let at = time_at(value, now, Side::Past);
                let at = at.map_err(|rule| refuse(&format!("is no sequence of LEDGER, and {rule}")))?;
                Ok(json!({ "at": at }))
            }
        },
    }
}

fn unknown(name: &str, known: &[Param]) -> Problem {
    let names: Vec<&str> = known.iter().map(|param| param.name).collect();
    let shown: String = name.chars().filter(|sign| !sign.is_control()).take(64).collect();
    let rule = if names.is_empty() {
        "unknown parameter; this address has none".to_owned()
    } else {
        format!("unknown parameter; there are {}", names.join(", "))
    };
    Problem::field(&shown, rule).with_near(&near(name, names.iter().copied()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: [Param; 4] = [
        param("site", Kind::List, ""),
        param("verdict", Kind::Words, ""),
        param("limit", Kind::Number, ""),
        Param { name: "since", field: "from", kind: Kind::Point, about: "" },
    ];

    fn question(query: &str) -> Result<Value, Problem> {
        let now = "2026-11-20T10:00:00Z".parse().unwrap();
        Values::read(query, &KNOWN)?.question(now).map(Value::Object)
    }

    #[test]
    fn flags_become_the_fields_of_a_question() {
        let asked = question("site=a&verdict=failing,overdue&site=b&limit=7&since=2h").unwrap();
        let wanted = json!({"site": ["a", "b"], "verdict": ["failing", "overdue"], "limit": 7,
            "from": {"at": "2026-11-20T08:00:00Z"}});
        assert_eq!(asked, wanted);
        assert_eq!(question("since=4711").unwrap(), json!({"from": {"atSeq": 4711}}));
        for (text, at) in [
            ("now", "2026-11-20T10:00:00Z"),
            ("today", "2026-11-20T00:00:00Z"),
            ("yesterday", "2026-11-19T00:00:00Z"),
            ("90s", "2026-11-20T09:58:30Z"),
            ("3d", "2026-11-17T10:00:00Z"),
            ("2026-11-20T09:00:00Z", "2026-11-20T09:00:00Z"),
        ] {
            let asked = question(&format!("since={text}")).unwrap();
            assert_eq!(asked, json!({"from": {"at": at}}), "as on the command line: {text}");
        }
    }

    #[test]
    fn an_empty_field_of_a_form_is_no_filter() {
        let values = Values::of_filters("site=&verdict=failing&limit=", &KNOWN).unwrap();
        assert_eq!((values.get("site"), values.get("verdict")), (None, Some("failing")));
        assert!(Values::of_filters("sitte=a", &KNOWN).is_err());
    }

    #[test]
    fn an_unknown_parameter_is_refused_with_similar_ones() {
        let problem = question("sitte=a").unwrap_err();
        assert_eq!((problem.status, problem.errors[0].field.as_str()), (400, "sitte"));
        assert!(problem.detail.ends_with("did you mean site?"), "{}", problem.detail);
        for (query, words) in [
            ("limit=x", "no number"),
            ("limit=1&limit=2", "twice"),
            ("site=", "empty"),
            ("since=tomorrow", "must be a time"),
            ("since=2w", "no sequence of LEDGER"),
        ] {
            let problem = question(query).unwrap_err();
            assert!(problem.status == 400 && problem.detail.contains(words), "{}", problem.detail);
        }
        let header = question("a%0d%0ab=1").unwrap_err();
        assert_eq!(header.errors[0].field, "ab", "no control characters come back");
    }
}
