//! Adds the desired manifests to the answer of a view, which has a line for each device. They come from the query of status with
//! filters, at another moment than the view. A line that has changed in between gets no manifest and counts as left out, as does
//! one whose manifest LEDGER did not give.

use std::collections::{BTreeMap, BTreeSet};

use muster_contract::DeploymentId;
use muster_contract::history::Point;
use muster_contract::query::{DeploymentAnswer, Output, StandingLine};
use muster_contract::status::{StatusAnswer, StatusQuery, TargetStatus};
use serde_json::{Value, json};

use muster_client::status::all;

use crate::ask::{AskError, Hub, understood};

/// Adds the desired manifests to an answer for programs, and returns them: each manifest once, for each line its digest and
/// source, and the number of lines without one.
///
/// # Errors
/// When nobody answers.
pub(super) async fn add_to(
    answer: &mut Value,
    hub: &Hub,
    id: &DeploymentId,
    point: Point,
) -> Result<StatusAnswer, AskError> {
    let query = StatusQuery { id: Some(id.clone()), output: Output::Detail, point, ..StatusQuery::default() };
    let told = all(hub, &query, None).await?;
    let lines = understood::<DeploymentAnswer>(answer)?.devices;
    let told = of_lines(&lines, told);
    write(answer, &lines, &told);
    Ok(told)
}

/// Records in an answer for programs how many lines lack their manifest.
pub(super) fn count_omitted(answer: &mut Value) {
    let lines = answer["devices"].as_array().into_iter().flatten();
    let shall_run = lines.filter(|line| !line["targetGeneration"].is_null()).count();
    answer["manifestsLeftOut"] = shall_run.into();
}

/// The manifests of these lines.
fn of_lines(lines: &[StandingLine], mut told: StatusAnswer) -> StatusAnswer {
    let shown: BTreeMap<_, _> = lines.iter().map(|line| (&line.key, line.target_generation)).collect();
    told.targets.retain(|target| shown.get(&target.key) == Some(&target.target_generation));
    let StatusAnswer { targets, manifests, .. } = &mut told;
    let named: BTreeSet<_> = targets.iter().filter_map(|target| target.digest).collect();
    manifests.retain(|digest, _| named.contains(digest));
    let shall_run = lines.iter().filter(|line| line.target_generation.is_some()).count();
    let have = told.targets.iter().filter(|target| told.manifest(target).is_some()).count();
    told.manifests_left_out = shall_run.saturating_sub(have) as u64;
    told
}

/// Writes the manifests of its lines into an answer, under the names that status with filters has for them.
fn write(answer: &mut Value, lines: &[StandingLine], told: &StatusAnswer) {
    let of: BTreeMap<_, &TargetStatus> = told.targets.iter().map(|target| (&target.key, target)).collect();
    let written = answer["devices"].as_array_mut().into_iter().flatten();
    for (line, written) in lines.iter().zip(written) {
        let Some(target) = of.get(&line.key) else { continue };
        if let (Some(digest), Some(source)) = (&target.digest, &target.source) {
            (written["digest"], written["source"]) = (json!(digest), json!(source));
        }
    }
    if !told.manifests.is_empty() {
        answer["manifests"] = json!(told.manifests);
    }
    if told.manifests_left_out > 0 {
        answer["manifestsLeftOut"] = told.manifests_left_out.into();
    }
}

#[cfg(test)]
mod tests {
    use muster_contract::Generation;

    use super::*;

    const DEVICES: [&str; 3] = ["press-1", "press-2", "press-3"];

    fn answer() -> Value {
        let line = |device: &&str| {
            json!({"site": "plant7", "device": device, "deployment": "web", "standing": "waiting",
                "freshness": "never", "known": true, "targetGeneration": 1})
        };
        json!({ "devices": DEVICES.iter().map(line).collect::<Vec<_>>() })
    }

    fn lines() -> Vec<StandingLine> {
        serde_json::from_value(answer()["devices"].clone()).unwrap()
    }

    fn told() -> StatusAnswer {
        let manifest = json!({"id": "web", "name": "web", "applicationId": "com-example-web",
            "profile": {"type": "simulated", "components": [{"name": "main"}]}});
        let digest = muster_contract::canonical::Digest::of_value(&manifest).to_string();
        let target = |device: &&str| {
            json!({"site": "plant7", "device": device, "deployment": "web", "standing": "waiting",
                "freshness": "never", "known": true, "targetGeneration": 1, "kstatus": "NotFound",
                "strategy": "Apply", "actuation": "Pending", "reconcile": "Pending", "message": "waits",
                "components": [], "digest": digest, "source": {"kind": "git", "revision": "c1"}})
        };
        let targets: Vec<_> = DEVICES.iter().map(target).collect();
        let answer = json!({"asOf": {"ledgerSeq": 9, "at": "2026-11-20T08:00:00Z"}, "whole": true,
            "rollup": {"targets": 3, "known": 3, "counts": {}, "kstatus": {}},
            "targets": targets, "manifests": {digest: manifest}});
        serde_json::from_value(answer).unwrap()
    }

    #[test]
    fn a_program_reads_each_manifest_once_and_of_each_line_which_it_is() {
        let (mut answer, lines) = (answer(), lines());
        let told = of_lines(&lines, told());
        write(&mut answer, &lines, &told);
        assert_eq!((told.manifests.len(), told.manifests_left_out), (1, 0));
        for line in answer["devices"].as_array().unwrap() {
            let digest = line["digest"].as_str().unwrap();
            assert_eq!(answer["manifests"][digest]["id"], "web");
            assert_eq!(line["source"], json!({"kind": "git", "revision": "c1"}));
        }
        assert_eq!(answer.get("manifestsLeftOut"), None, "nothing is");
    }

    #[test]
    fn a_line_that_changed_in_between_is_left_out_and_counted() {
        let (mut answer, lines, mut later) = (answer(), lines(), told());
        later.targets[1].target_generation = Generation::new(2);
        later.targets.remove(2);
        let told = of_lines(&lines, later);
        write(&mut answer, &lines, &told);
        let named: Vec<_> = (0..3).map(|at| answer["devices"][at].get("digest").is_some()).collect();
        assert_eq!((named, &answer["manifestsLeftOut"]), (vec![true, false, false], &json!(2)));
    }

    #[test]
    fn where_nobody_tells_all_that_shall_run_is_left_out() {
        let mut answer = answer();
        answer["devices"][1]["targetGeneration"] = Value::Null;
        count_omitted(&mut answer);
        assert_eq!((&answer["manifestsLeftOut"], answer.get("manifests")), (&json!(2), None));
    }

    #[test]
    fn a_manifest_of_no_line_is_not_told() {
        let (mut answer, mut lines) = (answer(), lines());
        lines.iter_mut().for_each(|line| line.target_generation = None);
        let told = of_lines(&lines, told());
        write(&mut answer, &lines, &told);
        assert_eq!((told.manifests_left_out, answer.get("manifests")), (0, None), "nothing shall run");
    }
}
