//! `muster status` with filters or in the format of another system.

use muster_client::emco::plan::PlanGroup;
use muster_client::emco::{self, Asked};
use muster_client::resource_group::Spelling;
use muster_client::resource_group::read::{BUDGET_DEFAULT, Extent, resource_group};
use muster_client::status::gathered;
use muster_contract::DeploymentId;
use muster_contract::actions::ActionsAnswer;
use muster_contract::history::Point;
use muster_contract::query::Query;
use muster_contract::status::StatusQuery;

use crate::ask::{Hub, understood};
use crate::config::{Export, StatusArgs};
use crate::error::CtlError;
use crate::names::ShownNames;
use crate::render;
use crate::session::Session;
use muster_service::error::chain;
use serde_json::Value;

/// Status of what passes the filters, in the form that was asked for.
///
/// # Errors
/// When nobody answers, a name is unknown, or settings do not go together.
pub(crate) async fn run(
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
        Some(Export::ResourceGroup) => show_group(session, args, Spelling::Yaml).await,
        Some(Export::ResourceGroupJson) => show_group(session, args, Spelling::Json).await,
        Some(Export::Emco) => show_emco(session, args).await,
        None => {
            let answer = gathered(&session.hub, args.query(), most(args)).await?;
            let (frame, then) = (session.frame(), session.then);
            match args.list {
                Some(names) => {
                    let names = render::filtered::names(&answer, names);
                    session.show_own(&names, |names, _| render::filtered::list(names))
                }
                None => {
                    let ids = answer.targets.iter().map(|target| &target.deployment);
                    let names = ShownNames::of(session, ids.chain(&answer.deployment)).await;
                    session.show_own(&answer, |answer, now| {
                        let mut shown = answer.clone();
                        shown.targets.iter_mut().for_each(|target| names.rename(&mut target.deployment));
                        shown.deployment.iter_mut().for_each(|id| names.rename(id));
                        let rollups = shown.apps.iter_mut().map(|app| &mut app.rollup);
                        let words = rollups.chain([&mut shown.rollup]).flat_map(|it| &mut it.message);
                        words.for_each(|words| names.rename_in(words));
                        let causes = render::hearing::lines(&shown.hub, then.unwrap_or(now));
                        causes + &render::filtered::status(&shown, args, frame)
                    })
                }
            }
        }
    }
}

/// Most lines that are asked for.
fn most(args: &StatusArgs) -> Option<usize> {
    args.limit.map(usize::from)
}

/// In EMCO's shape, which needs both axes whichever is asked for.
async fn show_emco(session: &mut Session<'_>, args: &StatusArgs) -> Result<(), CtlError> {
    let StatusQuery { output, status: axis, .. } = args.query();
    let question = StatusQuery { status: None, ..args.query() };
    let answer = match (gathered(&session.hub, question, most(args)).await, &args.deployment) {
        (Err(error), Some(id)) if error.not_found().is_some() => {
            let Some(shape) = plan_in_emco(session, id, args).await? else { return Err(error.into()) };
            return session.show_own(&shape, |_, _| String::new());
        }
        (answer, _) => answer?,
    };
    let of = args.subject();
    if args.deprecated_type.is_some() && matches!(of, emco::Subject::Site(_)) {
        let detail = "--type: EMCO has no older names for a site (a logical cloud); leave it out";
        return Err(CtlError::Usage(detail.to_owned()));
    }
    let mut shape = match args.list {
        Some(names) => emco::names(&answer, of, names.into()),
        None => emco::status(&answer, of, Asked { output, axis }),
    };
    if let (Some(id), None) = (&args.deployment, args.list) {
        emco::states::insert(&mut shape, actions(&session.hub, id, args).await);
    }
    if args.deprecated_type.is_some() {
        emco::deprecated::rename(&mut shape);
    }
    session.show_own(&shape, |_, _| String::new())
}

/// The status of a plan in EMCO's shape; none if there is no such plan, or a deployment has its name.
async fn plan_in_emco(
    session: &Session<'_>,
    id: &DeploymentId,
    args: &StatusArgs,
) -> Result<Option<Value>, CtlError> {
    let query = args.query();
    if query.point != Point::default() {
        return Ok(None);
    }
    let Some(plan) = PlanGroup::find(&session.hub, id.as_str()).await? else { return Ok(None) };
    let asked = Asked { output: query.output, axis: query.status };
    let status = plan.status(&session.hub, query, most(args)).await?;
    let mut shape = match args.list {
        Some(names) => plan.names(status.as_ref(), names.into()),
        None => plan.shape(&session.hub, status.as_ref(), asked, |error| chain(error)).await,
    };
    if args.deprecated_type.is_some() {
        emco::deprecated::rename(&mut shape);
    }
    Ok(Some(shape))
}

async fn show_group(
    session: &mut Session<'_>,
    args: &StatusArgs,
    spelling: Spelling,
) -> Result<(), CtlError> {
    let Some(id) = &args.deployment else {
        return Err(CtlError::Usage("a ResourceGroup is of one deployment: name it".to_owned()));
    };
    let budget = args.budget.map_or(BUDGET_DEFAULT, |bytes| bytes as usize);
    let extent = Extent { is_aggregate: args.aggregate, budget };
    let text = resource_group(&session.hub, id, args.query(), extent, spelling).await?;
    match spelling {
        Spelling::Json => session.terminal.print_json(&text)?,
        Spelling::Yaml => session.terminal.print_document(&text)?,
    }
    Ok(())
}

fn view_query(id: &DeploymentId, args: &StatusArgs) -> Query {
    Query { id: Some(id.clone()), point: args.point.into(), ..Query::default() }
}

/// The actions on a deployment as a whole, or the reason why there are none; the status is useful without them.
async fn actions(hub: &Hub, id: &DeploymentId, args: &StatusArgs) -> Result<ActionsAnswer, String> {
    let answer = hub.query("actions", &view_query(id, args)).await;
    answer.and_then(|answer| understood(&answer)).map_err(|error| chain(&error))
}
