//! `states` of a deployment, as EMCO writes its history: a published revision is `Instantiated`, its successor leaves it
//! `Updated`, and a deployment that no device is to run any more is `Terminated`. `Created` and `Approved` are steps in Git
//! or of a request, of which LEDGER has no fact; Muster has no `stop`.
//!
//! `instance` is the commit, request or plan, `revision` its sequence in LEDGER, which never repeats (`--at-seq` asks for that
//! moment), 0 where EMCO has 0. The status context is the deployment itself, whose id every revision keeps. Omissions are
//! declared: `actionsSince` beside the actions, or `statesLeftOut` in place of all of them.

use muster_contract::actions::{Action, ActionKind, ActionsAnswer};
use serde_json::{Map, Value, json};

/// Puts it into the shape of a deployment; where nobody tells, why.
pub fn insert(shape: &mut Value, told: Result<ActionsAnswer, String>) {
    match told {
        Ok(answer) => shape["states"] = states(&answer),
        Err(why) => shape["statesLeftOut"] = why.into(),
    }
}

fn states(answer: &ActionsAnswer) -> Value {
    let mut states = json!({ "statusctxid": answer.deployment, "actions": actions(&answer.actions) });
    if let Some(since) = answer.since {
        states["actionsSince"] = since.at.to_string().into();
    }
    states
}

fn actions(actions: &[Action]) -> Vec<Value> {
    let mut written = Vec::new();
    // The revision that runs, as far as it is known.
    let mut running: Option<&Action> = None;
    for action in actions {
        let before = running.replace(action);
        match action.action {
            ActionKind::Published => written.push(entry("Instantiated", action, Some(action))),
            ActionKind::Changed => {
                written.push(entry("Updated", action, before));
                written.push(entry("Instantiated", action, Some(action)));
            }
            ActionKind::Removed => {
                let mut ended = entry("Terminated", action, before);
                ended.insert("revision".to_owned(), 0.into());
                written.push(ended);
                running = None;
            }
        }
    }
    written.into_iter().map(Value::Object).collect()
}

/// The state that an action gives a revision: its own, or the one before.
fn entry(state: &str, action: &Action, of: Option<&Action>) -> Map<String, Value> {
    let source = of.and_then(|of| of.source.as_ref());
    let fields = [
        ("state", state.into()),
        ("instance", source.map_or("", |source| &source.revision).into()),
        ("time", action.at.to_string().into()),
        ("revision", of.map_or(0, |of| of.ledger_seq).into()),
    ];
    fields.map(|(key, value)| (key.to_owned(), value)).into_iter().collect()
}
