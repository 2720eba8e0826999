//! The sites of a request: on the wire one site is a string, several are a list. A row of any of them passes.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Deref;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::ids::SiteId;
use crate::limits::FILTER_VALUES_MAX;

/// A set of sites; the empty set stands for all sites.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sites(BTreeSet<SiteId>);

impl Sites {
    /// True if no site is named, so that all pass.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The site, if exactly one is named.
    pub fn only(&self) -> Option<&SiteId> {
        self.0.first().filter(|_| self.0.len() == 1)
    }

    /// True if no site is named, or this one is.
    pub fn pass(&self, site: &SiteId) -> bool {
        self.0.is_empty() || self.0.contains(site)
    }
}

impl Deref for Sites {
    type Target = BTreeSet<SiteId>;
    fn deref(&self) -> &BTreeSet<SiteId> {
        &self.0
    }
}

impl From<SiteId> for Sites {
    fn from(site: SiteId) -> Self {
        Self(BTreeSet::from([site]))
    }
}

impl From<Option<SiteId>> for Sites {
    fn from(site: Option<SiteId>) -> Self {
        site.into_iter().collect()
    }
}

impl FromIterator<SiteId> for Sites {
    fn from_iter<I: IntoIterator<Item = SiteId>>(sites: I) -> Self {
        Self(sites.into_iter().collect())
    }
}

impl IntoIterator for Sites {
    type Item = SiteId;
    type IntoIter = std::collections::btree_set::IntoIter<SiteId>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl Serialize for Sites {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.only() {
            Some(site) => site.serialize(serializer),
            None => self.0.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Sites {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SitesVisitor)
    }
}

struct SitesVisitor;

impl<'de> Visitor<'de> for SitesVisitor {
    type Value = Sites;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a site or a list of sites")
    }

    fn visit_unit<E>(self) -> Result<Sites, E> {
        Ok(Sites::default())
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Sites, E> {
        text.parse::<SiteId>().map(Sites::from).map_err(E::custom)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Sites, A::Error> {
        let mut sites = BTreeSet::new();
        while let Some(site) = list.next_element()? {
            sites.insert(site);
            if sites.len() > FILTER_VALUES_MAX {
                return Err(A::Error::custom(format!("one question takes {FILTER_VALUES_MAX} sites")));
            }
        }
        Ok(Sites(sites))
    }
}

impl JsonSchema for Sites {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Sites".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "One site as a string, or several as a list; a row of any of them passes.",
            "anyOf": [
                generator.subschema_for::<SiteId>(),
                {
                    "type": "array",
                    "items": generator.subschema_for::<SiteId>(),
                    "maxItems": FILTER_VALUES_MAX
                },
                {"type": "null"}
            ]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_site_is_a_text_and_several_are_a_list() {
        let read = |text: &str| serde_json::from_str::<Sites>(text);
        for (text, written) in [
            (r#""b""#, r#""b""#),
            (r#"["b"]"#, r#""b""#),
            (r#"["b","a","b"]"#, r#"["a","b"]"#),
            ("[]", "[]"),
            ("null", "[]"),
        ] {
            assert_eq!(serde_json::to_string(&read(text).unwrap()).unwrap(), written, "{text}");
        }
        for bad in [r#""B""#, "7", r#"["a",7]"#, "{}"] {
            assert!(read(bad).is_err(), "{bad}");
        }
        let many: Vec<String> = (0..=FILTER_VALUES_MAX).map(|at| format!("s{at}")).collect();
        assert!(read(&serde_json::to_string(&many).unwrap()).is_err());
    }
}
