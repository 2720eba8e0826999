//! Subscriptions to notices.

use muster_contract::notify::{Subscription, SubscriptionAnswer, SubscriptionLine, SubscriptionsAnswer};

use super::format::{clean, plural, span};
use super::frame::Frame;
use super::table::{Cell, Table};

/// The subscriptions that there are.
pub fn list(answer: &SubscriptionsAnswer, frame: impl Into<Frame>) -> String {
    if answer.subscriptions.is_empty() {
        return "There is no subscription of yours; `muster watch DEPLOYMENT` makes one.\n".to_owned();
    }
    let mut table = Table::new(&["SUBSCRIPTION", "OWNER", "ABOUT", ">LEASE", ">CONFIRMED", ">NEWEST"]);
    for line in &answer.subscriptions {
        let SubscriptionLine { subscription, owner, seen, told } = line;
        let owner = owner.as_ref().map_or_else(|| "-".to_owned(), |owner| clean(&owner.name));
        table.row([
            subscription.name.as_str().into(),
            owner.into(),
            about(subscription).into(),
            span(subscription.lease_seconds).into(),
            Cell::count(*seen),
            Cell::count(*told),
        ]);
    }
    let count = plural(answer.subscriptions.len() as u64, "subscription");
    format!("{}\n{count}.\n", table.within(frame.into().width))
}

/// A subscription was ended.
pub fn ended(answer: &SubscriptionAnswer) -> String {
    format!("subscription {} is ended\n", answer.name)
}

/// The filters in words.
fn about(subscription: &Subscription) -> String {
    let Subscription { id, app, site, device, component, .. } = subscription;
    let named =
        |what: &str, names: Vec<String>| (!names.is_empty()).then(|| format!("{what} {}", names.join(", ")));
    let texts = |names: &[String]| names.iter().map(|name| clean(name)).collect::<Vec<_>>();
    let parts = [
        id.as_ref().map(ToString::to_string),
        named("application", texts(app)),
        named("site", site.iter().map(ToString::to_string).collect()),
        named("device", device.iter().map(|path| path.0.to_string()).collect()),
        named("component", component.iter().map(ToString::to_string).collect()),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if parts.is_empty() { "everything".to_owned() } else { parts.join("; ") }
}

#[cfg(test)]
mod tests {
    use muster_contract::Timestamp;

    use super::*;

    #[test]
    fn a_list_names_owner_filters_lease_and_progress() {
        let text = r#"{"subscriptions":[
            {"subscription":{"name":"all"},"seen":0,"told":2},
            {"subscription":{"name":"night-shift","id":"web","site":["a","b"],"leaseSeconds":86400},
             "owner":{"key":"U1","name":"an\u001b[31mna"},"seen":7,"told":9}]}"#;
        let answer: SubscriptionsAnswer = serde_json::from_str(text).unwrap();
        let shown = anstream::adapter::strip_str(&list(&answer, Timestamp::default())).to_string();
        let rows: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[1], ["all", "-", "everything", "1h", "-", "2"], "{shown}");
        assert_eq!(rows[2][3..], ["web;", "site", "a,", "b", "1d", "7", "9"], "{shown}");
        assert!(shown.ends_with("2 subscriptions.\n") && !shown.contains('\u{1b}'), "{shown}");
        let none = SubscriptionsAnswer { subscriptions: Vec::new(), next: None };
        assert!(list(&none, Timestamp::default()).contains("no subscription"));
    }
}
