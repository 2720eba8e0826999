//! Lists of the services, from all their pages.

use muster_contract::groups::GroupQuery;
use muster_contract::notify::SubscriptionsQuery;
use muster_contract::query::{PAGE_MAX, Query};
use muster_contract::subjects::{NOTIFY_PREFIX, PLANNER_PREFIX, QUERY_PREFIX};
use serde::Serialize;
use serde_json::Value;

use super::{AskError, Hub, PAGES_MAX};

impl Hub {
    /// All pages of a list as one answer. It says of itself that it has read as far as its first page has.
    ///
    /// # Errors
    /// As [`Self::query`], or when the list does not end.
    pub async fn pages(
        &self,
        what: &'static str,
        list: &'static str,
        query: Query,
    ) -> Result<Value, AskError> {
        let query = Query { limit: Some(PAGE_MAX), ..query };
        self.all_pages("muster-rollup", format!("{QUERY_PREFIX}.{what}"), list, &query).await
    }

    /// All pages of a list about groups as one answer, as [`Self::pages`] has it.
    ///
    /// # Errors
    /// As [`Self::pages`].
    pub async fn group_pages(
        &self,
        what: &'static str,
        list: &'static str,
        query: GroupQuery,
    ) -> Result<Value, AskError> {
        let query = GroupQuery { limit: Some(PAGE_MAX), ..query };
        self.all_pages("muster-rollup", format!("{QUERY_PREFIX}.{what}"), list, &query).await
    }

    /// All pages of a list of the planner as one answer, or the one page that a request with a limit wants.
    ///
    /// # Errors
    /// As [`Self::pages`].
    pub async fn planner_pages<T: Serialize>(
        &self,
        verb: &'static str,
        list: &'static str,
        request: &T,
    ) -> Result<Value, AskError> {
        let request = serde_json::to_value(request).map_err(AskError::Misunderstood)?;
        if request.get("limit").is_some() {
            return self.planner(verb, &request).await;
        }
        self.all_pages("muster-planner", format!("{PLANNER_PREFIX}.{verb}"), list, &request).await
    }

    /// All subscriptions to notices that this user may see.
    ///
    /// # Errors
    /// As [`Self::pages`].
    pub async fn subscriptions(&self) -> Result<Value, AskError> {
        let query = SubscriptionsQuery { limit: Some(PAGE_MAX), after: None };
        self.all_pages("muster-rollup", format!("{NOTIFY_PREFIX}.list"), "subscriptions", &query).await
    }

    /// Asks for page after page; the entries of `list` of all of them come with the rest of the first page.
    async fn all_pages<T: Serialize>(
        &self,
        service: &'static str,
        subject: String,
        list: &'static str,
        request: &T,
    ) -> Result<Value, AskError> {
        let mut request = serde_json::to_value(request).map_err(AskError::Misunderstood)?;
        let mut whole = self.ask(service, subject.clone(), &request).await?;
        for _ in 0..PAGES_MAX {
            let Some(next) = taken_next(&mut whole) else { return Ok(whole) };
            if request["after"] == next.as_str() {
                break;
            }
            request["after"] = next.into();
            append(&mut whole, self.ask(service, subject.clone(), &request).await?, list);
        }
        Err(AskError::Endless { what: list })
    }
}

fn taken_next(answer: &mut Value) -> Option<String> {
    match answer.as_object_mut()?.remove("next")? {
        Value::String(next) => Some(next),
        _ => None,
    }
}

fn append(whole: &mut Value, page: Value, list: &str) {
    let Value::Object(mut page) = page else { return };
    if let (Some(rows), Some(Value::Array(more))) = (whole[list].as_array_mut(), page.remove(list)) {
        rows.extend(more);
    }
    if let Some(next) = page.remove("next") {
        whole["next"] = next;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pages_become_one_list_with_the_position_of_the_first() {
        let mut whole = json!({"asOf": {"ledgerSeq": 5}, "devices": [1], "next": "a"});
        assert_eq!(taken_next(&mut whole).as_deref(), Some("a"));
        append(&mut whole, json!({"asOf": {"ledgerSeq": 9}, "devices": [2, 3], "next": "b"}), "devices");
        assert_eq!(taken_next(&mut whole).as_deref(), Some("b"));
        append(&mut whole, json!({"asOf": {"ledgerSeq": 9}, "devices": [4]}), "devices");
        assert_eq!(taken_next(&mut whole), None);
        assert_eq!(whole, json!({"asOf": {"ledgerSeq": 5}, "devices": [1, 2, 3, 4]}));
    }
}
