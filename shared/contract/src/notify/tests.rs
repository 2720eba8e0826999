//! Rules of subscriptions and notices.

use super::*;

fn subscription(text: &str) -> Result<Subscription, String> {
    let read: Subscription = serde_json::from_str(text).map_err(|error| error.to_string())?;
    read.check().map_err(|violation| violation.to_string())?;
    Ok(read)
}

#[test]
fn n01_a_name_is_enough_and_an_empty_one_is_none() {
    let read = subscription(r#"{"name":"night-shift"}"#).unwrap();
    assert_eq!(read, Subscription::named("night-shift".parse().unwrap()));
    assert!(subscription(r#"{"name":""}"#).unwrap_err().contains("subscription"));
    assert!(subscription(r#"{"id":"web"}"#).unwrap_err().contains("name"));
}

#[test]
fn what_cannot_be_kept_is_refused_by_the_field() {
    for (field, says) in [
        (r#""windowMs":10"#, "windowMs: 10 is not within"),
        (r#""leaseSeconds":1"#, "leaseSeconds: 1 is not within"),
        (r#""output":"detail""#, "output: a notice has output summary"),
        (r#""device":["press-4"]"#, "press-4"),
    ] {
        let refusal = subscription(&format!(r#"{{"name":"a",{field}}}"#)).unwrap_err();
        assert!(refusal.contains(says), "{refusal}");
    }
}

#[test]
fn n03_times_alone_are_no_news_and_with_verdict_neither_are_counts() {
    let state = |targets, changed_at: Option<&str>| NoticeState {
        status: NoticeStatus::NotReady,
        verdict: Some(Verdict::Progressing),
        rollup: Rollup { targets, changed_at: changed_at.map(|at| at.parse().unwrap()), ..Rollup::default() },
        apps: Vec::new(),
        targets: Vec::new(),
        view: None,
        hub: Default::default(),
        missing_hubs: Vec::new(),
    };
    let (one, later, more) = (state(1, None), state(1, Some("2026-11-20T08:00:00Z")), state(2, None));
    assert_eq!(one.digest(TellOn::Change), later.digest(TellOn::Change));
    assert_ne!(one.digest(TellOn::Change), more.digest(TellOn::Change));
    assert_eq!(one.digest(TellOn::Verdict), more.digest(TellOn::Verdict));
}
