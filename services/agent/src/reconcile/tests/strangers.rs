//! Claims about what runs and should not.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_removal_that_cannot_see_what_else_there_is_fails_and_is_tried_again() {
    let mut trial = Trial::new();
    trial.desire(document(1, vec![deployment("web", 1, &["ui"])]));
    trial.until("web@1 installed: ui=installed").await;
    trial.stage.intrude("web/old");
    trial.stage.blind(1);
    trial.desire(document(2, vec![]));
    trial
        .reports(&[
            "web@2 removing: ui=removing",
            "web@2 failed: ui=removing",
            "web@2 failed: ui=removed",
            "web@2 removed: ui=removed",
        ])
        .await;
    assert!(trial.stage.running().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_stranger_that_does_not_stop_or_is_not_seen_at_once_is_met_again() {
    for blind in [false, true] {
        let mut trial = Trial::new();
        trial.stage.intrude("ghost/ui");
        match blind {
            true => trial.stage.blind(1),
            false => trial.stage.hold_on("ghost/ui", 1),
        }
        trial.desire(document(1, vec![deployment("web", 1, &["ui"])]));
        trial.until("web@1 installed: ui=installed").await;
        assert_eq!(trial.stage.running(), ["ghost/ui", "web/ui"], "blind: {blind}");
        trial.nothing_for(Duration::from_secs(600)).await;
        assert_eq!(trial.stage.running(), ["web/ui"], "blind: {blind}");
    }
}

#[tokio::test(start_paused = true)]
async fn strangers_are_stopped_at_once_and_hold_up_neither_the_others_nor_the_end_for_long() {
    let mut trial = Trial::new();
    for stranger in ["ghost/ui", "ghost/db", "spook/ui"] {
        trial.stage.intrude(stranger);
        trial.stage.tarry(stranger, Duration::from_secs(20));
    }
    let begun = Instant::now();
    trial.desire(document(1, vec![deployment("web", 1, &["ui"])]));
    trial.until("web@1 installed: ui=installed").await;
    assert_eq!(trial.stage.running(), ["web/ui"], "they go first");
    assert!(begun.elapsed() < Duration::from_secs(40), "{:?}", begun.elapsed());

    let mut trial = Trial::new();
    trial.stage.intrude("ghost/ui");
    trial.stage.tarry("ghost/ui", Duration::from_secs(7_200));
    let begun = Instant::now();
    trial.desire(document(1, vec![deployment("web", 1, &["ui"])]));
    trial.until("web@1 installed: ui=installed").await;
    trial.desire(document(2, vec![deployment("ghost", 2, &["ui"])]));
    trial.until("web@2 removed: ui=removed").await;
    trial.nothing_for(Duration::from_secs(60)).await;
    assert_eq!(
        trial.stage.running(),
        ["ghost/ui"],
        "what is wanted anew waits for the end of its own strangers"
    );
    trial.restart().await;
    assert!(begun.elapsed() < Duration::from_secs(600), "{:?}", begun.elapsed());
}
