//! Tests that a batch is the reports that went into it, that a broken element breaks no other one, and what breaks a batch.

use serde_json::json;

use super::*;
use crate::report::Report;

const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// A report without the fields of the envelope.
fn element(deployment: &str, state: &str) -> Value {
    json!({
        "kind": "StatusReport", "observedAt": "2026-11-25T06:00:00Z", "deployment": deployment, "generation": 1,
        "digest": DIGEST, "status": {"state": state}, "components": [{"name": "main", "state": state}], "current": false,
    })
}

fn seq(number: u64) -> Seq {
    Seq::new(number).unwrap()
}

fn packed(reports: &[(u64, Value)], head: u64) -> Option<Vec<u8>> {
    let texts: Vec<_> = reports.iter().map(|(number, report)| (seq(*number), report.to_string())).collect();
    pack(Epoch::FIRST, seq(head), &texts)
}

fn batch(change: impl FnOnce(&mut Value)) -> Vec<u8> {
    let reports = [(3, element("web", "installing")), (4, element("web", "installed"))];
    let mut value: Value = serde_json::from_slice(&packed(&reports, 9).unwrap()).unwrap();
    change(&mut value);
    value.to_string().into()
}

fn parsed(reports: &[Vec<u8>]) -> Vec<Result<(u64, u64, u64), String>> {
    let of = |report: Report| (report.epoch().get(), report.seq().get(), report.head().get());
    reports
        .iter()
        .map(|report| Report::parse(report).map(of).map_err(|refusal| refusal.to_string()))
        .collect()
}

#[test]
fn a_batch_is_unpacked_into_the_reports_that_went_into_it() {
    let capabilities = json!({
        "kind": "CapabilitiesReport", "observedAt": "2026-11-25T06:00:00Z", "properties": {"a": [1, {"b": "}],{"}]},
        "agentVersion": "1",
    });
    let reports = [
        (2, element("web", "failed")),
        (5, capabilities),
        (6, element("db", "installed")),
        (9, element("web", "installed")),
    ];
    let unpacked = unpack(&packed(&reports, 12).unwrap()).unwrap();
    assert_eq!(unpacked.len(), reports.len());
    for ((number, report), text) in reports.iter().zip(&unpacked) {
        let mut single = report.clone();
        for (key, value) in [
            ("apiVersion", json!("muster/v1")),
            ("epoch", json!(1)),
            ("seq", json!(number)),
            ("head", json!(12)),
        ] {
            single[key] = value;
        }
        assert_eq!(serde_json::from_slice::<Value>(text).unwrap(), single);
        assert_eq!(Report::parse(text).unwrap(), Report::parse(single.to_string().as_bytes()).unwrap());
    }
}

#[test]
fn what_all_reports_have_alike_is_said_once() {
    let reports: Vec<_> = (1..=50).map(|number| (number, element("web", "installed"))).collect();
    let text = String::from_utf8(packed(&reports, 50).unwrap()).unwrap();
    assert_eq!((text.matches(DIGEST).count(), text.matches("observedAt").count()), (1, 1), "{text}");
    assert!(text.contains(r#""seqs":[[1,50]]"#), "{text}");
}

#[test]
fn an_elements_own_field_goes_before_the_common_one_and_null_is_none() {
    let text = batch(|batch| {
        batch["common"]["retries"] = json!([]);
        batch["reports"][1]["deployment"] = json!("db");
        batch["reports"][1]["retries"] = Value::Null;
    });
    let unpacked = unpack(&text).unwrap();
    let names = unpacked.iter().map(|text| serde_json::from_slice::<Value>(text).unwrap());
    let names: Vec<_> =
        names.map(|report| (report["deployment"].clone(), report.get("retries").cloned())).collect();
    assert_eq!(names, [(json!("web"), Some(json!([]))), (json!("db"), None)]);
}

#[test]
fn a_broken_element_keeps_its_number_and_breaks_no_other() {
    let broken = [json!({}), json!({"deployment": 7}), json!({"deployment": {"a": [1, 2]}})];
    for element in broken {
        let unpacked = unpack(&batch(|batch| batch["reports"][0] = element.clone())).unwrap();
        let parsed = parsed(&unpacked);
        assert!(parsed[0].is_err() && parsed[1] == Ok((1, 4, 9)), "{element}: {parsed:?}");
        let peek = crate::decode::peek(&unpacked[0]);
        assert_eq!((peek.epoch, peek.seq), (Some(1), Some(3)), "{element}");
    }
    // A value that is no object, which no writer of documents makes.
    for element in ["7", "[]", "\"a\"", "null"] {
        let text = String::from_utf8(batch(|batch| batch["reports"][0] = json!("HERE"))).unwrap();
        let unpacked = unpack(text.replace("\"HERE\"", element).as_bytes()).unwrap();
        let peek = crate::decode::peek(&unpacked[0]);
        assert_eq!(
            (parsed(&unpacked)[0].is_err(), peek.epoch, peek.seq),
            (true, Some(1), Some(3)),
            "{element}"
        );
    }
}

#[test]
fn a_field_twice_breaks_its_element_as_it_breaks_a_single_report() {
    let text = String::from_utf8(batch(|_| ())).unwrap();
    let text = text.replacen(r#""reports":[{"#, r#""reports":[{"deployment":"a","deployment":"b","#, 1);
    let parsed = parsed(&unpack(text.as_bytes()).unwrap());
    assert!(parsed[0].as_ref().is_err_and(|refusal| refusal.contains("duplicate")), "{parsed:?}");
    assert_eq!(parsed[1], Ok((1, 4, 9)));
}

#[test]
fn a_broken_envelope_breaks_the_batch_in_words() {
    let of = |count: u64| (1..=count).map(|number| (number, element("web", "failed"))).collect::<Vec<_>>();
    let repeat = |count: usize| {
        move |batch: &mut Value| {
            batch["seqs"] = json!([[1, count]]);
            batch["head"] = json!(count);
            batch["reports"] = vec![element("web", "failed"); count].into();
        }
    };
    let table: [(&str, Vec<u8>, &str); 15] = [
        ("not JSON", b"{".to_vec(), "EOF"),
        ("another kind", batch(|batch| batch["kind"] = json!("StatusReport")), "StatusReport"),
        ("no epoch", batch(|batch| batch["epoch"] = Value::Null), "null"),
        ("one report", batch(repeat(1)), "1 reports; a batch has 2 to 256"),
        ("257 reports", batch(repeat(257)), "257 reports; a batch has 2 to 256"),
        ("a number too many", batch(|batch| batch["seqs"] = json!([[3, 5]])), "3 numbers for 2 reports"),
        (
            "numbers that overlap",
            batch(|batch| batch["seqs"] = json!([[3, 4], [4, 4]])),
            "ascend without overlap",
        ),
        (
            "numbers that descend",
            batch(|batch| batch["seqs"] = json!([[4, 4], [3, 3]])),
            "ascend without overlap",
        ),
        (
            "very many numbers",
            batch(|batch| batch["seqs"] = json!([[1, 9_007_199_254_740_991_u64]])),
            "numbers for 2 reports",
        ),
        ("a head below", batch(|batch| batch["head"] = json!(3)), "3 is below the number 4"),
        ("its own number", batch(|batch| batch["reports"][1]["seq"] = json!(9)), "reports[1].seq"),
        ("a common epoch", batch(|batch| batch["common"]["epoch"] = json!(2)), "common.epoch"),
        (
            "an escape",
            String::from_utf8(batch(|batch| batch["reports"][1]["SEQ"] = json!(9)))
                .unwrap()
                .replace("SEQ", "\\u0073eq")
                .into(),
            "escape",
        ),
        ("a list in common", batch(|batch| batch["common"] = json!([])), "map"),
        (
            "a large field that all have",
            batch(|batch| {
                repeat(64)(batch);
                batch["common"]["x"] = json!("y".repeat(8_000));
            }),
            "as single reports",
        ),
    ];
    assert!(packed(&of(1), 1).is_none() && packed(&of(257), 257).is_none() && packed(&of(2), 1).is_none());
    for (case, text, words) in table {
        let refusal = unpack(&text).expect_err(case).to_string();
        assert!(refusal.contains(words), "{case}: {refusal}");
    }
    let refusal = unpack(&vec![b' '; BATCH_TEXT_BYTES_MAX + 1]).unwrap_err().to_string();
    assert!(refusal.contains("bytes of text"), "{refusal}");
}

#[test]
fn reports_that_are_too_large_together_are_not_packed() {
    let mut large = element("web", "failed");
    large["status"]["reason"] = json!("x".repeat(4_000));
    let reports: Vec<_> = (1..=70).map(|number| (number, large.clone())).collect();
    assert!(packed(&reports, 70).is_none() && packed(&reports[..50], 70).is_some());
    assert!(packed(&[(2, large.clone()), (1, large)], 2).is_none(), "numbers ascend");
}
