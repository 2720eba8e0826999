//! Tests the rules of order of a message with several reports.

use muster_contract::dictionary::REPORTS_1;
use muster_contract::headers::{CONTENT_ENCODING, REPORTS, ZSTD, ZSTD_REPORTS_1};
use muster_contract::packed::pack;
use muster_contract::{Epoch, Seq};
use muster_domain::intake::SINGLE_AFTER_REFUSAL;

use super::*;

/// One batch of the reports from 1 on.
fn batch(count: u64) -> Sent {
    let fields = |sent: &Sent| {
        let mut report: serde_json::Value = serde_json::from_slice(&sent.payload).unwrap();
        let fields = report.as_object_mut().unwrap();
        ["apiVersion", "epoch", "seq", "head"].into_iter().for_each(|key| _ = fields.remove(key));
        report.to_string()
    };
    let elements: Vec<_> =
        reports(count).iter().zip(1..).map(|(sent, seq)| (Seq::new(seq).unwrap(), fields(sent))).collect();
    let text = pack(Epoch::FIRST, Seq::new(count).unwrap(), &elements).unwrap();
    let payload = zstd::bulk::compress(&text, 3).unwrap();
    let headers = vec![(REPORTS, count.to_string()), (CONTENT_ENCODING, ZSTD.to_owned())];
    Sent { payload, position: 11, headers }
}

/// The payloads of the facts about reports among effects.
fn facts_of_reports(effects: &[Effect<Sent>]) -> Vec<Vec<u8>> {
    let status = |effect: &Effect<Sent>| match effect {
        Effect::Publish(publication, _) if matches!(publication.fact, Fact::Status(_)) => {
            Some(publication.payload.clone())
        }
        _ => None,
    };
    effects.iter().filter_map(status).collect()
}

#[test]
fn a_batch_is_acknowledged_after_the_facts_of_its_last_report() {
    let (mut alone, mut driven) = (Driven::new(), Driven::new());
    alone.handle(Input::Reports(reports(40), None));
    let singles = alone.effects();
    driven.handle(Input::Reports(vec![batch(40)], None));
    let effects = driven.effects();
    assert_eq!(facts_of_reports(&effects), facts_of_reports(&singles));
    assert_eq!(published(&effects), published(&singles));
    let facts = published(&effects) as u64;
    for sequence in 101..100 + facts {
        driven.stored(sequence);
        assert!(
            !driven.effects().iter().any(|effect| matches!(effect, Effect::Acknowledge(_))),
            "{sequence}"
        );
    }
    driven.stored(100 + facts);
    let effects = driven.effects();
    assert!(matches!(&effects[..], [Effect::Acknowledge(message)] if message.reports == 40), "{effects:?}");
}

#[test]
fn a_report_made_smaller_with_the_dictionary_is_the_same_report() {
    let (mut plain, mut driven) = (Driven::new(), Driven::new());
    let smaller = |sent: &Sent| {
        let mut encoder = zstd::bulk::Compressor::with_dictionary(3, REPORTS_1).unwrap();
        let headers = vec![(CONTENT_ENCODING, ZSTD_REPORTS_1.to_owned())];
        Sent { payload: encoder.compress(&sent.payload).unwrap(), headers, ..sent.clone() }
    };
    let messages: Vec<_> = reports(3).iter().map(smaller).collect();
    plain.handle(Input::Reports(reports(3), None));
    driven.handle(Input::Reports(messages.clone(), None));
    assert_eq!(facts_of_reports(&driven.effects()), facts_of_reports(&plain.effects()));
    let without = Sent { headers: vec![(CONTENT_ENCODING, ZSTD.to_owned())], ..messages[0].clone() };
    let mut other = Driven::new();
    other.handle(Input::Reports(vec![without], None));
    assert!(facts_of_reports(&other.effects()).is_empty(), "the dictionary is missing");
}

#[test]
fn further_messages_wait_while_many_facts_have_no_answer() {
    let mut driven = Driven::new();
    let again = |position| Sent { position, ..batch(250) };
    driven.handle(Input::Reports((11..40).map(again).collect(), Some(now())));
    // The first batch makes facts, the others are known.
    driven.effects();
    assert!(driven.core.is_ready_for_reports());
    let mut driven = Driven::new();
    let alone = |seq: u64| {
        let mut sent = unknown().remove(0);
        sent.payload =
            String::from_utf8(sent.payload).unwrap().replace("\"seq\":1", &format!("\"seq\":{seq}")).into();
        sent.payload = String::from_utf8(sent.payload).unwrap().replace("\"head\":1", "\"head\":3000").into();
        Sent { position: 10 + seq, ..sent }
    };
    driven.handle(Input::Reports((1..=3_000).map(alone).collect(), Some(now())));
    driven.effects();
    assert!(!driven.core.is_ready_for_reports(), "rejected reports wait for QUARANTINE");
    assert!(driven.intake.rejections_pending() <= 1_300, "{}", driven.intake.rejections_pending());
}

#[test]
fn a_fact_that_ledger_never_stores_is_that_of_its_report_in_the_batch() {
    let mut driven = Driven::new();
    driven.handle(Input::Reports(vec![batch(8)], None));
    let effects = driven.effects();
    let facts = published(&effects);
    let kinds = |effect: &Effect<Sent>| match effect {
        Effect::Publish(publication, _) => Some(publication.fact.clone()),
        _ => None,
    };
    let all: Vec<_> = effects.iter().filter_map(kinds).collect();
    let fifth =
        all.iter().position(|fact| matches!(fact, Fact::Status(fact) if fact.seq.get() == 5)).unwrap();
    (0..fifth).for_each(|at| driven.stored(101 + at as u64));
    driven.effects();
    driven.handle(Input::FactAnswer(FactAnswer::Unstorable("too large".to_owned())));
    (fifth + 1..facts).for_each(|at| driven.stored(101 + at as u64));
    let effects = driven.effects();
    let rejection = effects.iter().find_map(|effect| match effect {
        Effect::StoreRejected(rejection) => Some(rejection.clone()),
        _ => None,
    });
    let rejection = rejection.unwrap_or_else(|| panic!("{effects:?}"));
    assert!(rejection.id.contains(".rejected.1.5."), "{}", rejection.id);
    driven.handle(Input::RejectionAnswer(rejection.ticket, Ok(())));
    assert_eq!(published(&driven.effects()), 1);
    driven.stored(200);
    let effects = driven.effects();
    assert!(matches!(&effects[..], [Effect::Acknowledge(message)] if message.reports == 8), "{effects:?}");
}

#[test]
fn a_message_that_cannot_be_unpacked_ends_batches_for_its_device() {
    let whole = batch(3);
    let bomb = Sent { payload: zstd::bulk::compress(&vec![b' '; 8 << 20], 19).unwrap(), ..whole.clone() };
    let with = |name: &'static str, value: &str| {
        let headers = whole.headers.iter().filter(|(key, _)| *key != name).cloned();
        Sent { headers: headers.chain([(name, value.to_owned())]).collect(), ..whole.clone() }
    };
    let cut = Sent { payload: whole.payload[..whole.payload.len() / 2].to_vec(), ..whole.clone() };
    let many_frames =
        Sent { payload: [whole.payload.clone(), whole.payload.clone()].concat(), ..whole.clone() };
    let large = Sent { payload: vec![b'x'; 65 * 1024], ..whole.clone() };
    let table = [
        (bomb, "decompressed it has 8388608 bytes; 262144 are allowed"),
        (with(CONTENT_ENCODING, "zstd;dictionary=7"), "does not know the encoding"),
        (with(REPORTS, "4"), "'4', and the batch has 3 reports"),
        (with(REPORTS, "-1"), "'-1', and the batch has 3 reports"),
        (cut, "Content-Encoding"),
        (many_frames, "Content-Encoding"),
        (large, "65536 are allowed"),
    ];
    for (message, words) in table {
        let mut driven = Driven::new();
        driven.handle(Input::Reports(reports(1), None));
        let facts = published(&driven.effects());
        (0..facts as u64).for_each(|fact| driven.stored(101 + fact));
        driven.effects();
        let ticket = stored_first(&mut driven, &[message]);
        driven.handle(Input::RejectionAnswer(ticket, Ok(())));
        let effects = driven.effects();
        let reason = effects.iter().find_map(|effect| match effect {
            Effect::Publish(publication, _) => match &publication.fact {
                Fact::Quarantine(fact) => Some((fact.reason.clone(), fact.seq)),
                _ => None,
            },
            _ => None,
        });
        let (reason, seq) = reason.unwrap_or_else(|| panic!("{words}: {effects:?}"));
        assert!(reason.contains(words) && seq.is_none(), "{words}: {reason}");
        let asked = |driven: &mut Driven, after: Duration| {
            let then = driven.conditions.now.checked_add(after).unwrap();
            driven.intake.owe_receipt_to(&"plant7/press-4".parse().unwrap());
            driven.intake.drain_due_receipts(then, 1).remove(0).1.batches
        };
        assert_eq!(asked(&mut driven, Duration::from_secs(1)), [""; 0], "{words}");
        assert_eq!(
            asked(&mut driven, 2 * SINGLE_AFTER_REFUSAL),
            [ZSTD, ZSTD_REPORTS_1],
            "{words}: in the end it may try again"
        );
    }
}
