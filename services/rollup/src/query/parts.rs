//! Answers `muster.query.parts`: the parts that this rollup gives to a federation. An answer has as many parts,
//! and as many rows of one, as fit into a message; the asker requests the rest.

use std::collections::BTreeMap;

use bytes::Bytes;
use muster_contract::parts::{PARTS_MAX, PartsAnswer, PartsQuery};
use muster_contract::query::ErrorBody;
use muster_contract::question::{bad, fitting, read_or_default};
use muster_contract::subjects::ViewKey;
use muster_domain::fold::Fleet;

use super::present::caught_up;
use crate::projection::Projection;

/// The last token of its subject.
pub(super) const ENDPOINT: &str = "parts";
/// Rows of one answer over all its parts: the search for the number that fits begins here.
const ROWS_MAX: usize = 2_000;

const _: () = assert!(ROWS_MAX > PARTS_MAX);

/// The answer of the present.
pub(super) fn answer(projection: &Projection, question: &[u8]) -> Result<Bytes, ErrorBody> {
    let query: PartsQuery = read_or_default(question)?;
    let keys = checked(&query)?;
    fitting(ROWS_MAX, |rows| projection.read(|now| Ok(look_up(caught_up(now)?, &keys, query.skip, rows))))
}

/// The views that are asked about.
fn checked(query: &PartsQuery) -> Result<Vec<ViewKey>, ErrorBody> {
    let count = query.keys.len();
    if count > PARTS_MAX {
        return Err(bad(format!("keys: has {count} entries; {PARTS_MAX} are allowed")));
    }
    if query.skip > 0 && count != 1 {
        return Err(bad("skip: is of one key alone".to_owned()));
    }
    let parsed = query.keys.iter().map(|key| match ViewKey::parse(key) {
        Some(key @ (ViewKey::Deployment(_) | ViewKey::Group(..) | ViewKey::Fleet)) => Ok(key),
        _ => Err(bad(format!(
            "keys: '{key}' has no parts; deployment.<id>, group.<label>.<value> and fleet have"
        ))),
    });
    parsed.collect()
}

/// The parts of as many keys as find room, at least of one. Each takes a row, and a deployment's those that it shows.
fn look_up(fleet: &Fleet, keys: &[ViewKey], skip: u64, mut rows: usize) -> PartsAnswer {
    let mut answer = PartsAnswer { as_of: fleet.as_of(), parts: BTreeMap::new(), gone: Vec::new() };
    for key in keys {
        if rows == 0 {
            break;
        }
        let part = fleet.part(key, skip, rows);
        rows = rows.saturating_sub(1 + part.as_ref().map_or(0, |part| part.rows()));
        match part {
            Some(part) => _ = answer.parts.insert(key.to_string(), part),
            None => answer.gone.push(key.to_string()),
        }
    }
    answer
}

#[cfg(test)]
mod tests {
    use muster_contract::Timestamp;
    use muster_contract::parts::Part;
    use serde_json::json;

    use super::*;
    use crate::store::tests::{fleet, ledger_time};

    fn ask(projection: &Projection, question: &serde_json::Value) -> Result<PartsAnswer, ErrorBody> {
        let bytes = answer(projection, question.to_string().as_bytes())?;
        Ok(serde_json::from_slice(&bytes).unwrap())
    }

    fn projection(created_at: Timestamp) -> Projection {
        let projection = Projection::new(created_at, fleet(3));
        projection.set_caught_up();
        projection
    }

    #[test]
    fn a_missing_view_differs_from_one_without_a_part() {
        let projection = projection(ledger_time());
        let found = ask(&projection, &json!({ "keys": ["fleet", "deployment.nowhere"] })).unwrap();
        assert!(matches!(found.parts["fleet"], Part::TallyPart(_)));
        assert_eq!(found.gone, ["deployment.nowhere"]);
        for (question, says) in [
            (json!({ "keys": ["site.plant7"] }), "'site.plant7' has no parts"),
            (json!({ "keys": ["view.rings"] }), "'view.rings' has no parts"),
            (json!({ "keys": ["fleet", "fleet"], "skip": 3 }), "skip: is of one key alone"),
            (json!({ "keys": vec!["fleet"; PARTS_MAX + 1] }), "65 entries; 64 are allowed"),
            (json!({ "keys": 7 }), "keys"),
            (json!({ "keys": ["fleet"], "atSeq": 1 }), "atSeq: unknown key"),
        ] {
            let error = ask(&projection, &question).unwrap_err();
            assert!(error.message.contains(says), "{question}: {}", error.message);
        }
    }

    #[test]
    fn before_ledger_was_read_to_its_end_there_are_no_parts() {
        let projection = Projection::new(ledger_time(), fleet(1));
        let error = ask(&projection, &json!({ "keys": ["fleet"] })).unwrap_err();
        assert_eq!(error.code, muster_contract::query::ErrorCode::NotReady);
    }
}
