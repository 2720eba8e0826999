//! A fold of LEDGER by the value of a label: targets by standing, kept in a file. `bin/view.rs` reads LEDGER.

use std::collections::BTreeMap;
use std::io::Result;
use std::path::Path;

use serde_json::{Value, json};

/// Counts by standing, by value of the label.
pub type Groups = BTreeMap<String, BTreeMap<String, u64>>;

/// The highest generation and the highest (epoch, seq) hold, whichever came last.
pub fn apply(state: &mut Value, kind: &str, name: &str, fact: Value) {
    let order = |fact: &Value| ["epoch", "seq", "generation"].map(|number| fact[number].as_u64());
    if ["desired", "status"].contains(&kind) && order(&fact) >= order(&state[kind][name]) {
        state[kind][name] = fact;
    }
}

/// The targets of each group by standing.
pub fn table(state: &Value, label: &str) -> Groups {
    let mut groups = Groups::new();
    for (device, desired) in state["desired"].as_object().into_iter().flatten() {
        let (Some(value), Some(false)) = (desired["labels"][label].as_str(), desired["retired"].as_bool())
        else {
            continue;
        };
        let counts = groups.entry(value.to_owned()).or_default();
        for entry in desired["deployments"].as_array().into_iter().flatten() {
            let report = &state["status"][format!("{device}.{}", entry["id"].as_str().unwrap_or_default())];
            let is_loop = |retries: &Vec<Value>| retries.iter().any(|retry| retry["crashLoop"] == true);
            let standing = match report["generation"].as_u64() {
                None => "waiting",
                generation if generation < entry["targetGeneration"].as_u64() => "outdated",
                _ if report["retries"].as_array().is_some_and(is_loop) => "failed",
                _ => report["status"]["state"].as_str().unwrap_or_default(),
            };
            *counts.entry(standing.to_owned()).or_default() += 1;
        }
    }
    groups
}

/// The sums of a hub's view of a group by standing.
pub fn sums(view: &Value) -> BTreeMap<String, u64> {
    let sum = |by: &Value| by.as_object().into_iter().flatten().filter_map(|(_, count)| count.as_u64()).sum();
    let counts = view["counts"].as_object().into_iter().flatten();
    counts.map(|(standing, by)| (standing.clone(), sum(by))).collect()
}

/// The state of an earlier run, unless it is of another LEDGER, or LEDGER has forgotten the fact that follows it.
pub fn load(file: &Path, ledger: &str, first_seq: u64) -> Value {
    let kept = std::fs::read(file).ok().and_then(|text| serde_json::from_slice::<Value>(&text).ok());
    let reaches = |state: &Value| state["seq"].as_u64().is_some_and(|seq| seq + 1 >= first_seq);
    let kept = kept.filter(|state| state["ledger"] == ledger && reaches(state));
    kept.unwrap_or_else(|| json!({ "ledger": ledger, "seq": 0, "desired": {}, "status": {} }))
}

/// Replaces the file as a whole.
///
/// # Errors
/// It cannot be written.
pub fn save(file: &Path, state: &Value) -> Result<()> {
    std::fs::write(file.with_extension("new"), state.to_string())?;
    std::fs::rename(file.with_extension("new"), file)
}
