//! The quarantine: rejected reports by reason, the newest first, with requeue and drop for each.

use axum::body::Body;
use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{RawPathParams, RawQuery, Request, State};
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};
use muster_client::quarantine::{self, List};
use muster_contract::Timestamp;
use muster_contract::quarantine::HeldReport;

use super::frame::{Frame, ProblemPage};
use super::parts::{ago, cli, encoded, none, number, panel};
use super::rollout::names;
use crate::people::People;
use crate::people::api::filters::SELECT;
use crate::people::api::handler_helpers::selection;
use crate::people::api::params::Values;
use crate::people::api::{act, body};
use crate::problem::Problem;

/// Reports shown.
const ROWS_MAX: usize = 100;

/// The rejected reports.
pub(super) async fn page(
    State(people): State<People>,
    RawQuery(query): RawQuery,
) -> Result<Response, ProblemPage> {
    let values = Values::read(query.as_deref().unwrap_or_default(), SELECT)?;
    let now = people.clock.now();
    let list = quarantine::list(&people.hub, &selection(&values, now)?, ROWS_MAX, false).await?;
    let content = html! {
        div.truth {
            h1 { "Quarantine" }
            p.line {
                (number(list.held)) " rejected reports wait for a decision; " (number(list.refused)) " more stay on their devices, because QUARANTINE had no room. "
                "Settled so far: " (number(list.settled.accepted)) " accepted, " (number(list.settled.dropped)) " dropped, " (number(list.settled.expired)) " expired."
            }
            div.meta { (cli("muster quarantine list")) }
        }
        div.columns {
            div.column { (reports(&list, now)) }
            div.column {
                (panel(html! { "By reason" }, html! {}, None, html! {
                    @if list.reasons.is_empty() { (none("None.")) }
                    ul.rows { @for (code, count) in &list.reasons {
                        li.head { a href={ "?code=" (code.as_str()) } { (code.as_str()) } span.num { (number(*count)) } }
                    } }
                }))
                (panel(html! { "Kept by devices" }, html! { (number(list.refused_devices.len() as u64)) }, None, html! {
                    @if list.refused_devices.is_empty() { (none("No device keeps a report for lack of room.")) }
                    ul.rows { @for device in list.refused_devices.iter().take(ROWS_MAX) {
                        li { a href={ "/devices/" (encoded(device.device.site.as_str())) "/" (encoded(device.device.device.as_str())) } { (device.device) } }
                    } }
                }))
            }
        }
    };
    Ok(Frame::live("Quarantine", "Quarantine").answer(&people, &content))
}

fn reports(list: &List, now: Timestamp) -> Markup {
    let rows = html! {
        @if list.reports.is_empty() { (none("No report is in quarantine.")) }
        ul.rows { @for held in list.reports.iter().rev() { li { (report(held, now)) } } }
        @if list.before > 0 { p.note.top-line { (number(list.before)) " older ones are not shown." } }
    };
    panel(html! { "Rejected reports, the newest first" }, html! { (number(list.held)) }, None, rows)
}

fn report(held: &HeldReport, now: Timestamp) -> Markup {
    html! {
        div.head {
            span {
                code { (held.quarantine_seq) } " "
                @match &held.device {
                    Some(key) => a href={ "/devices/" (encoded(key.site.as_str())) "/" (encoded(key.device.as_str())) } { (key) },
                    None => "a sender whose name is no identifier",
                }
            }
            span.soft { (held.report.code.as_str()) ", " (ago(held.report.received_at, now)) }
        }
        p.more { (held.report.reason) }
        div.acts {
            @for (verb, words, look) in [("requeue", "Requeue", ""), ("drop", "Drop", "danger")] {
                form method="post" action={ "/quarantine/" (verb) } {
                    input type="hidden" name="quarantineSeq" value=(held.quarantine_seq);
                    button.act.(look) type="submit" data-confirm=[(verb == "drop").then(|| format!("Drop report {}?", held.quarantine_seq))]
                        aria-label={ (words) " report " (held.quarantine_seq) } { (words) }
                }
            }
        }
    }
}

/// A verdict from a form; afterwards the browser is sent to the list.
pub(super) async fn act(
    State(people): State<People>,
    path: Result<RawPathParams, RawPathParamsRejection>,
    request: Request<Body>,
) -> Result<Response, ProblemPage> {
    let (names, people) = (names(path)?, people.acting_for(request.extensions()));
    let fields = body::fields(request, &[SELECT, act::JUDGEMENT].concat()).await?;
    let judgements = act::judgement(&people, &names, &fields).await?;
    let refused: Vec<&str> =
        judgements.messages.iter().filter_map(|message| message.refused.as_deref()).collect();
    if !refused.is_empty() {
        return Err(Problem::new(StatusCode::CONFLICT, refused.join("; ")).into());
    }
    Ok((StatusCode::SEE_OTHER, [(LOCATION, "/quarantine")]).into_response())
}
