//! Passes a mapping's key to a closure while the parser is at the key, so that an error names its line.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, Visitor};

/// Reads one key; the closure's error becomes the parser's.
pub(super) struct Key<F>(pub(super) F);

impl<'de, T, F: FnOnce(&str) -> Result<T, &'static str>> DeserializeSeed<'de> for Key<F> {
    type Value = T;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<T, F: FnOnce(&str) -> Result<T, &'static str>> Visitor<'_> for Key<F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a field")
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<T, E> {
        (self.0)(key).map_err(E::custom)
    }
}
