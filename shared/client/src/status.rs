//! Pages of `muster.query.status` as one answer: counts are of everything that passes the filters, lines of as much as is
//! asked for.

use muster_contract::query::{Output, PAGE_MAX};
use muster_contract::status::{AppStatus, StatusAnswer, StatusQuery};
use muster_domain::fold::verdict_of;

use crate::ask::{AskError, Hub, PAGES_MAX};

/// The lines that pass the filters, at most `most`, with counts of everything that passes.
///
/// # Errors
/// No service answers, it refuses the question, or the list does not end.
pub async fn gathered(hub: &Hub, query: StatusQuery, most: Option<usize>) -> Result<StatusAnswer, AskError> {
    let mut answer = all(hub, &query, most).await?;
    if is_part(&answer, &query) {
        // An application's counts are of the lines that were gathered, beside which stand those of all.
        answer.apps.clear();
    }
    // The counts are of everything that passes, also if few lines are shown.
    if !answer.whole || query.after.is_some() {
        let counts = StatusQuery { output: Output::Summary, after: None, ..query };
        let counts = all(hub, &counts, None).await?;
        (answer.verdict, answer.rollup) = (counts.verdict, counts.rollup);
        answer.whole = true;
        answer.total = counts.total;
    }
    Ok(answer)
}

/// Whether there are lines that were not gathered.
const fn is_part(answer: &StatusAnswer, query: &StatusQuery) -> bool {
    answer.next.is_some() || query.after.is_some()
}

/// The pages of an answer as one, up to `most` lines.
///
/// # Errors
/// As [`gathered`].
pub async fn all(hub: &Hub, query: &StatusQuery, most: Option<usize>) -> Result<StatusAnswer, AskError> {
    let room = |lines: usize| most.map_or(PAGE_MAX, |most| most.saturating_sub(lines).min(PAGE_MAX));
    let mut query = StatusQuery { limit: Some(room(0)), ..query.clone() };
    let mut sum = hub.status(&query).await?;
    for _ in 0..PAGES_MAX {
        let full = most.is_some_and(|most| sum.targets.len() >= most);
        let Some(next) = sum.next.clone().filter(|_| !full) else { return Ok(sum) };
        if query.after.as_ref() == Some(&next) {
            break;
        }
        query.after = Some(next);
        query.limit = Some(room(sum.targets.len()));
        let page = hub.status(&query).await?;
        add(&mut sum, page);
    }
    Err(AskError::Endless { what: "targets" })
}

/// Adds the page that follows. The sum says of itself that it has read as far as its first page has.
fn add(sum: &mut StatusAnswer, page: StatusAnswer) {
    if !sum.whole {
        sum.rollup.merge(&page.rollup);
        sum.whole = page.next.is_none();
        let rollup = &sum.rollup;
        sum.verdict = sum.deployment.as_ref().filter(|_| sum.whole).and_then(|_| verdict_of(rollup));
        sum.total = sum.whole.then_some(rollup.targets + rollup.leaving + rollup.superseded);
    }
    for AppStatus { app, rollup } in page.apps {
        match sum.apps.iter_mut().find(|held| held.app == app) {
            Some(held) => held.rollup.merge(&rollup),
            None => sum.apps.push(AppStatus { app, rollup }),
        }
    }
    sum.targets.extend(page.targets);
    sum.manifests.extend(page.manifests);
    sum.manifests_left_out += page.manifests_left_out;
    sum.next = page.next;
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use muster_contract::Timestamp;
    use muster_contract::manifest::Manifest;
    use muster_contract::status::Rollup;
    use muster_contract::view::AsOf;

    use super::*;

    fn page(targets: u64, whole: bool, next: Option<&str>) -> StatusAnswer {
        StatusAnswer {
            as_of: AsOf { ledger_seq: 1, at: Timestamp::UNIX_EPOCH },
            deployment: None,
            generation: None,
            verdict: None,
            whole,
            rollup: Rollup { targets, ..Rollup::default() },
            hub: Default::default(),
            apps: vec![AppStatus {
                app: Some("a".to_owned()),
                rollup: Rollup { targets, ..Rollup::default() },
            }],
            targets: Vec::new(),
            manifests: BTreeMap::new(),
            manifests_left_out: 0,
            total: None,
            next: next.map(str::to_owned),
        }
    }

    #[test]
    fn lines_before_and_behind_those_gathered_make_them_a_part() {
        let (all, after) =
            (StatusQuery::default(), StatusQuery { after: Some("a/b".to_owned()), ..StatusQuery::default() });
        assert!(!is_part(&page(3, true, None), &all));
        // The counts may be whole where the lines are not.
        assert!(is_part(&page(3, true, Some("a/b")), &all));
        assert!(is_part(&page(3, false, None), &after));
    }

    #[test]
    fn what_shall_run_is_gathered_of_all_pages_and_so_is_what_is_left_out() {
        let manifest = |id: &str| -> Manifest {
            let profile = serde_json::json!({"type": "simulated", "components": [{"name": "main"}]});
            let manifest = serde_json::json!({"id": id, "name": id, "applicationId": id, "profile": profile});
            serde_json::from_value(manifest).unwrap()
        };
        let of = |ids: &[&str], left_out: u64| {
            let manifests = ids.iter().map(|id| manifest(id)).map(|it| (it.digest(), it)).collect();
            StatusAnswer { manifests, manifests_left_out: left_out, ..page(1, true, None) }
        };
        let mut sum = of(&["web", "db"], 1);
        add(&mut sum, of(&["web", "log"], 2));
        assert_eq!((sum.manifests.len(), sum.manifests_left_out), (3, 3));
    }

    #[test]
    fn counts_of_pages_add_up_and_whole_ones_are_taken_once() {
        let mut sum = page(3, false, Some("a/b"));
        add(&mut sum, page(2, false, Some("a/c")));
        assert_eq!((sum.rollup.targets, sum.whole, sum.total), (5, false, None));
        add(&mut sum, page(1, false, None));
        assert_eq!((sum.rollup.targets, sum.whole, sum.total), (6, true, Some(6)));
        assert_eq!((sum.apps.len(), sum.apps[0].rollup.targets), (1, 6));
        let mut whole = page(9, true, Some("a/b"));
        add(&mut whole, page(9, true, None));
        assert_eq!(whole.rollup.targets, 9);
    }
}
