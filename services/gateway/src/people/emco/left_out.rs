//! Cuts answers that have more targets than one answer of EMCO takes: counts the targets that are left out, and removes a device that
//! would be shown in part.

use muster_client::emco::Subject;
use muster_contract::status::StatusAnswer;
use serde_json::{Value, json};

/// Adds the number of targets that are not shown. Each target of a deployment is a cluster.
pub(super) fn add_left_out(shape: &mut Value, answer: &StatusAnswer, of: Subject<'_>) {
    let shown = answer.targets.len() as u64;
    let left_out = answer.total.unwrap_or(shown).saturating_sub(shown);
    if left_out > 0 {
        let name = if of == Subject::Deployment { "clustersLeftOut" } else { "targetsLeftOut" };
        shape[name] = json!(left_out);
    }
}

/// Removes the last device from an answer whose list goes on: some of its targets may be on the next page. A device that fills the
/// answer alone stays, in part.
pub(super) fn drop_cut_device(answer: &mut StatusAnswer) {
    if answer.next.is_some()
        && let Some(last) = answer.targets.last().map(|target| target.key.clone())
        && answer.targets.first().is_some_and(|first| first.key != last)
    {
        answer.targets.retain(|target| target.key != last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_shown_as_a_whole_or_not_at_all() {
        let example = include_bytes!("../../../../../schemas/examples/good/StatusAnswer.four-targets.json");
        let whole: StatusAnswer = serde_json::from_slice(example).unwrap();
        let mut answer = StatusAnswer { next: None, total: None, ..whole.clone() };
        drop_cut_device(&mut answer);
        assert_eq!(answer.targets, whole.targets, "nothing is cut");
        let last = whole.targets.last().unwrap().key.clone();
        (answer.next, answer.total) = (Some(last.to_string()), Some(whole.targets.len() as u64 + 1));
        drop_cut_device(&mut answer);
        assert!(answer.targets.iter().all(|target| target.key != last));
        let mut shape = json!({});
        add_left_out(&mut shape, &answer, Subject::Site(&last.site));
        assert_eq!(shape["targetsLeftOut"], whole.targets.len() as u64 + 1 - answer.targets.len() as u64);
    }
}
