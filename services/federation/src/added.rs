//! The sum of what all hubs answer to one question about status. No IO. A hub that knows nothing of what is asked adds
//! nothing; a sum of some of the others is none.

use bytes::Bytes;
use muster_bus::Fault;
use muster_contract::HubName;
use muster_contract::query::{ErrorBody, ErrorCode};
use muster_contract::question::bad;
use muster_contract::status::StatusAnswer;

/// The hubs' answers as one. Of its page and of the deployment's verdict it says what the first of them says.
///
/// # Errors
/// Nobody knows what is asked about, a hub did not answer, or it would have to look at more than it may at once.
pub fn added(answers: Vec<(HubName, Result<Bytes, Fault>)>) -> Result<StatusAnswer, Fault> {
    let (mut sum, mut absent): (Option<StatusAnswer>, _) = (None, None);
    let several = answers.len() > 1;
    for (hub, answer) in answers {
        let mut answer = match answer {
            Ok(answer) => parsed(&hub, &answer)?,
            Err(fault) if fault.code == ErrorCode::NotFound.number() => {
                absent.get_or_insert(fault);
                continue;
            }
            Err(fault) => return Err(fault),
        };
        if several && let Some(message) = &mut answer.rollup.message {
            // The worst speaks for all, and what it says is true of its own hub.
            *message = format!("at the hub {hub}: {message}");
        }
        match &mut sum {
            None => sum = Some(answer),
            Some(sum) => add(sum, &answer),
        }
    }
    match (sum, absent) {
        (Some(sum), _) => Ok(sum),
        (None, Some(fault)) => Err(fault),
        (None, None) => Err(bad("this is a federation of no hubs".to_owned()).into()),
    }
}

fn parsed(hub: &HubName, answer: &[u8]) -> Result<StatusAnswer, Fault> {
    let answer: StatusAnswer = serde_json::from_slice(answer).map_err(|error| {
        let message = format!("the answer of the hub {hub} cannot be read: {error}");
        Fault::from(ErrorBody { code: ErrorCode::Internal, message })
    })?;
    if answer.whole {
        return Ok(answer);
    }
    let message = format!(
        "the hub {hub} has more standings than one answer looks at, and pages of several hubs do not add up: name a site, \
         fewer filters, or ask each hub itself"
    );
    Err(bad(message).into())
}

fn add(sum: &mut StatusAnswer, other: &StatusAnswer) {
    sum.rollup.merge(&other.rollup);
    sum.total = sum.total.zip(other.total).map(|(one, other)| one + other);
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn hub(name: &str, answer: Result<&Value, ErrorCode>) -> (HubName, Result<Bytes, Fault>) {
        let fault = |code| Fault::from(ErrorBody { code, message: format!("{name} says no") });
        (name.parse().unwrap(), answer.map(|json| json.to_string().into()).map_err(fault))
    }

    fn counted(targets: u64, whole: bool) -> Value {
        json!({
            "asOf": {"ledgerSeq": 7, "at": "2026-11-20T08:00:00Z"}, "whole": whole, "total": targets,
            "rollup": {
                "targets": targets, "known": targets, "counts": {"installed": {"fresh": targets}},
                "kstatus": {"Current": targets}, "deployedCounts": {"Applied": targets},
            },
        })
    }

    #[test]
    fn counts_add_up_and_a_hub_that_knows_nothing_of_it_adds_nothing() {
        let (one, other) = (counted(2, true), counted(3, true));
        let answers = vec![hub("a", Ok(&one)), hub("b", Err(ErrorCode::NotFound)), hub("c", Ok(&other))];
        let sum = serde_json::to_value(added(answers).unwrap()).unwrap();
        let wanted = counted(5, true);
        for part in ["targets", "counts", "kstatus", "deployedCounts"] {
            assert_eq!(sum["rollup"][part], wanted["rollup"][part], "{part}");
        }
        assert_eq!(sum["total"], 5);
    }

    #[test]
    fn a_sum_of_some_is_none() {
        let one = counted(2, true);
        let page = counted(3, false);
        for (answers, code, says) in [
            (vec![hub("a", Ok(&one)), hub("b", Err(ErrorCode::NotReady))], ErrorCode::NotReady, "b says no"),
            (vec![hub("a", Ok(&one)), hub("b", Ok(&page))], ErrorCode::BadRequest, "the hub b has more"),
            (vec![hub("a", Ok(&one)), hub("b", Ok(&json!({})))], ErrorCode::Internal, "the hub b"),
            (
                vec![hub("a", Err(ErrorCode::NotFound)), hub("b", Err(ErrorCode::NotFound))],
                ErrorCode::NotFound,
                "a says no",
            ),
            (vec![], ErrorCode::BadRequest, "no hubs"),
        ] {
            let fault = added(answers).unwrap_err();
            assert_eq!(fault.code, code.number(), "{}", fault.message);
            assert!(fault.message.contains(says), "{}", fault.message);
        }
    }
}
