//! The validity of a view in the bucket. The rollup renews a view before its validity ends, for as long as it reads LEDGER to its
//! end; a view past its validity may be out of date. The validity is part of `asOf`, which no digest covers.

use jiff::Timestamp;
use schemars::{Schema, json_schema};
use serde::Deserialize;

const AS_OF: &[u8] = b"\"asOf\":{";

/// Adds to the schema of [`AsOf`](crate::view::AsOf) what only an entry of the bucket has.
pub(crate) fn describe(schema: &mut Schema) {
    if let Some(properties) = schema.get_mut("properties").and_then(|properties| properties.as_object_mut()) {
        let validity = json_schema!({
            "description": "The time until which a view in the bucket `views` is valid. A view past this moment may be \
                            wrong, because nobody renews it.",
            "type": "string",
            "format": "date-time"
        });
        properties.insert("validUntil".to_owned(), validity.into());
    }
}

/// The end of the validity of a view in the bucket; `None` if it has none.
pub fn valid_until(view: &[u8]) -> Option<Timestamp> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Read {
        as_of: Validity,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Validity {
        #[serde(default)]
        valid_until: Option<Timestamp>,
    }
    serde_json::from_slice::<Read>(view).ok()?.as_of.valid_until
}

/// A view as it is written to the bucket, with the end of its validity. The digest leaves out `asOf`, so it stays the same.
#[must_use]
pub fn valid_to(view: &[u8], until: Timestamp) -> Vec<u8> {
    // The first `asOf` of a view is its own: before it come names alone, which hold no quotes.
    let begin = view.windows(AS_OF.len()).position(|window| window == AS_OF);
    let end = begin.and_then(|begin| Some(begin + view[begin..].iter().position(|byte| *byte == b'}')?));
    let Some(end) = end else { return view.to_vec() };
    let validity = format!(",\"validUntil\":\"{until}\"");
    [&view[..end], validity.as_bytes(), &view[end..]].concat()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::view::content_digest;

    #[test]
    fn a_view_says_until_when_it_may_be_believed_beside_its_digest() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../schemas/examples/good");
        let until: Timestamp = "2026-11-24T08:02:00.5Z".parse().unwrap();
        for name in [
            "DeploymentView.failing",
            "SiteView.plant7",
            "FleetView.fleet",
            "GroupView.north",
            "DefinedView.components",
        ] {
            let bytes = std::fs::read(format!("{folder}/{name}.json")).unwrap();
            let view: Value = serde_json::from_slice(&bytes).unwrap();
            let marked = valid_to(view.to_string().as_bytes(), until);
            assert_eq!((valid_until(&marked), valid_until(&bytes)), (Some(until), None), "{name}");
            let marked: Value = serde_json::from_slice(&marked).unwrap();
            assert_eq!(content_digest(&marked).to_string(), view["digest"].as_str().unwrap(), "{name}");
        }
    }
}
