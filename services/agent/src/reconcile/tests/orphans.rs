//! Tests of units that run and belong to no deployment.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_removal_that_cannot_see_what_else_there_is_fails_and_is_tried_again() {
    Trial::after_a_retried_removal(|runtime| runtime.fail_inventory(1)).await;
}

#[tokio::test(start_paused = true)]
async fn an_orphan_that_does_not_stop_or_is_not_listed_is_tried_again() {
    for fail_inventory in [false, true] {
        let mut trial = Trial::new();
        trial.runtime.add_orphan("ghost/ui");
        if fail_inventory {
            trial.runtime.fail_inventory(1);
        } else {
            trial.runtime.fail_stop("ghost/ui", 1);
        }
        trial.desire(document(1, vec![deployment("web", 1, &["ui"])]));
        trial.until("web@1 installed: ui=installed").await;
        assert_eq!(trial.runtime.running(), ["ghost/ui", "web/ui"], "fail_inventory: {fail_inventory}");
        trial.nothing_for(Duration::from_secs(600)).await;
        assert_eq!(trial.runtime.running(), ["web/ui"], "fail_inventory: {fail_inventory}");
    }
}

#[tokio::test(start_paused = true)]
async fn orphans_stop_at_once_and_delay_nothing_for_long() {
    let mut trial = Trial::new();
    for stranger in ["ghost/ui", "ghost/db", "spook/ui"] {
        trial.runtime.add_orphan(stranger);
        trial.runtime.delay_stop(stranger, Duration::from_secs(20));
    }
    let begun = Instant::now();
    trial.desire(document(1, vec![deployment("web", 1, &["ui"])]));
    trial.until("web@1 installed: ui=installed").await;
    assert_eq!(trial.runtime.running(), ["web/ui"], "they go first");
    assert!(begun.elapsed() < Duration::from_secs(40), "{:?}", begun.elapsed());

    let mut trial = Trial::new();
    trial.runtime.add_orphan("ghost/ui");
    trial.runtime.delay_stop("ghost/ui", Duration::from_secs(7_200));
    let begun = Instant::now();
    trial.desire(document(1, vec![deployment("web", 1, &["ui"])]));
    trial.until("web@1 installed: ui=installed").await;
    trial.desire(document(2, vec![deployment("ghost", 2, &["ui"])]));
    trial.until("web@2 removed: ui=removed").await;
    trial.nothing_for(Duration::from_secs(60)).await;
    assert_eq!(
        trial.runtime.running(),
        ["ghost/ui"],
        "what is wanted anew waits for the end of its own strangers"
    );
    trial.restart().await;
    assert!(begun.elapsed() < Duration::from_secs(600), "{:?}", begun.elapsed());
}
