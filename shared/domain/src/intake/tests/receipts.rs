//! Tests the comparison with receipts in DOWNLINK: one that a former owner sent late is replaced, every other one stays.

use muster_contract::limits::RECEIPT_RANGES_MAX;
use muster_contract::presence::Heartbeat;
use muster_contract::receipt::Receipt;

use super::super::receipts::REMIND_EVERY;
use super::*;

/// The receipt that is due now; DOWNLINK has stored it.
fn stored(hub: &mut Hub) -> Receipt {
    let mut due = hub.intake.drain_due_receipts(hub.now, 10);
    assert_eq!(due.len(), 1, "{due:?}");
    hub.intake.receipt_stored(&press());
    due.remove(0).1
}

/// The receipts of two reports: the second one covers more.
fn older_and_newest(hub: &mut Hub) -> (Receipt, Receipt) {
    hub.report(&status(1, 1, 2));
    let older = stored(hub);
    hub.report(&status(1, 2, 2));
    hub.now = at(1_001);
    (older, stored(hub))
}

fn is_owed(hub: &mut Hub, found: &Receipt) -> bool {
    assert_eq!(hub.intake.receipts_owed(), 0);
    hub.intake.check_stored_receipt(&press(), found);
    hub.intake.receipts_owed() == 1
}

#[test]
fn an_older_receipt_is_replaced_once_its_second_is_over() {
    let mut hub = Hub::new();
    let (older, newest) = older_and_newest(&mut hub);
    assert!(is_owed(&mut hub, &older));
    hub.intake.check_stored_receipt(&press(), &older);
    assert_eq!((hub.intake.receipts_owed(), hub.receipt()), (1, None), "one, and not at once");
    hub.now = at(1_002);
    let again = stored(&mut hub);
    assert_eq!(again, newest);
    assert!(!is_owed(&mut hub, &again), "the receipt after it owes no other");
}

#[test]
fn a_receipt_that_covers_as_much_or_more_is_left_alone() {
    let mut hub = Hub::new();
    let (_, newest) = older_and_newest(&mut hub);
    assert!(!is_owed(&mut hub, &newest));
    let asking = Receipt { through: 9, missing: SeqRanges::span(3, 9), ..newest.clone() };
    assert!(!is_owed(&mut hub, &asking), "it requests reports of the device");
    assert!(!is_owed(&mut hub, &Receipt { through: 9, ..newest.clone() }), "another hub has covered more");
    assert!(!is_owed(&mut hub, &Receipt { epoch: epoch(2), through: 0, ..newest }), "of a newer epoch");
}

#[test]
fn a_receipt_that_lists_a_number_as_missing_is_older_once_it_is_in() {
    let mut hub = Hub::new();
    hub.report(&status(1, 1, 3));
    hub.report(&status(1, 3, 3));
    let older = stored(&mut hub);
    assert_eq!((older.through, older.missing.to_string()), (3, "2".to_owned()));
    hub.report(&status(1, 2, 3));
    hub.now = at(1_001);
    let newest = stored(&mut hub);
    assert_eq!((newest.through, newest.missing.to_string()), (3, String::new()));
    assert!(is_owed(&mut hub, &older));
}

#[test]
fn a_receipt_of_a_closed_epoch_is_replaced_once_the_next_one_has_a_report() {
    let mut hub = Hub::new();
    hub.report(&status(5, 1, 1));
    let closed = stored(&mut hub);
    hub.beat(6, 0, 0);
    hub.pass(1);
    assert!(matches!(hub.incidents()[..], [IncidentKind::Amnesia { .. }]), "the epoch is over");
    assert!(!is_owed(&mut hub, &closed), "there is nothing to cover yet");
    hub.report(&status(6, 1, 1));
    hub.now = at(1_002);
    stored(&mut hub);
    assert!(is_owed(&mut hub, &closed));
}

#[test]
fn a_receipt_with_more_holes_than_it_can_list_owes_no_other() {
    let mut hub = Hub::new();
    let last = 2 * RECEIPT_RANGES_MAX as u64 + 7;
    for number in (1..=last).step_by(2) {
        hub.report(&status(1, number, last));
    }
    let cut = stored(&mut hub);
    assert!(cut.through < last && cut.missing.len() == RECEIPT_RANGES_MAX, "{}", cut.through);
    assert!(!is_owed(&mut hub, &cut));
}

#[test]
fn a_receipt_of_an_unknown_device_makes_no_device() {
    let mut hub = Hub::new();
    let (older, _) = older_and_newest(&mut hub);
    hub.intake.check_stored_receipt(&"plant7/saw-1".parse().unwrap(), &older);
    assert_eq!((hub.intake.devices(), hub.intake.receipts_owed()), (1, 0));
    // The hub has no report of a device that was only sent a document.
    let sent_only: DeviceKey = "plant7/saw-2".parse().unwrap();
    hub.intake.apply_desired(&sent_only, &desired(1, false), hub.now);
    hub.intake.check_stored_receipt(&sent_only, &older);
    assert_eq!(hub.intake.receipts_owed(), 0);
}

#[test]
fn a_process_that_reads_ledger_anew_replaces_an_older_receipt() {
    let mut hub = Hub::new();
    let (older, newest) = older_and_newest(&mut hub);
    hub.restart();
    assert!(!is_owed(&mut hub, &newest));
    assert!(is_owed(&mut hub, &older));
    assert_eq!(stored(&mut hub), newest);
}

#[test]
fn a_device_that_holds_an_older_desired_state_gets_a_receipt_now_and_then() {
    let mut hub = Hub::new();
    hub.report(&status(1, 1, 1));
    assert_eq!(stored(&mut hub).generation, Some(0), "no document is known");
    let mut receipt_after = |second: i64, text: &str| {
        hub.now = at(second);
        hub.intake.apply_heartbeat(&press(), &Heartbeat::parse(text.as_bytes()).unwrap(), hub.now, hub.now);
        let due = hub.intake.drain_due_receipts(at(second + 2), 1);
        due.iter().for_each(|(key, _)| hub.intake.receipt_stored(key));
        if second == 1_010 {
            hub.intake.apply_desired(&press(), &desired(4, false), hub.now);
        }
        due.first().map(|(_, receipt)| receipt.generation)
    };
    let every = REMIND_EVERY.as_secs() as i64;
    assert_eq!(receipt_after(1_010, "[1,1,0]"), None);
    let refused = |generation: u64| {
        format!(
            r#"{{"epoch":1,"head":1,"generation":3,"refused":{{"generation":{generation},"code":"invalid","message":"","since":"{}"}}}}"#,
            at(1_000)
        )
    };
    assert_eq!(receipt_after(1_020, &refused(4)), None, "it refuses that one");
    assert_eq!(receipt_after(1_030, &refused(3)), Some(Some(4)), "it refuses an older one");
    assert_eq!(receipt_after(1_040, "[1,1,3]"), None, "not again so soon");
    assert_eq!(receipt_after(1_031 + every, "[1,1,3]"), Some(Some(4)));
    assert_eq!(receipt_after(1_040 + 2 * every, "[1,1,4]"), None, "it holds the newest one");
}
