//! Whose approvals and rejections of waves count: those of persons whom `approvals.of` names, and of the role approver no other
//! decisions.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_person_who_is_not_among_the_approvers_is_refused() {
    let stream = Stream::default();
    let publisher = Running::start(&stream);
    let mut fleet = governed("c1", 2, "v1");
    for file in fleet.rollouts.values_mut() {
        let mut rollout = file.rollout.clone();
        rollout.approvals = serde_json::from_value(serde_json::json!({ "of": ["anna", "UBEN"] })).unwrap();
        *file = Arc::new(RolloutFile { path: FILE.to_owned(), rollout });
    }
    publisher.commit(fleet).await.unwrap();
    let decide = async |verb, role: &str, by: Option<(&str, &str)>| {
        let requested_by = by.map(|(key, name)| muster_contract::RequestedBy::new(key, name, Some(role)));
        publisher.announcer.decide(Decide { requested_by, ..asked(verb, digest("v1")) }).await
    };
    use RolloutVerb::{Approve, Stop};
    let (carla, ben) = (Some(("UCARLA", "carla")), Some(("UX", "ben")));
    for (verb, role, by) in [
        (Approve, "operator", carla),
        (Approve, "approver", ben),
        (Stop, "approver", ben),
        (Approve, "", None),
    ] {
        let refused = decide(verb, role, by).await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::Forbidden, "{verb:?} {by:?}");
        assert!(refused.message.contains("not among the approvers of this rollout"), "{refused:?}");
    }
    assert!(decide(Approve, "operator", Some(("UANNA", "anna"))).await.unwrap().changed);
    assert!(decide(Approve, "approver", Some(("UBEN", "ben"))).await.unwrap().changed, "by the key");
    let pauses = publisher.announcer.decide(asked(RolloutVerb::Pause, digest("v1"))).await.unwrap();
    assert!(pauses.changed, "other decisions are not limited");
}

#[tokio::test(start_paused = true)]
async fn an_approver_approves_and_stops_only_while_a_wave_waits() {
    let stream = Stream::default();
    let publisher = with_a_held_change(&stream).await;
    let decide = async |role: &str, verb| {
        let requested_by = Some(muster_contract::RequestedBy::new("UBEN", "ben", Some(role)));
        publisher.announcer.decide(Decide { requested_by, ..asked(verb, digest("v2")) }).await.map(drop)
    };
    let refused = decide("approver", RolloutVerb::Pause).await.unwrap_err();
    assert!(refused.code == ErrorCode::Forbidden && refused.message.contains("pause needs"), "{refused:?}");
    decide("approver", RolloutVerb::Approve).await.unwrap();
    decide("approver", RolloutVerb::Stop).await.unwrap();
    decide("operator", RolloutVerb::Retry).await.unwrap();
    decide("operator", RolloutVerb::Begin).await.unwrap();
    assert_eq!(decide("approver", RolloutVerb::Stop).await.unwrap_err().code, ErrorCode::Forbidden);
    decide("operator", RolloutVerb::Stop).await.unwrap();
}
