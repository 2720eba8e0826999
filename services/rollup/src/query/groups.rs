//! Answers questions about groups and defined views: `muster.query.{labels,groups,group,views,view}`.

use std::fmt::Display;
use std::str::FromStr;

use bytes::Bytes;
use muster_contract::defined::{DefinedView, ViewDefinition};
use muster_contract::groups::{GroupQuery, GroupView, GroupsAnswer, LabelsAnswer, ViewLine, ViewsAnswer};
use muster_contract::history::Point;
use muster_contract::limits::DEFINED_VIEWS_MAX;
use muster_contract::query::{ErrorBody, ErrorCode};
use muster_contract::question::{
    bad, checked_limit, fitting, found, named, nowhere, parsed_after, read_of_a_point,
};
use muster_contract::{DeploymentId, LabelKey, LabelValue, ViewName};
use muster_domain::fold::{Fleet, NoGroups, Page, Shown, Unsigned};
use serde::Serialize;

use super::present::{caught_up, no_past};
use crate::projection::Projection;

/// The last tokens of their subjects.
pub(super) const ENDPOINTS: [&str; 5] = ["labels", "groups", "group", "views", "view"];

/// The questions that cannot be put to a point: definitions are not part of LEDGER.
const DEFINED: [&str; 2] = ["views", "view"];

/// The answer of the present.
pub(super) fn answer(projection: &Projection, endpoint: &str, question: &[u8]) -> Result<Bytes, ErrorBody> {
    let question = GroupQuestion::read(endpoint, question)?;
    question.answer(|limit| {
        projection.read(|now| {
            caught_up(now)?;
            no_past(question.point())?;
            question.look_up(&now.fleet, &now.uncounted, limit)
        })
    })
}

/// A question that makes sense so far.
pub(super) struct GroupQuestion {
    endpoint: String,
    query: GroupQuery,
    limit: usize,
}

impl GroupQuestion {
    /// Reads it.
    pub(super) fn read(endpoint: &str, question: &[u8]) -> Result<Self, ErrorBody> {
        let query: GroupQuery = read_of_a_point(question)?;
        let limit = checked_limit(query.limit)?;
        if DEFINED.contains(&endpoint) && !query.point.is_now() {
            let message = "at, atSeq, about: views that people define are of the present only: LEDGER does not hold what was defined \
                           when; ask for labels, groups or a group of that point";
            return Err(bad(message.to_owned()));
        }
        Ok(Self { endpoint: endpoint.to_owned(), query, limit })
    }

    /// The fleet that the question is about.
    pub(super) const fn point(&self) -> Point {
        self.query.point
    }

    /// The answer of a past.
    pub(super) fn answer_of(&self, fleet: &Fleet) -> Result<Bytes, ErrorBody> {
        self.answer(|limit| self.look_up(fleet, &[], limit))
    }

    fn answer(&self, look: impl Fn(usize) -> Result<GroupAnswer, ErrorBody>) -> Result<Bytes, ErrorBody> {
        fitting(self.limit, |limit| Ok(look(limit)?.signed()))
    }

    fn look_up(
        &self,
        fleet: &Fleet,
        uncounted: &[ViewDefinition],
        limit: usize,
    ) -> Result<GroupAnswer, ErrorBody> {
        look_up(fleet, uncounted, &self.endpoint, &self.query, limit)
    }
}

/// The answers by kind of question.
#[derive(Serialize)]
#[serde(untagged)]
enum GroupAnswer {
    Labels(LabelsAnswer),
    Groups(Box<GroupsAnswer>),
    Group(Box<GroupView>),
    Views(ViewsAnswer),
    View(Box<DefinedView>),
    #[serde(skip)]
    Unsigned(Unsigned),
}

impl GroupAnswer {
    /// The digest takes so long that the fold must not wait for it.
    fn signed(self) -> Self {
        match self {
            Self::Unsigned(view) => Self::View(view.sign()),
            whole => whole,
        }
    }
}

fn look_up(
    fleet: &Fleet,
    uncounted: &[ViewDefinition],
    endpoint: &str,
    query: &GroupQuery,
    limit: usize,
) -> Result<GroupAnswer, ErrorBody> {
    match endpoint {
        "labels" => {
            Ok(GroupAnswer::Labels(fleet.labels_answer(&Page { after: after::<LabelKey>(query)?, limit })))
        }
        "groups" => {
            let label = named(query.label.as_ref(), "label")?;
            let page = Page { after: after::<LabelValue>(query)?, limit };
            let answer = fleet.groups_answer(label, query.id.as_ref(), &page);
            answer
                .map(Box::new)
                .map(GroupAnswer::Groups)
                .map_err(|none| missing(none, label, query.id.as_ref()))
        }
        "group" => {
            let (label, value) =
                (named(query.label.as_ref(), "label")?, named(query.value.as_ref(), "value")?);
            let none = || format!("no device has the label {label}={value}");
            Ok(GroupAnswer::Group(Box::new(found(fleet.group_view(label, value), none)?)))
        }
        "views" => Ok(GroupAnswer::Views(views(fleet, uncounted))),
        _ => view(fleet, uncounted, named(query.view.as_ref(), "view")?),
    }
}

/// Everything that is defined, by name, also what is not counted.
fn views(fleet: &Fleet, uncounted: &[ViewDefinition]) -> ViewsAnswer {
    let mut answer = fleet.views_answer();
    let beyond = uncounted.iter().cloned();
    answer.views.extend(beyond.map(|definition| ViewLine {
        definition,
        ready: false,
        groups: 0,
        uncounted: true,
    }));
    answer.views.sort_by(|one, other| one.definition.name.cmp(&other.definition.name));
    answer
}

fn view(fleet: &Fleet, uncounted: &[ViewDefinition], name: &ViewName) -> Result<GroupAnswer, ErrorBody> {
    match fleet.defined_view(name) {
        Shown::Absent if uncounted.iter().any(|definition| definition.name == *name) => {
            let message = format!(
                "view '{name}' is not counted: more than {DEFINED_VIEWS_MAX} are defined; remove one (`muster view list`)"
            );
            Err(ErrorBody { code: ErrorCode::Conflict, message })
        }
        Shown::View(view) => Ok(GroupAnswer::Unsigned(view)),
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
        (NoGroups::Deployment, Some(id)) => nowhere(id),
        _ => format!("no device has the label '{label}'"),
    };
    ErrorBody { code: ErrorCode::NotFound, message }
}

fn after<K: FromStr<Err: Display>>(query: &GroupQuery) -> Result<Option<K>, ErrorBody> {
    parsed_after(query.after.as_deref())
}
