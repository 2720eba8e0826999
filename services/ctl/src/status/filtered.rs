//! Status after filters, gathered from as many pages as it takes: counts are of everything that passes, lines of as much
//! as was asked for.

use muster_contract::DeploymentId;
use muster_contract::actions::ActionsAnswer;
use muster_contract::query::{Output, PAGE_MAX, Query};
use muster_contract::status::{AppStatus, StatusAnswer, StatusQuery};
use muster_contract::view::{DeploymentView, ErrorCount};
use muster_domain::fold::verdict_of;

use crate::ask::{AskError, Hub, PAGES_MAX, understood};
use crate::config::{Export, StatusArgs};
use crate::error::CtlError;
use crate::render;
use crate::render::emco::Asked;
use crate::render::resource_group::{Group, Spelling};
use crate::session::Session;
use muster_service::error::chain;

/// Bytes of a ResourceGroup where no budget is named: what etcd takes, with room to spare.
const BUDGET_DEFAULT: usize = 1024 * 1024;

/// Status of what passes the filters, in the form that was asked for.
///
/// # Errors
/// When nobody answers, a name is unknown, or settings do not go together.
pub async fn run(
    session: &mut Session<'_>,
    args: &StatusArgs,
    export: Option<Export>,
) -> Result<(), CtlError> {
    let shown = shown(session, args, export).await;
    if export.is_some() {
        // A document of another system has no room for it.
        let lag = session.lag();
        session.terminal.print_note(&lag);
    }
    shown
}

async fn shown(session: &mut Session<'_>, args: &StatusArgs, export: Option<Export>) -> Result<(), CtlError> {
    match export {
        Some(Export::ResourceGroup) => resource_group(session, args, Spelling::Yaml).await,
        Some(Export::ResourceGroupJson) => resource_group(session, args, Spelling::Json).await,
        Some(Export::Emco) => emco(session, args).await,
        None => {
            let answer = gathered(&session.hub, args, args.query()).await?;
            let (frame, then) = (session.frame(), session.then);
            match args.list {
                Some(names) => {
                    let names = render::filtered::names(&answer, names);
                    session.show_own(&names, |names, _| render::filtered::list(names))
                }
                None => session.show_own(&answer, |answer, now| {
                    let causes = render::hearing::lines(&answer.hub, then.unwrap_or(now));
                    causes + &render::filtered::status(answer, args, frame)
                }),
            }
        }
    }
}

/// In EMCO's shape, which needs both axes whichever is asked for.
async fn emco(session: &mut Session<'_>, args: &StatusArgs) -> Result<(), CtlError> {
    let StatusQuery { output, status: axis, .. } = args.query();
    let answer = gathered(&session.hub, args, StatusQuery { status: None, ..args.query() }).await?;
    let of = args.whole_device();
    let mut shape = match args.list {
        Some(names) => render::emco::names(&answer, of, names),
        None => render::emco::status(&answer, of, Asked { output, axis }),
    };
    if let (Some(id), None) = (&args.deployment, args.list) {
        render::emco::states::insert(&mut shape, actions(&session.hub, id, args).await);
    }
    if args.deprecated_type.is_some() {
        render::emco::deprecated::rename(&mut shape);
    }
    session.show_own(&shape, |_, _| String::new())
}

async fn resource_group(
    session: &mut Session<'_>,
    args: &StatusArgs,
    spelling: Spelling,
) -> Result<(), CtlError> {
    let Some(id) = &args.deployment else {
        return Err(CtlError::Usage("a ResourceGroup is of one deployment: name it".to_owned()));
    };
    let budget = args.budget.map_or(BUDGET_DEFAULT, |bytes| bytes as usize);
    let query = StatusQuery { status: None, ..args.query() };
    let text = if args.aggregate {
        let query = StatusQuery { output: Output::Summary, ..query };
        let answer = all(&session.hub, &query, None).await?;
        let (errors, left_out) = errors(&session.hub, id, args).await?;
        Group::of_counts(id, &answer, errors.as_deref(), left_out).within(budget, spelling)
    } else {
        let answer = all(&session.hub, &query, None).await?;
        let group = match query.device.as_slice() {
            [path] => Group::of_device(id, &path.0, &answer),
            _ => Group::of_fleet(id, &answer),
        };
        group.within(budget, spelling)
    };
    match spelling {
        Spelling::Json => session.terminal.print_json(&text)?,
        Spelling::Yaml => session.terminal.print_document(&text)?,
    }
    Ok(())
}

/// The errors of a deployment by frequency, and how many codes are left out. The view counts them over all targets, so
/// of a part nobody has counted them.
async fn errors(
    hub: &Hub,
    id: &DeploymentId,
    args: &StatusArgs,
) -> Result<(Option<Vec<ErrorCount>>, u64), AskError> {
    if args.is_filtered() {
        return Ok((None, 0));
    }
    let answer = hub.query("deployment", &view_query(id, args)).await?;
    let view: DeploymentView = understood(&answer["view"])?;
    Ok((Some(view.errors), view.omitted.errors))
}

fn view_query(id: &DeploymentId, args: &StatusArgs) -> Query {
    Query { id: Some(id.clone()), point: args.point.into(), ..Query::default() }
}

/// The actions on a deployment as a whole, or the reason why there are none; the status is useful without them.
async fn actions(hub: &Hub, id: &DeploymentId, args: &StatusArgs) -> Result<ActionsAnswer, String> {
    let answer = hub.query("actions", &view_query(id, args)).await;
    answer.and_then(|answer| understood(&answer)).map_err(|error| chain(&error))
}

/// The lines that pass the filters: all of them, or at most `--limit`.
async fn gathered(hub: &Hub, args: &StatusArgs, query: StatusQuery) -> Result<StatusAnswer, AskError> {
    let most = args.limit.map(usize::from);
    let mut answer = all(hub, &query, most).await?;
    if is_part(&answer, &query) {
        // An application's counts are of the lines that were gathered, beside which stand those of all.
        answer.apps.clear();
    }
    // The counts say what passes, however few lines are shown of it, and from wherever.
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

/// The pages of an answer as one, up to so many lines.
pub(super) async fn all(
    hub: &Hub,
    query: &StatusQuery,
    most: Option<usize>,
) -> Result<StatusAnswer, AskError> {
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
