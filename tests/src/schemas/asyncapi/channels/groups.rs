//! Channels of groups and of views that people define.

use muster_bus::topology::VIEWS_STREAM;
use muster_contract::subjects::{QUERY_PREFIX, VIEW_PREFIX, ViewKey, definition_key, stream};

use super::Channel;

// Names that no address contains otherwise; they become the parameters.
const LABEL: &str = "x-label-x";
const VALUE: &str = "x-value-x";
const VIEW: &str = "x-view-x";

/// The answers to these requests.
pub(super) const ANSWERS: [&str; 6] =
    ["LabelsAnswer", "GroupsAnswer", "GroupView", "ViewsAnswer", "DefinedView", "ViewAnswer"];

pub(super) fn list() -> Vec<Channel> {
    views().into_iter().chain(requests()).collect()
}

fn views() -> Vec<Channel> {
    let name = "this is a label";
    let group = ViewKey::Group(LABEL.parse().expect(name), VALUE.parse().expect(name));
    let view = VIEW.parse().expect(name);
    let held = |name, key: String, message, about| {
        let key = key.replace(LABEL, "{label}").replace(VALUE, "{value}").replace(VIEW, "{view}");
        Channel::new(name, &format!("$KV.{}.{key}", stream::VIEWS_BUCKET), Some(VIEWS_STREAM), message, about)
    };
    vec![
        held(
            "groupView",
            group.to_string(),
            &["GroupView"],
            "Key `group.<label>.<value>` of the bucket `views`: the newest view of all devices with a label.",
        ),
        held(
            "definition",
            definition_key(&view),
            &["ViewDefinition"],
            "Key `definition.<name>` of the bucket `views`: what a person has defined, by request `viewApply`.",
        ),
        held(
            "definedView",
            ViewKey::Defined(view).to_string(),
            &["DefinedView"],
            "Key `view.<name>` of the bucket `views`: the newest of what a definition gives.",
        ),
    ]
}

fn requests() -> Vec<Channel> {
    let request = |name, prefix, verb, message, about| {
        Channel::new(name, &format!("{prefix}.{verb}"), None, message, about)
    };
    let ask: &[&str] = &["GroupQuery"];
    vec![
        request("queryLabels", QUERY_PREFIX, "labels", ask, "The labels that group devices, page by page."),
        request(
            "queryGroups",
            QUERY_PREFIX,
            "groups",
            ask,
            "The fleet, or a deployment by `id`, by one `label`, page by page.",
        ),
        request("queryGroup", QUERY_PREFIX, "group", ask, "The view of one `label` with one `value`."),
        request("queryViews", QUERY_PREFIX, "views", ask, "Which views are defined; any payload."),
        request("queryView", QUERY_PREFIX, "view", ask, "The counts of one defined `view`."),
        request(
            "viewApply",
            VIEW_PREFIX,
            "apply",
            &["ViewDefinition"],
            "Defines a view, or defines it anew; answered once the bucket has the definition.",
        ),
        request("viewRemove", VIEW_PREFIX, "remove", &["RemoveViewRequest"], "Takes a definition back."),
    ]
}
