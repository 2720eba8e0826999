//! Hooks before placement: what waits for them, what an answer changes, and what it cannot.

use muster_contract::limits::HOOK_CANDIDATES_MAX;
use muster_contract::rollout::CheckResult;

use super::*;

fn hub(nodes: usize) -> Hub {
    let mut hub = Hub::with_nodes(&vec![8; nodes]);
    let hooks = json!([
        { "before": "placement", "request": "muster.check.sites" },
        { "before": "placement", "webhook": "https://hooks.example/secret" },
    ]);
    hub.ask(plan_request(&json!({ "hooks": hooks }))).unwrap();
    hub
}

fn answer(value: Value) -> HookAnswer {
    request(value)
}

fn pass() -> HookAnswer {
    answer(json!({ "result": "pass" }))
}

impl Hub {
    fn hook_run(&mut self) -> Option<HookRun> {
        let now = self.now();
        self.state.hook_run(&plan_name(), now)
    }

    /// Answers as many hooks of a run, and records them.
    fn answer(&mut self, answers: impl IntoIterator<Item = HookAnswer>) -> bool {
        let mut run = self.hook_run().unwrap();
        answers.into_iter().for_each(|answer| run.answer(answer));
        let now = self.now();
        let recorded = self.state.record_hooks(&mut run, now);
        let is_recorded = recorded.is_some();
        if let Some(document) = recorded {
            document.check().unwrap();
            self.log.push(document.clone());
            self.state.apply(document);
        }
        self.converge();
        is_recorded
    }

    fn message_of(&self, id: &str) -> String {
        let plan = self.state.plan(&plan_name()).unwrap();
        plan.revision(&id.parse().unwrap()).unwrap().message.clone()
    }

    fn rejected(&self) -> BTreeMap<String, String> {
        let plan = self.state.plan(&plan_name()).unwrap();
        let rejected = self.state.explain(plan, self.now()).rejected.into_iter();
        rejected.map(|one| (one.node.device.to_string(), one.reasons.join("; "))).collect()
    }
}

#[test]
fn nothing_is_placed_before_each_hook_has_answered() {
    let mut hub = hub(3);
    hub.deploy("r1", 2, "1");
    assert_eq!(hub.revision_state("r1"), RevisionState::Pending);
    assert!(hub.instances().is_empty());
    assert_eq!(hub.rejected()["n00001"], "the hooks of the plan have not answered");
    let mut run = hub.hook_run().unwrap();
    let (hook, question) = run.question().unwrap();
    assert_eq!((hook.name().as_str(), question.candidates.len()), ("muster.check.sites", 3));
    let without_first = json!({ "result": "pass", "nodes": [node_key(1), node_key(2)], "reason": "full" });
    run.answer(answer(without_first.clone()));
    let (hook, question) = run.question().unwrap();
    assert_eq!(hook.name(), "https://hooks.example", "the path of a webhook is not shown");
    assert!(question.candidates.iter().all(|one| one.node != node_key(0)), "{question:?}");
    assert!(hub.answer([answer(without_first), pass()]));
    assert_eq!(hub.pending_types(), [OperationType::Create, OperationType::Create]);
    assert!(hub.instances().iter().all(|one| one.active().unwrap().node != node_key(0)));
    assert_eq!(hub.rejected()["n00000"], "hook muster.check.sites left it out: full");
    assert!(hub.hook_run().is_none(), "no step waits for them");
}

#[test]
fn any_planner_places_by_the_recorded_answers_alone() {
    let mut hub = hub(5);
    hub.deploy("r1", 2, "1");
    hub.answer([answer(json!({ "result": "pass", "nodes": [node_key(3), node_key(4)] })), pass()]);
    let placed = |state: &PlansState| -> Vec<_> {
        let name = plan_name();
        let instances = state.instances_of(&name);
        instances.map(|one| (one.name.clone(), one.active().map(|on| on.node.clone()))).collect()
    };
    // Another planner folds PLANS up to each message, and decides the rest.
    for folded in 0..=hub.log.len() {
        let mut other = PlansState::default();
        hub.log[..folded].iter().cloned().for_each(|document| _ = other.apply(document));
        let is_answered = other.plan(&plan_name()).is_some_and(|plan| plan.hook_answers.is_some());
        for _ in 0..4 {
            other.time_passed();
            other.advance(&hub.devices, hub.now(), 1000);
        }
        let expected = if is_answered { placed(&hub.state) } else { Vec::new() };
        assert_eq!(placed(&other), expected, "after {folded} messages");
    }
}

#[test]
fn a_hook_that_fails_fails_the_revision_and_no_answer_holds_it() {
    let mut hub = hub(2);
    hub.deploy("r1", 1, "1");
    let held = |reason: &str| answer(json!({ "result": "inconclusive", "reason": reason }));
    assert!(hub.answer([pass(), held("no answer within 10s")]));
    assert_eq!(hub.message_of("r1"), "hook https://hooks.example is inconclusive: no answer within 10s");
    assert!(!hub.answer([pass(), held("no route")]), "the first reason is kept");
    assert!(!hub.answer([held("no answer within 10s")]), "also if another hook is inconclusive in turn");
    assert_eq!(hub.revision_state("r1"), RevisionState::Pending);
    let fail = answer(json!({ "result": "fail", "reason": "the budget is used up" }));
    assert!(hub.answer([fail]));
    assert_eq!(hub.revision_state("r1"), RevisionState::Failed);
    assert_eq!(hub.message_of("r1"), "hook muster.check.sites refuses it: the budget is used up");
    assert!(hub.instances().is_empty() && hub.hook_run().is_none());
    hub.deploy("r2", 1, "1");
    assert!(hub.answer([pass(), pass()]), "each revision is asked about");
    assert_eq!(hub.revision_state("r2"), RevisionState::InProgress);
}

#[test]
fn a_held_revision_is_cancelled_and_a_removal_asks_no_hook() {
    let mut hub = hub(2);
    hub.deploy("r1", 1, "1");
    let cancel = json!({ "plan": "web", "id": "r1", "verb": "cancel" });
    let mut run = hub.hook_run().unwrap();
    hub.ask(PlansRequest::PlanRevision(request(cancel))).unwrap();
    let now = hub.now();
    assert_eq!(hub.state.record_hooks(&mut run, now), None, "an answer that comes later changes nothing");
    assert!(hub.hook_run().is_none());
    hub.deploy("r2", 1, "1");
    hub.deploy("r3", 0, "1");
    assert!(hub.hook_run().is_none());
    assert_eq!(hub.revision_state("r3"), RevisionState::Completed);
}

#[test]
fn a_hook_replaces_coordinates_by_the_rules_for_a_person() {
    let mut hub = hub(2);
    hub.deploy("r1", 1, "1");
    let mut run = hub.hook_run().unwrap();
    run.answer(answer(json!({ "result": "pass", "coordinates": { "other": {} } })));
    let (hook, reason) = run.inconclusive().unwrap();
    assert!(hook == "muster.check.sites" && reason.contains("no payload other"), "{reason}");
    assert!(run.question().is_none(), "no further hook is asked");
    let replaced = answer(json!({ "result": "pass", "coordinates": { "main": { "zone": "b" } } }));
    assert!(hub.answer([replaced, pass()]));
    let plan = hub.state.plan(&plan_name()).unwrap();
    let revision = &plan.revisions[0];
    assert_eq!(serde_json::to_value(&revision.coordinates).unwrap(), json!({ "main": { "zone": "b" } }));
    assert_eq!(plan.hook_answers.as_ref().unwrap().hooks[0].replaced[0].as_str(), "main");
    hub.approve_all();
    assert_eq!(hub.revision_state("r1"), RevisionState::Completed);
}

#[test]
fn hooks_are_asked_again_about_an_instance_without_a_node() {
    let mut hub = hub(1);
    hub.deploy("r1", 1, "1");
    assert!(hub.answer([answer(json!({ "result": "pass", "nodes": [] })), pass()]));
    let message = hub.instances()[0].operations[0].message.clone();
    assert_eq!(message, "no node of 1 has room: 1 not allowed by a hook");
    assert_eq!(hub.revision_state("r1"), RevisionState::InProgress);
    hub.ask(node_request(7, "d1", 8)).unwrap();
    for state in ["allocating", "allocated"] {
        hub.node_state(7, state, Some("north")).unwrap();
    }
    hub.converge();
    assert_eq!(hub.rejected()["n00007"], "a hook has not answered about it yet");
    let none = |result, reason| answer(json!({ "result": result, "reason": reason }));
    assert!(!hub.answer([none(CheckResult::Inconclusive, "no route")]));
    assert_eq!(hub.rejected()["n00007"], "hook muster.check.sites is inconclusive: no route");
    assert!(!hub.answer([pass(), none(CheckResult::Fail, "full")]), "it places nothing anew");
    assert_eq!(hub.revision_state("r1"), RevisionState::InProgress);
    assert_eq!(hub.rejected()["n00007"], "the hooks left it out when they were last asked about it");
    assert_eq!(hub.rejected()["n00000"], "hook muster.check.sites left it out");
    let both = json!({ "result": "pass", "nodes": [node_key(7), node_key(9)] });
    assert!(hub.answer([answer(both), pass()]), "a node that it was not asked about is not used");
    assert_eq!(hub.pending_types(), [OperationType::Create]);
    assert!(hub.hook_run().is_none());
}

#[test]
fn answers_that_place_nothing_anew_are_not_recorded_again() {
    let mut hub = hub(2);
    hub.deploy("r1", 1, "1");
    let none = |reason: &str| answer(json!({ "result": "pass", "nodes": [], "reason": reason }));
    assert!(hub.answer([none("0 free"), pass()]));
    let messages = hub.log.len();
    for attempt in 1..5 {
        assert!(!hub.answer([none(&format!("{attempt} free")), pass()]), "another reason");
        assert!(!hub.answer([pass(), none("full")]), "another hook");
    }
    assert_eq!(hub.log.len(), messages);
    assert_eq!(hub.rejected()["n00001"], "hook muster.check.sites left it out: 0 free");
}

#[test]
fn coordinates_of_a_revision_that_has_begun_are_not_replaced() {
    let mut hub = hub(1);
    hub.deploy("r1", 1, "1");
    assert!(hub.answer([answer(json!({ "result": "pass", "nodes": [] })), pass()]));
    let coordinates = |hub: &Hub| hub.state.plan(&plan_name()).unwrap().revisions[0].coordinates.clone();
    let before = coordinates(&hub);
    let replaced = json!({ "result": "pass", "coordinates": { "main": { "zone": "b" }, "other": {} } });
    assert!(hub.answer([answer(replaced), pass()]));
    assert_eq!(coordinates(&hub), before);
    let answers = hub.state.plan(&plan_name()).unwrap().hook_answers.clone().unwrap();
    assert!(answers.hooks.iter().all(|hook| hook.replaced.is_empty()), "{answers:?}");
    assert_eq!(hub.pending_types(), [OperationType::Create]);
}

#[test]
fn each_candidate_is_asked_about_before_one_is_asked_about_again() {
    let nodes = 2 * HOOK_CANDIDATES_MAX + 1;
    let mut hub = hub(nodes);
    hub.deploy("r1", 1, "1");
    let asked = |hub: &mut Hub| -> BTreeSet<_> {
        let run = hub.hook_run().unwrap();
        let (_, question) = run.question().unwrap();
        assert_eq!(question.candidates_count, nodes as u64);
        question.candidates.iter().map(|one| one.node.clone()).collect()
    };
    let none = || answer(json!({ "result": "pass", "nodes": [] }));
    let mut rounds = Vec::new();
    for at in 0..6 {
        rounds.push(asked(&mut hub));
        assert_eq!(hub.answer([none(), pass()]), at == 0, "one document");
    }
    let all: BTreeSet<_> = rounds[..3].iter().flatten().collect();
    assert_eq!(all.len(), nodes);
    assert_eq!(rounds.iter().map(BTreeSet::len).collect::<Vec<_>>(), [100, 100, 1, 100, 100, 1]);
    assert_eq!(rounds[3], rounds[0], "it begins with the best again");
    let answers = hub.state.plan(&plan_name()).unwrap().hook_answers.clone().unwrap();
    assert_eq!(answers.hooks[0].left_out.len(), HOOK_CANDIDATES_MAX);
    assert!(hub.answer([pass(), pass()]) && hub.hook_run().is_none());
}

#[test]
fn a_plan_without_candidates_is_looked_at_again_once_capacity_changes() {
    let mut hub = hub(1);
    hub.deploy("r1", 2, "1");
    assert!(hub.answer([pass(), pass()]));
    let none_at = |hub: &Hub| hub.state.hook_memory.get(&plan_name()).and_then(|memory| memory.none_at);
    assert!(hub.hook_run().is_none() && none_at(&hub).is_some(), "one instance has no node");
    assert_eq!(hub.state.awaiting_hooks(), [plan_name()].into());
    assert!(hub.hook_run().is_none());
    hub.ask(node_request(7, "d1", 8)).unwrap();
    for state in ["allocating", "allocated"] {
        hub.node_state(7, state, Some("north")).unwrap();
    }
    assert!(hub.answer([pass(), pass()]));
    assert_eq!(hub.pending_types(), [OperationType::Create, OperationType::Create]);
    assert!(hub.state.awaiting_hooks().is_empty() && hub.state.hook_memory.is_empty());
}
