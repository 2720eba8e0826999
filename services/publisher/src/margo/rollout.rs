//! Reads `rollout.yaml`, which holds changes of a folder's devices until they are released. It is no Margo document, but is
//! parsed by the same code, with the same problems. Fields that this release does not act on are refused by name: a
//! deadline without effect would be worse than none.

use muster_contract::decode::{Document as _, Violation};
use muster_contract::rollout::Rollout;
use muster_domain::rollout::is_zone;
use serde_json::Value;

use super::node::{Findings, Node};
use super::path::Path;
use super::plain::{PlainRule, plain};
use super::{locate, push_findings, text_of, yaml};
use crate::problems::Problems;

/// Fields of a rollout that this release does not act on.
const UNSUPPORTED: [&str; 1] = ["retries"];
/// Fields of a wave that this release does not act on.
const UNSUPPORTED_IN_WAVE: [&str; 3] = ["checks", "order", "perMinute"];

/// True for the path of a rollout.
pub fn is_one(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    ["rollout.yaml", "rollout.yml"].iter().any(|reserved| name.eq_ignore_ascii_case(reserved))
}

/// Reads a rollout. Problems are added to `problems` under the name `file`.
pub fn read(file: &str, text: &[u8], problems: &mut Problems) -> Option<Rollout> {
    let text = text_of(file, text, problems)?;
    let (mut rollout, mut documents) = (None, 0);
    for (at, read) in yaml::documents(text).into_iter().enumerate() {
        match read {
            Ok(value) if value.is_null() => {}
            Ok(_) if documents > 0 => {
                let rule = "is a second document; a folder has one rollout";
                problems.push(file, || locate::line_of(text, at, &Path::default()), "", rule);
            }
            Ok(value) => {
                documents += 1;
                match read_value(&value) {
                    Ok(read) => rollout = Some(read),
                    Err(found) => push_findings(file, text, at, found, problems),
                }
            }
            Err(bad) => {
                documents += 1;
                problems.push(file, || bad.line, bad.path, bad.rule);
            }
        }
    }
    if documents == 0 {
        problems.push(file, || None, "", "is empty: it needs apiVersion muster/v1 and kind Rollout");
    }
    rollout
}

/// The line of a field of a rollout.
pub fn line_of(text: &[u8], field: &str) -> Option<u64> {
    locate::line_of(std::str::from_utf8(text).ok()?, 0, &Path::default().below(field))
}

fn read_value(value: &Value) -> Result<Rollout, Findings> {
    let mut found = unsupported(value);
    if !found.0.is_empty() {
        return Err(found);
    }
    match serde_path_to_error::deserialize::<_, Rollout>(value) {
        Ok(rollout) => match rollout.check().and_then(|()| check_zones(&rollout)) {
            Ok(()) => return Ok(rollout),
            Err(Violation { path, rule }) => found.push(&Path::default().below(&path), rule),
        },
        Err(error) => {
            let at = Path::default().below(&error.path().to_string());
            let PlainRule { field, rule } = plain(&error.inner().to_string());
            // The path of an unknown field ends with the field already.
            let at =
                field.filter(|field| at.last_key() != Some(field)).map_or(at.clone(), |field| at.key(&field));
            found.push(&at, rule);
        }
    }
    Err(found)
}

/// Refuses a time zone that this machine does not know: the window would never open.
fn check_zones(rollout: &Rollout) -> Result<(), Violation> {
    match rollout.windows.iter().position(|window| !is_zone(&window.zone)) {
        None => Ok(()),
        Some(at) => {
            let zone = &rollout.windows[at].zone;
            let rule = format!(
                "'{zone}' is no time zone that the publisher's machine knows: write UTC, or a name such as Europe/Berlin"
            );
            Err(Violation::at(format!("windows[{at}].zone"), rule))
        }
    }
}

/// Finds lists in place of mappings, which serde would read by position, and fields that this release does not act on.
fn unsupported(value: &Value) -> Findings {
    let mut found = Findings::default();
    let root = Node { value, path: Path::default() };
    check_mapping(&root, &UNSUPPORTED, &mut found);
    for key in ["approvals", "budget", "deadlines"] {
        if let Some(value) = value.get(key) {
            check_mapping(&Node { value, path: root.path.key(key) }, &[], &mut found);
        }
    }
    for (at, wave) in value["waves"].as_array().into_iter().flatten().enumerate() {
        let wave = Node { value: wave, path: root.path.key("waves").index(at) };
        check_mapping(&wave, &UNSUPPORTED_IN_WAVE, &mut found);
        for (key, fields) in [("success", &["evidence"][..]), ("failure", &[])] {
            if let Some(value) = wave.value.get(key) {
                check_mapping(&Node { value, path: wave.path.key(key) }, fields, &mut found);
            }
        }
    }
    found
}

fn check_mapping(node: &Node<'_>, unsupported: &[&str], found: &mut Findings) {
    let Some(object) = node.open_object(found) else { return };
    for field in unsupported.iter().filter(|field| object.map.contains_key(**field)) {
        found.push(&object.path.key(field), "is not supported yet: nothing would act on it; remove it");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "\
apiVersion: muster/v1
kind: Rollout
waves:
  - {name: canary, devices: [a/one]}
  - {name: quarter, percent: 25%, maxInFlight: 2, success: {atLeast: 95%}, failure: {atMost: 5%, minimumSample: 4}}
  - {name: north, selector: {region: north}, allowEmpty: true}
";

    fn refusals(text: &str) -> String {
        let mut problems = Problems::default();
        read("fleet/rollout.yaml", text.as_bytes(), &mut problems);
        problems.to_string()
    }

    #[test]
    fn a_rollout_has_waves() {
        let mut problems = Problems::default();
        let rollout = read("rollout.yaml", GOOD.as_bytes(), &mut problems).unwrap();
        let names: Vec<_> = rollout.waves.iter().map(|wave| wave.name.as_str()).collect();
        assert_eq!((names, problems.is_empty()), (vec!["canary", "quarter", "north"], true));
        assert!(read("rollout.yaml", b"apiVersion: muster/v1\nkind: Rollout\n", &mut problems).is_some());
    }

    #[test]
    fn a_malformed_rollout_is_named_by_line_field_and_rule() {
        let waves =
            |more: &str| format!("apiVersion: muster/v1\nkind: Rollout\nwaves:\n  - name: a\n    {more}\n");
        for (text, words) in [
            (String::new(), "fleet/rollout.yaml: is empty"),
            ("kind: Rollout\n".to_owned(), "apiVersion: is missing"),
            (
                "apiVersion: muster/v2\nkind: Rollout\n".to_owned(),
                "fleet/rollout.yaml:1: apiVersion: 'muster/v2' is not",
            ),
            (format!("{GOOD}pace: 3\n"), "fleet/rollout.yaml:7: pace: is not a field here; there are"),
            (waves("percent: 120%"), "fleet/rollout.yaml:5: waves[0].percent: '120%' is not a percentage"),
            (waves("percent: 20"), "fleet/rollout.yaml:5: waves[0].percent: is a number, not a text"),
            (waves("count: 0"), "fleet/rollout.yaml:5: waves[0].count: 0 is not a whole number"),
            (waves("colour: red"), "fleet/rollout.yaml:5: waves[0].colour: is not a field here"),
            (waves("devices: [one]"), "fleet/rollout.yaml:5: waves[0].devices: 'one' is not SITE/DEVICE"),
            (waves("selector: {Ring: x}"), "'Ring' is not a valid label"),
            (format!("{GOOD}---\n{GOOD}"), "is a second document"),
            ("- a\n".to_owned(), "fleet/rollout.yaml:1: is a list, not a mapping"),
            (waves("count: 1\n  - [a, []]"), "fleet/rollout.yaml:6: waves[1]: is a list, not a mapping"),
        ] {
            assert!(refusals(&text).contains(words), "{text}: {}", refusals(&text));
        }
    }

    #[test]
    fn a_window_of_an_unknown_zone_and_a_policy_in_a_list_are_refused_with_their_line() {
        let windows = "windows:\n  - {start: '22:00', length: 6h, zone: Mars/Olympus}\n";
        for (text, words) in [
            (windows, "fleet/rollout.yaml:8: windows[0].zone: 'Mars/Olympus' is no time zone"),
            (
                "windows: [{start: '9', length: 6h}]\n",
                "fleet/rollout.yaml:7: windows[0].start: '9' is not a time of day",
            ),
            ("budget: [line, 2]\n", "fleet/rollout.yaml:7: budget"),
            ("deadlines: [1h]\n", "fleet/rollout.yaml:7: deadlines"),
        ] {
            let refusals = refusals(&format!("{GOOD}{text}"));
            assert!(refusals.contains(words), "{words} is not in {refusals}");
        }
    }

    #[test]
    fn a_field_that_nothing_acts_on_yet_is_refused_by_name() {
        let text = format!("{GOOD}retries: 3\n").replace("percent: 25%,", "percent: 25%, perMinute: 5,");
        let refusals = refusals(&text);
        for words in [
            "fleet/rollout.yaml:7: retries: is not supported yet",
            "fleet/rollout.yaml:5: waves[1].perMinute: is not supported yet",
        ] {
            assert!(refusals.contains(words), "{words} is not in {refusals}");
        }
    }

    #[test]
    fn a_rollout_is_recognised_by_its_name() {
        assert!(is_one("sites/a/rollout.yaml") && is_one("rollout.yml") && is_one("fleet/Rollout.YAML"));
        assert!(!is_one("fleet/my-rollout.yaml") && !is_one("rollout.yaml/x.yaml"));
    }
}
