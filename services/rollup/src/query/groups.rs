//! Questions about groups and defined views: `muster.query.{labels,groups,group,views,view}`.

use std::fmt::Display;
use std::str::FromStr;

use bytes::Bytes;
use muster_contract::defined::DefinedView;
use muster_contract::groups::{GroupQuery, GroupView, GroupsAnswer, LabelsAnswer, ViewsAnswer};
use muster_contract::query::{ErrorBody, ErrorCode, PAGE_DEFAULT, PAGE_MAX};
use muster_contract::{DeploymentId, LabelKey, LabelValue, ViewName};
use muster_domain::fold::{Fleet, NoGroups, Page, Shown, Unsigned};
use serde::Serialize;

use super::{ANSWER_BYTES_MAX, bad, caught_up, found, json, named};
use crate::present::Present;

/// The last tokens of their subjects.
pub(super) const ENDPOINTS: [&str; 5] = ["labels", "groups", "group", "views", "view"];

/// The answer with as many rows as were asked for, or as many as fit into a message.
pub(super) fn answer(present: &Present, endpoint: &str, question: &[u8]) -> Result<Bytes, ErrorBody> {
    let query = understand(question)?;
    let mut limit = query.limit.unwrap_or(PAGE_DEFAULT);
    loop {
        // Written when the fold goes on.
        let answer = json(present.look(|now| look_up(caught_up(now)?, endpoint, &query, limit))?.sign())?;
        if answer.len() <= ANSWER_BYTES_MAX {
            return Ok(answer.into());
        }
        if limit == 1 {
            let message =
                format!("the answer has {} bytes, {ANSWER_BYTES_MAX} fit into a message", answer.len());
            return Err(ErrorBody { code: ErrorCode::Internal, message });
        }
        // Rows are of about the same size.
        limit = (limit * ANSWER_BYTES_MAX / answer.len() * 9 / 10).clamp(1, limit - 1);
    }
}

/// An empty question asks for everything.
fn understand(question: &[u8]) -> Result<GroupQuery, ErrorBody> {
    if question.is_empty() {
        return Ok(GroupQuery::default());
    }
    let mut json = serde_json::Deserializer::from_slice(question);
    let query: GroupQuery = serde_path_to_error::deserialize(&mut json)
        .map_err(|error| bad(format!("{}: {}", error.path(), error.inner())))?;
    match query.limit {
        Some(limit) if limit == 0 || limit > PAGE_MAX => {
            Err(bad(format!("limit: {limit} is not within 1 and {PAGE_MAX}")))
        }
        _ => Ok(query),
    }
}

/// What is answered.
#[derive(Serialize)]
#[serde(untagged)]
enum Answer {
    Labels(LabelsAnswer),
    Groups(Box<GroupsAnswer>),
    Group(Box<GroupView>),
    Views(ViewsAnswer),
    View(Box<DefinedView>),
    #[serde(skip)]
    Unsigned(Unsigned),
}

impl Answer {
    fn sign(self) -> Self {
        match self {
            Self::Unsigned(view) => Self::View(view.sign()),
            whole => whole,
        }
    }
}

fn look_up(fleet: &Fleet, endpoint: &str, query: &GroupQuery, limit: usize) -> Result<Answer, ErrorBody> {
    match endpoint {
        "labels" => {
            Ok(Answer::Labels(fleet.labels_answer(&Page { after: after::<LabelKey>(query)?, limit })))
        }
        "groups" => {
            let label = named(query.label.as_ref(), "label")?;
            let page = Page { after: after::<LabelValue>(query)?, limit };
            let answer = fleet.groups_answer(label, query.id.as_ref(), &page);
            answer.map(Box::new).map(Answer::Groups).map_err(|none| missing(none, label, query.id.as_ref()))
        }
        "group" => {
            let (label, value) =
                (named(query.label.as_ref(), "label")?, named(query.value.as_ref(), "value")?);
            let none = || format!("no device has the label {label}={value}");
            Ok(Answer::Group(Box::new(found(fleet.group_view(label, value), none)?)))
        }
        "views" => Ok(Answer::Views(fleet.views_answer())),
        _ => view(fleet, named(query.view.as_ref(), "view")?),
    }
}

fn view(fleet: &Fleet, name: &ViewName) -> Result<Answer, ErrorBody> {
    match fleet.defined_view(name) {
        Shown::View(view) => Ok(Answer::Unsigned(view)),
        Shown::Absent => {
            Err(ErrorBody { code: ErrorCode::NotFound, message: format!("no view '{name}' is defined") })
        }
        Shown::NotYet => {
            let message = format!("view '{name}' is still being counted; ask again in a moment");
            Err(ErrorBody { code: ErrorCode::NotReady, message })
        }
    }
}

fn missing(none: NoGroups, label: &LabelKey, id: Option<&DeploymentId>) -> ErrorBody {
    let message = match (none, id) {
        (NoGroups::Deployment, Some(id)) => format!("deployment '{id}' is targeted nowhere and left nowhere"),
        _ => format!("no device has the label '{label}'"),
    };
    ErrorBody { code: ErrorCode::NotFound, message }
}

fn after<K: FromStr<Err: Display>>(query: &GroupQuery) -> Result<Option<K>, ErrorBody> {
    let parse = |text: &String| text.parse().map_err(|error| bad(format!("after: {error}")));
    query.after.as_ref().map(parse).transpose()
}
