//! Rollouts: waves as bands of what is confirmed and what is possible, why the next step waits, and the decisions of people.

use axum::body::Body;
use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{RawPathParams, RawQuery, Request, State};
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};
use muster_client::rollout::{RolloutsThen, UnknownThen, held_changes, rollouts_at, rollouts_of};
use muster_contract::rollout::{HeldChange, RolloutPhase, RolloutRecord, Wave};
use muster_contract::{DeploymentId, Timestamp};
use muster_domain::rollout::{RolloutProgress, Step, WaveState};
use serde_json::{Map, Value, json};

use super::command::Command;
use super::frame::{Frame, ProblemPage};
use super::parts::{ago, band, cli, count, encoded, none, number, panel, second, short};
use super::side::deployments;
use crate::login::current;
use crate::people::People;
use crate::people::api::handler_helpers::ungoverned;
use crate::people::api::params::{Kind, Param, Values, param};
use crate::people::api::rollouts::read_then;
use crate::people::api::{act, body};
use crate::problem::Problem;

/// Decisions shown of a rollout.
const DECISIONS_MAX: usize = 30;
/// Rollouts shown with their waves on the page of all.
const ROLLOUTS_MAX: usize = 20;

const PARAMS: [Param; 1] = [param("at", Kind::Time, "As known at this time")];

type Path = Result<RawPathParams, RawPathParamsRejection>;

/// The names in an address.
pub(super) fn names(path: Path) -> Result<Map<String, Value>, Problem> {
    let params = path.map_err(|error| Problem::new(StatusCode::BAD_REQUEST, error.to_string()))?;
    Ok(params.iter().map(|(name, value)| (name.to_owned(), json!(value))).collect())
}

/// The deployment in an address.
pub(super) fn deployment(names: &Map<String, Value>) -> Result<DeploymentId, Problem> {
    let id = names.get("id").and_then(Value::as_str).unwrap_or_default();
    id.parse().map_err(|error: muster_contract::LabelError| Problem::field("id", error.to_string()))
}

/// All rollouts under way, and all held changes.
pub(super) async fn list(State(people): State<People>) -> Result<Response, ProblemPage> {
    let now = people.clock.now();
    let held = held_changes(&people.hub).await?;
    let first = deployments(&held).into_iter().take(ROLLOUTS_MAX).cloned();
    let all = rollouts_of(&people.hub, first, now).await?;
    let content = html! {
        div.truth { h1 { "Rollouts" } div.meta { (cli("muster rollout list")) } }
        div.column {
            (panel(html! { "Waves" }, html! { (number(all.len() as u64)) }, None, html! {
                @if all.is_empty() { (none("No change waits for its release, and no rollout is under way.")) }
                ul.rows { @for (at, progress) in all.iter().enumerate() { li { (summary(progress, at, now)) } } }
            }))
            @if !held.held.is_empty() {
                (panel(html! { "Held changes" }, html! { (number(held.held.len() as u64 + held.omitted)) }, None, html! {
                    ul.rows { @for change in &held.held { li { (self::held(change, now)) } } }
                }))
            }
        }
    };
    Ok(Frame::live("Rollouts", "Rollouts").answer(&people, &content))
}

fn held(change: &HeldChange, now: Timestamp) -> Markup {
    html! {
        div.head {
            a href={ "/rollouts/" (encoded(change.deployment.as_str())) } { (change.deployment) }
            span.soft { (count(change.devices.count, "device")) ", held since " (ago(change.since, now)) }
        }
        p.more { "by " code { (change.rollout) } @if let Some(digest) = &change.digest { " \u{b7} " code { (short(&digest.to_string())) } } }
    }
}

/// A rollout in a list: where it stands, its waves, why it waits, and the decisions that are possible.
pub(super) fn summary(progress: &RolloutProgress, at: usize, now: Timestamp) -> Markup {
    html! { (state(progress, at, now)) (acts(progress)) }
}

/// The same without the decisions that are possible.
fn state(progress: &RolloutProgress, at: usize, now: Timestamp) -> Markup {
    let address = format!("/rollouts/{}", encoded(progress.deployment.as_str()));
    html! {
        div.head { a href=(address) { strong { (progress.deployment) } } (phase(progress.phase())) }
        p.more { (progress.why()) }
        @if let Some(bound) = progress.bound() { p.more { (bound) } }
        @for (index, wave) in progress.state.waves.iter().enumerate() { (self::wave(wave, &format!("r{at}w{index}"))) }
        @if let Some(last) = progress.record.as_ref().and_then(RolloutRecord::last) {
            p.more { "last decision: " (last.verb.as_str()) ", " (ago(last.at, now)) }
        }
    }
}

fn phase(phase: RolloutPhase) -> Markup {
    let (sign, word, tint) = match phase {
        RolloutPhase::Running => ("\u{2192}", "running", "work"),
        RolloutPhase::Paused => ("\u{2016}", "paused", "old"),
        RolloutPhase::Stopped => ("\u{25a0}", "stopped", "bad"),
        RolloutPhase::RolledBack => ("\u{21ba}", "rolled back", "bad"),
        RolloutPhase::Aborted => ("\u{2715}", "aborted", "bad"),
        RolloutPhase::Succeeded => ("\u{2713}", "succeeded", "good"),
        RolloutPhase::Superseded => ("\u{2212}", "superseded", "wait"),
    };
    html! { span.tag.(tint) { span aria-hidden="true" { (sign) } (word) } }
}

/// One wave: the band of what is confirmed and possible, in numbers too.
fn wave(wave: &WaveState, id: &str) -> Markup {
    let tally = wave.tally;
    let possible = tally.released.saturating_sub(tally.confirmed + tally.failed);
    html! {
        div {
            p.more {
                strong { "wave " (wave.name) } ": gate " (wave.gate)
                @if let Some(approvals) = wave.approvals { ", " (approvals.given) " of " (approvals.needed) " approvals" }
            }
            (band(tally.confirmed, tally.failed, tally.released, tally.targets, id))
            div.legend {
                span { span.key.good aria-hidden="true" {} b { (number(tally.confirmed)) } " confirmed" }
                @if possible > 0 { span { span.key.possible aria-hidden="true" {} b { (number(possible)) } " possible" } }
                @if tally.failed > 0 { span { span.key.bad aria-hidden="true" {} b { (number(tally.failed)) } " failed" } }
                @if tally.debt > 0 { span { b { (number(tally.debt)) } " not heard, left out" } }
                span { "of " b { (number(tally.targets)) } }
            }
        }
    }
}

/// The decisions that a rollout's phase and the reader's role allow, as forms that work without script.
fn acts(progress: &RolloutProgress) -> Markup {
    let phase = progress.phase();
    let waiting = waiting(progress).filter(|_| phase.is_running() && current::offers_approvals());
    let verbs = if current::offers_changes() { verbs(phase) } else { &[] };
    let is_done = matches!(progress.state.step, Step::Done) && progress.record.is_none();
    html! {
        @if !is_done && (waiting.is_some() || !verbs.is_empty()) {
            div.acts {
                @if let Some(wave) = waiting {
                    (act_form(progress, "approve", &format!("Approve wave {}", wave.name), "first", Some(&wave.name)))
                    (act_form(progress, "reject", &format!("Reject wave {}", wave.name), "danger", Some(&wave.name)))
                }
                @for (verb, words, look) in verbs { (act_form(progress, verb, words, look, None)) }
            }
        }
    }
}

/// The first wave that waits for further approvals.
fn waiting(progress: &RolloutProgress) -> Option<&WaveState> {
    let record = progress.record.as_ref();
    let mut waves = progress.state.waves.iter().zip(&progress.policy.waves);
    let waits = |(state, wave): &(&WaveState, &Wave)| {
        state.approvals.is_some_and(|count| count.given < count.needed) && wave.waits_for_approval(record)
    };
    waves.find(waits).map(|(state, _)| state)
}

/// An operator's decisions in a phase: verb, words and look of each button.
const fn verbs(phase: RolloutPhase) -> &'static [(&'static str, &'static str, &'static str)] {
    match phase {
        RolloutPhase::Running => {
            &[("pause", "Pause", ""), ("stop", "Stop", "danger"), ("rollback", "Roll back", "danger")]
        }
        RolloutPhase::Paused => {
            &[("resume", "Resume", "first"), ("stop", "Stop", "danger"), ("rollback", "Roll back", "danger")]
        }
        RolloutPhase::Stopped | RolloutPhase::Aborted => {
            &[("retry", "Retry", ""), ("rollback", "Roll back", "danger")]
        }
        RolloutPhase::RolledBack => &[("retry", "Retry", "")],
        RolloutPhase::Succeeded => &[("rollback", "Roll back", "danger")],
        RolloutPhase::Superseded => &[],
    }
}

fn act_form(progress: &RolloutProgress, verb: &str, words: &str, look: &str, wave: Option<&str>) -> Markup {
    let id = &progress.deployment;
    let of = wave.map_or("", |_| "of ");
    let question = (look == "danger").then(|| format!("{words} {of}{id}?"));
    html! {
        form method="post" action={ "/rollouts/" (encoded(id.as_str())) "/" (verb) } {
            input type="hidden" name="file" value=(progress.file);
            @if let Some(wave) = wave { input type="hidden" name="wave" value=(wave); }
            button.act.(look) type="submit" data-confirm=[question] aria-label={ (words) ": " (id) } { (words) }
        }
    }
}

/// The rollouts of one deployment, with their decisions; of the past without buttons.
pub(super) async fn page(
    State(people): State<People>,
    path: Path,
    RawQuery(query): RawQuery,
) -> Result<Response, ProblemPage> {
    let id = deployment(&names(path)?)?;
    let values = Values::read(query.as_deref().unwrap_or_default(), &PARAMS)?;
    let now = people.clock.now();
    let then = values.time("at", now)?;
    let panels = match then {
        Some(at) => past(&read_then(&people, &id, at).await?),
        None => present(&rollouts_at(&people.hub, &id, now).await?, now).ok_or_else(|| ungoverned(&id))?,
    };
    let content = html! {
        p.crumbs { a href="/rollouts" { "Rollouts" } " / " a href={ "/deployments/" (encoded(id.as_str())) } { (id) } }
        div.truth { h1 { "Rollout of " (id) } div.meta { (cli(Command::from("muster rollout show").with(&id))) } }
        div.column { (panels) }
    };
    Ok(Frame::live(format!("Rollout of {id}"), "Rollouts").at(then).answer(&people, &content))
}

/// The rollouts as they stand now; `None` if no rollout governs the deployment.
fn present(rollouts: &[RolloutProgress], now: Timestamp) -> Option<Markup> {
    let panels = html! {
        @for (at, progress) in rollouts.iter().enumerate() { (rollout(progress, &summary(progress, at, now))) }
    };
    (!rollouts.is_empty()).then_some(panels)
}

/// The rollouts as they stood at a time, without buttons.
fn past(found: &RolloutsThen) -> Markup {
    html! {
        @if found.rollouts.is_empty() && found.unknown.is_empty() {
            (none("By then no decision about a rollout was recorded, or a newer rollout had superseded it."))
        }
        @for (at, progress) in found.rollouts.iter().enumerate() { (rollout(progress, &state(progress, at, found.at))) }
        @for other in &found.unknown { (unknown(other)) }
    }
}

/// A rollout whose waves cannot be told any more.
fn unknown(other: &UnknownThen) -> Markup {
    panel(
        html! { code { (other.rollout) } },
        html! { "content " code { (short(&other.digest.to_string())) } },
        None,
        html! {
            div.body { (phase(other.phase)) p.soft { "Its waves are unknown: " (other.reason) "." } }
        },
    )
}

/// A rollout with its decisions.
fn rollout(progress: &RolloutProgress, content: &Markup) -> Markup {
    let panel = panel(
        html! { code { (progress.file) } },
        html! { (count(progress.targets.len() as u64, "target")) ", content " code { (short(&progress.digest.to_string())) }
        ", commit " code { (short(&progress.revision)) } ", as of ledger " (number(progress.ledger_seq)) },
        None,
        html! { div.body { (content) } },
    );
    html! { (panel) (decisions(progress, &progress.deployment)) }
}

fn decisions(progress: &RolloutProgress, id: &DeploymentId) -> Markup {
    let Some(record) = &progress.record else { return html! {} };
    let total = record.decisions.len();
    let rows = html! {
        ul.rows {
            @for decision in record.decisions.iter().rev().take(DECISIONS_MAX) {
                li {
                    div.head {
                        strong { (decision.verb.as_str()) @if let Some(wave) = &decision.wave { " " (wave) } }
                        span.soft { (second(decision.at)) }
                    }
                    p.more {
                        @match &decision.requested_by { Some(by) => { "by " (by.label()) }, None => "by an unnamed requester (the hub has no accounts)" }
                        @if let Some(reason) = &decision.reason { ": " (reason) }
                    }
                }
            }
        }
    };
    panel(
        html! { "Decisions" },
        html! { (number(total as u64)) },
        Some(Command::from("muster rollout history").with(id)),
        rows,
    )
}

/// A decision from a form; afterwards the browser is sent to the rollout.
pub(super) async fn act(
    State(people): State<People>,
    path: Path,
    request: Request<Body>,
) -> Result<Response, ProblemPage> {
    let (names, people) = (names(path)?, people.acting_for(request.extensions()));
    let fields = body::fields(request, act::DECISION).await?;
    let decided = act::decision(&people, &names, &fields, Vec::new()).await?;
    let refused: Vec<&str> =
        decided.as_array().into_iter().flatten().filter_map(|one| one["refused"].as_str()).collect();
    if !refused.is_empty() {
        return Err(Problem::new(StatusCode::CONFLICT, refused.join("; ")).into());
    }
    let id = deployment(&names)?;
    let address = format!("/rollouts/{}", encoded(id.as_str()));
    Ok((StatusCode::SEE_OTHER, [(LOCATION, address)]).into_response())
}

#[cfg(test)]
mod tests {
    use muster_contract::canonical::Digest;

    use super::*;

    #[test]
    fn a_past_rollout_without_known_waves_says_why_and_has_no_button() {
        let unknown = UnknownThen {
            digest: Digest::of_bytes(b"v2"),
            rollout: "fleet/rollout.yaml".to_owned(),
            phase: RolloutPhase::Paused,
            reason: "no decision up to then names its commit".to_owned(),
        };
        let mut found = RolloutsThen {
            deployment: "web".parse().unwrap(),
            at: "2026-11-20T08:00:00Z".parse().unwrap(),
            ledger_seq: 4711,
            rollouts: Vec::new(),
            unknown: vec![unknown],
        };
        let shown = past(&found).into_string();
        assert!(shown.contains("unknown: no decision up to then") && shown.contains("paused"), "{shown}");
        assert!(!shown.contains("<button") && !shown.contains("no decision about"), "{shown}");
        found.unknown.clear();
        assert!(past(&found).into_string().contains("no decision about a rollout was recorded"));
    }
}
