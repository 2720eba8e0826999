//! Tests which rows share a message, and when rows wait for others.

use super::*;

/// A trial whose hub reads batches, connected, with everything sent and confirmed.
fn idle() -> Trial {
    let mut trial = packing(1);
    trial.up();
    trial.answer(OK);
    trial.pass(SOON);
    trial
}

fn packing(rows: u64) -> Trial {
    let mut trial = Trial::new(rows);
    trial.hub_reads_batches = true;
    trial
}

impl Trial {
    fn write(&mut self, seq: u64) -> Vec<String> {
        self.waiting.insert(seq);
        self.hand_in(Input::OutboxChanged)
    }
}

#[test]
fn a_report_on_an_idle_link_goes_at_once_and_alone() {
    let mut trial = idle();
    for seq in 2..5 {
        assert_eq!(trial.write(seq), [format!("send {seq}")]);
        trial.answer(OK);
        trial.pass(SOON);
    }
}

#[test]
fn reports_wait_for_others_only_while_a_message_is_under_way() {
    let mut trial = idle();
    assert_eq!(trial.write(2), ["send 2"]);
    assert_eq!(trial.write(3), [""; 0]);
    assert_eq!(trial.pass(COLLECT / 2), [""; 0]);
    assert_eq!(trial.write(4), [""; 0]);
    assert_eq!(trial.answer(OK), ["batch 3-4"], "the answer came");
    assert_eq!(trial.write(5), [""; 0]);
    assert_eq!(trial.write(6), [""; 0]);
    assert_eq!(trial.pass(COLLECT), ["batch 5-6"], "they waited long enough");
    assert_eq!(trial.write(7), [""; 0]);
    let due = trial.core.deadline().unwrap();
    assert!(due <= trial.now + COLLECT);
}

#[test]
fn a_backlog_goes_in_full_batches_and_is_marked_row_by_row() {
    let mut trial = packing(600);
    // The first read does not know yet that the hub reads batches, and a batch of these rows has room for 196.
    let batches = ["1-32", "33-228", "229-288", "289-484", "485-544", "545-600"];
    assert_eq!(trial.up()[2..], batches.map(|rows| format!("batch {rows}")));
    assert_eq!(trial.answer(OK), [""; 0]);
    let all: Vec<u64> = (1..=32).collect();
    assert_eq!(trial.pass(SOON), [format!("mark {all:?}")]);
}

#[test]
fn rows_that_the_hub_asks_for_again_go_alone() {
    let mut trial = packing(5);
    trial.repeated = BTreeSet::from([2, 3]);
    assert_eq!(trial.up()[2..], ["send 1", "send 2", "send 3", "batch 4-5"]);
}

#[test]
fn a_hub_that_reads_no_batches_any_more_gets_single_reports() {
    let mut trial = packing(3);
    assert_eq!(trial.up()[2..], ["batch 1-3"]);
    trial.hub_reads_batches = false;
    trial.waiting.extend(4..=5);
    assert_eq!(trial.hand_in(Input::OutboxChanged), [""; 0], "it may still read them");
    assert_eq!(trial.answer(OK), ["send 4", "send 5"]);
}

#[test]
fn a_batch_that_uplink_rejects_for_good_is_sent_report_by_report() {
    let mut trial = packing(3);
    trial.up();
    assert_eq!(trial.answer(Err(PublishErrorKind::Permanent)), ["send 1", "send 2", "send 3"]);
    trial.answer(OK);
    assert_eq!(trial.answer(Err(PublishErrorKind::Permanent)), [""; 0], "2 is at fault");
    trial.answer(OK);
    assert_eq!(trial.pass(SOON), ["mark [1, 3]"]);
}

#[test]
fn a_batch_that_a_full_share_refuses_is_sent_again() {
    let mut trial = packing(3);
    trial.up();
    assert_eq!(trial.answer(Err(PublishErrorKind::SubjectFull)), [""; 0]);
    assert_eq!(trial.pass(FULL_PAUSE.1), ["batch 1-3"]);
}

#[test]
fn a_batch_without_an_answer_ends_the_session_and_all_of_it_goes_again() {
    let mut trial = packing(3);
    trial.up();
    assert_eq!(trial.answer(Err(PublishErrorKind::Transient)), ["end, wait"]);
    assert_eq!(trial.pass(RETRY.1)[2..], ["batch 1-3"]);
}
