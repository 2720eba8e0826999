//! Which webhooks are due for which gateway, and which nobody delivers.

use muster_bus::{NoticeEntry, NoticeKind};
use muster_contract::decode::to_bytes;
use muster_contract::notify::{
    EndReason, Notice, NoticeEvent, SealedWebhook, Subscription, SubscriptionOwner, WebhookRequest,
};
use muster_contract::view::AsOf;

use super::*;
use crate::origin::Origin;

const LEDGER: Origin = Origin { created_at: Timestamp::UNIX_EPOCH, restarts: 0 };
const KEY: &str = "0123456789abcdef";

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn query(gateway: &str, keys: &[&str]) -> WebhookDueQuery {
    WebhookDueQuery {
        gateway: gateway.to_owned(),
        keys: keys.iter().map(|key| (*key).to_owned()).collect(),
        skip_failing: false,
        skip_hosts: Vec::new(),
        skip_owners: Vec::new(),
    }
}

fn record(name: &str, owner: &str) -> SubscriptionRecord {
    let subscription = Subscription::named(name.parse().unwrap());
    let sealed = SealedWebhook { sealed: "sealed".to_owned(), key: KEY.to_owned() };
    let host = format!("{owner}.example:8443");
    let request = WebhookRequest { subscription: subscription.clone(), host, sealed, give_up_seconds: 60 };
    SubscriptionRecord {
        api_version: Default::default(),
        kind: Default::default(),
        subscription,
        seen: 0,
        seen_seq: 0,
        seen_at: Vec::new(),
        began: 0,
        owner: Some(SubscriptionOwner { key: owner.to_owned(), name: owner.to_owned() }),
        webhook: Some(webhooks::registered(&request, at(0))),
    }
}

/// Applies a record that was stored at this second.
fn store(register: &mut Register, record: &SubscriptionRecord, revision: u64, second: i64) {
    let (name, value) = (record.subscription.name.to_string(), Ok(to_bytes(record).into()));
    let kind = NoticeKind::Subscription;
    register.apply(&NoticeEntry { kind, name, value, revision, stored_at: at(second), pending: 0 }, LEDGER);
}

/// Applies a notice that was stored at this second.
fn tell(register: &mut Register, name: &str, number: u64, second: i64) {
    let as_of = AsOf { ledger_seq: 9, at: Timestamp::UNIX_EPOCH };
    let notice = crate::compose::ending(&name.parse().unwrap(), number, None, as_of, EndReason::Expired);
    let notice = Notice { event: NoticeEvent::Gone, reason: None, ..notice };
    let (kind, value) = (NoticeKind::Notice, Ok(to_bytes(&notice).into()));
    let (name, revision) = (name.to_owned(), 1000 + number);
    register.apply(&NoticeEntry { kind, name, value, revision, stored_at: at(second), pending: 0 }, LEDGER);
}

/// A register with a webhook of each owner that has a notice since second 10.
fn waiting(owners: &[(&str, &str)]) -> Register {
    let mut register = Register::default();
    for (name, owner) in owners {
        store(&mut register, &record(name, owner), 1, 5);
        tell(&mut register, name, 1, 10);
    }
    register
}

fn names(found: &[SubscriptionName]) -> Vec<&str> {
    found.iter().map(SubscriptionName::as_str).collect()
}

#[test]
fn a_gateway_gets_only_webhooks_that_one_of_its_keys_has_sealed() {
    let mut register = waiting(&[("a", "anna")]);
    let other = "fedcba9876543210";
    for (keys, due) in [(&[][..], false), (&[other], false), (&[other, KEY], true)] {
        let found = register.due_webhooks(&query("g", keys), at(20));
        assert_eq!(names(&found), if due { vec!["a"] } else { vec![] }, "{keys:?}");
    }
}

#[test]
fn a_webhook_that_nobody_can_open_says_since_when_and_why() {
    use WebhookUntriedCause::{Busy, NoGateway, NoKey};
    let mut register = waiting(&[("a", "anna")]);
    let shown = |register: &Register, second| {
        let line = register.webhooks(None, 9, at(second)).0.remove(0);
        (line.untried_since, line.untried_cause)
    };
    assert_eq!(shown(&register, 20), (Some(at(10)), Some(NoGateway)));
    register.due_webhooks(&query("g1", &["fedcba9876543210"]), at(20));
    assert_eq!(shown(&register, 21), (Some(at(10)), Some(NoKey)));
    tell(&mut register, "a", 2, 30);
    assert_eq!(register.untried_webhooks(at(31)), [(NoKey, at(10))].into(), "of the oldest notice");
    register.due_webhooks(&query("g2", &[KEY]), at(40));
    assert_eq!(shown(&register, 41), (Some(at(10)), Some(Busy)));
    assert_eq!(shown(&register, 101).1, Some(NoGateway), "nobody has asked for a minute");
    let delivered = SubscriptionRecord { seen: 2, ..record("a", "anna") };
    store(&mut register, &delivered, 2, 50);
    assert_eq!(shown(&register, 60), (None, None));
    assert!(register.untried_webhooks(at(60)).is_empty());
    tell(&mut register, "a", 3, 70);
    assert_eq!(shown(&register, 71).0, Some(at(70)), "it counts anew");
}

#[test]
fn the_owner_with_the_fewest_deliveries_under_way_comes_first() {
    let mut register = waiting(&[("a-1", "anna"), ("a-2", "anna"), ("a-3", "anna"), ("b", "bob")]);
    let mut claimed = record("a-1", "anna");
    webhooks::claim(claimed.webhook.as_mut().unwrap(), "g", 1, at(11));
    store(&mut register, &claimed, 2, 11);
    let mut failing = record("b", "bob");
    failing.webhook.as_mut().unwrap().stored_at = at(12);
    store(&mut register, &failing, 2, 12);
    let found = register.due_webhooks(&query("g", &[KEY]), at(20));
    assert_eq!(names(&found), ["b", "a-2", "a-3"], "although those of anna have waited longer");
    failing.webhook.as_mut().unwrap().progress.failures = 1;
    store(&mut register, &failing, 3, 12);
    let found = register.due_webhooks(&query("g", &[KEY]), at(20));
    assert_eq!(
        names(&found),
        ["b", "a-2", "a-3"],
        "also where his fail, or anna could hold them back for ever"
    );
    let found = register.due_webhooks(&query("g", &[KEY]), at(60));
    assert_eq!(
        names(&found),
        ["a-1", "a-2", "a-3", "b"],
        "of owners with as many, one that fails comes last"
    );
}

#[test]
fn a_claim_counts_before_the_stream_brings_it() {
    let mut register = waiting(&[("a-1", "anna"), ("a-2", "anna")]);
    let mut claimed = record("a-1", "anna");
    webhooks::claim(claimed.webhook.as_mut().unwrap(), "g", 1, at(20));
    register.record_claim(&"a-1".parse().unwrap(), &claimed);
    assert_eq!(names(&register.due_webhooks(&query("g", &[KEY]), at(20))), ["a-2"]);
}

#[test]
fn owners_and_hosts_whose_slots_are_in_use_wait() {
    let mut register = waiting(&[("a", "anna"), ("b", "bob")]);
    let by_owner = WebhookDueQuery { skip_owners: vec!["anna".to_owned()], ..query("g", &[KEY]) };
    let by_host = WebhookDueQuery { skip_hosts: vec!["bob.example".to_owned()], ..query("g", &[KEY]) };
    assert_eq!(names(&register.due_webhooks(&by_owner, at(20))), ["b"]);
    assert_eq!(names(&register.due_webhooks(&by_host, at(20))), ["a"]);
}

#[test]
fn revoked_owners_name_the_webhooks_that_end() {
    let register = waiting(&[("a-1", "anna"), ("a-2", "anna"), ("b", "bob")]);
    let revoked = [RevokedOwner { key: "anna".to_owned(), at: at(15) }];
    assert_eq!(names(&register.webhooks_to_end(&revoked, at(20))), ["a-1", "a-2"]);
}
