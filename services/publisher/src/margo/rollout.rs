//! Reads `rollout.yaml`, which holds changes of a folder's devices until they are released. It is no Margo document, but is
//! parsed by the same code, with the same problems. A field that nothing acts on is refused by name: a deadline without effect
//! would be worse than none.

use muster_contract::decode::{Document as _, Violation};
use muster_contract::rollout::Rollout;
use muster_domain::rollout::is_zone;
use serde_json::Value;

use super::node::{Findings, Node};
use super::path::Path;
use super::plain::{PlainRule, plain};
use super::{locate, push_findings, text_of, yaml};
use crate::problems::Problems;

/// The lists and mappings of a rollout, and of a wave, that serde would also read from a list.
const MAPPINGS: [&str; 5] = ["after", "approvals", "budget", "deadlines", "retries"];
const MAPPINGS_OF_WAVE: [&str; 2] = ["success", "failure"];

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
    let mut found = check_mappings(value);
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

/// Finds lists in place of mappings, which serde would read by position.
fn check_mappings(value: &Value) -> Findings {
    let mut found = Findings::default();
    let root = Node { value, path: Path::default() };
    check_mapping(&root, &mut found);
    check_below(&root, &MAPPINGS, &mut found);
    for window in items(&root, "windows") {
        check_mapping(&window, &mut found);
    }
    for wave in items(&root, "waves") {
        check_mapping(&wave, &mut found);
        check_below(&wave, &MAPPINGS_OF_WAVE, &mut found);
        for check in items(&wave, "checks") {
            check_mapping(&check, &mut found);
        }
    }
    found
}

/// The entries of a list below a mapping.
fn items<'a>(node: &Node<'a>, key: &str) -> Vec<Node<'a>> {
    let list = node.value.get(key).and_then(Value::as_array).into_iter().flatten();
    let item = |(at, value)| Node { value, path: node.path.key(key).index(at) };
    list.enumerate().map(item).collect()
}

fn check_below(node: &Node<'_>, keys: &[&str], found: &mut Findings) {
    for key in keys {
        if let Some(value) = node.value.get(*key) {
            check_mapping(&Node { value, path: node.path.key(key) }, found);
        }
    }
}

fn check_mapping(node: &Node<'_>, found: &mut Findings) {
    _ = node.open_object(found);
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
    fn an_unknown_zone_and_a_policy_in_a_list_are_refused_with_their_line() {
        let windows = "windows:\n  - {start: '22:00', length: 6h, zone: Mars/Olympus}\n";
        for (text, words) in [
            (windows, "fleet/rollout.yaml:8: windows[0].zone: 'Mars/Olympus' is no time zone"),
            (
                "windows: [{start: '9', length: 6h}]\n",
                "fleet/rollout.yaml:7: windows[0].start: '9' is not a time of day",
            ),
            (
                "windows: [{cron: '0 25 * * *', length: 6h}]\n",
                "fleet/rollout.yaml:7: windows[0].cron: '0 25 * * *' is not a cron expression",
            ),
            (
                "windows:\n  - {cron: '0 22 * * *', days: [mon], length: 6h}\n",
                "fleet/rollout.yaml:8: windows[0].days: is of no use here",
            ),
            (
                "windows: [{length: 6h}]\n",
                "fleet/rollout.yaml:7: windows[0]: needs exactly one of start and cron",
            ),
            ("budget: [line, 2]\n", "fleet/rollout.yaml:7: budget"),
            (
                "approvals: {need: 3, of: [anna, ben]}\n",
                "fleet/rollout.yaml:7: approvals.need: is 3, and 'of' names 2 persons",
            ),
            (
                "approvals: {of: viewer}\n",
                "fleet/rollout.yaml:7: approvals.of: neither a role (approver, operator)",
            ),
            ("deadlines: [1h]\n", "fleet/rollout.yaml:7: deadlines"),
            (
                "deadlines: {device: 0s}\n",
                "fleet/rollout.yaml:7: deadlines.device: '0s' is not a time above 0",
            ),
            (
                "deadlines: {neverStarted: 721h}\n",
                "fleet/rollout.yaml:7: deadlines.neverStarted: '721h' is not a time",
            ),
            ("after: [web]\n", "fleet/rollout.yaml:7: after: is a list, not a mapping"),
            (
                "after: {web: [web]}\n",
                "fleet/rollout.yaml:7: after.web: is a cycle: web would wait for itself",
            ),
        ] {
            let refusals = refusals(&format!("{GOOD}{text}"));
            assert!(refusals.contains(words), "{words} is not in {refusals}");
        }
    }

    #[test]
    fn a_field_that_nothing_acts_on_is_refused_by_name() {
        for (text, words) in [
            (
                GOOD.replace("percent: 25%,", "percent: 25%, weight: 5,"),
                "fleet/rollout.yaml:5: waves[1].weight: is not a field",
            ),
            (format!("{GOOD}blueGreen: true\n"), "fleet/rollout.yaml:7: blueGreen: is not a field here"),
            (
                format!("{GOOD}retries: {{max: 2, delay: 9s}}\n"),
                "fleet/rollout.yaml:7: retries.delay: is not a field",
            ),
            (
                format!("{GOOD}deadlines: {{devices: 5m}}\n"),
                "fleet/rollout.yaml:7: deadlines.devices: is not a field",
            ),
        ] {
            let refusals = refusals(&text);
            assert!(refusals.contains(words), "{words} is not in {refusals}");
        }
    }

    #[test]
    fn a_check_that_cannot_be_asked_is_refused_with_its_line() {
        let check = |text: &str| {
            refusals(&GOOD.replace("devices: [a/one]}", &format!("devices: [a/one], checks: [{text}]}}")))
        };
        for (text, words) in [
            (
                "{webhook: 'http://a/x'}",
                "fleet/rollout.yaml:4: waves[0].checks[0].webhook: 'http://a/x' is not the address",
            ),
            (
                "{request: muster.publisher.release}",
                "waves[0].checks[0].request: 'muster.publisher.release' is not a subject",
            ),
            ("{request: muster.check.a, interval: 10ms}", "waves[0].checks[0]: has an interval below 1s"),
            ("{request: muster.check.a, count: 0}", "waves[0].checks[0].count: 0 is not a whole number"),
            ("{}", "waves[0].checks[0]: needs exactly one of request and webhook"),
            ("[muster.check.a]", "fleet/rollout.yaml:4: waves[0].checks[0]: is a list, not a mapping"),
        ] {
            let refusals = check(text);
            assert!(refusals.contains(words), "{words} is not in {refusals}");
        }
    }

    #[test]
    fn a_rollout_is_recognised_by_its_name() {
        assert!(is_one("sites/a/rollout.yaml") && is_one("rollout.yml") && is_one("fleet/Rollout.YAML"));
        assert!(!is_one("fleet/my-rollout.yaml") && !is_one("rollout.yaml/x.yaml"));
    }
}
