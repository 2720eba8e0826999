//! Planners that interleave and die between any two steps.

use proptest::prelude::*;

use super::*;

/// A planner: its fold of the log, and the documents that it has decided and not appended.
#[derive(Debug, Default)]
struct SimPlanner {
    state: PlansState,
    read: usize,
    decided: Vec<PlansDocument>,
}

/// A hub with several planners on one log.
#[derive(Debug)]
struct Race {
    hub: Hub,
    planners: Vec<SimPlanner>,
    random: u64,
    /// Whether a person has changed the number of instances since the last deployment.
    is_changed_by_hand: bool,
}

impl Race {
    fn new(random: u64, planners: usize) -> Self {
        let mut hub = Hub::with_nodes(&[4, 8, 8, 4]);
        hub.ask(plan_request(&json!({}))).unwrap();
        let planners = (0..planners).map(|_| SimPlanner::default()).collect();
        Self { hub, planners, random: random | 1, is_changed_by_hand: false }
    }

    fn pick(&mut self, of: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random % of as u64) as usize
    }

    /// Folds what others have appended; what was decided without it is void.
    fn fold(&mut self, at: usize) {
        let planner = &mut self.planners[at];
        if planner.read < self.hub.log.len() {
            planner.decided.clear();
            let log = &self.hub.log;
            // The tentative documents are in the state: fold again from the first message.
            planner.state = PlansState::default();
            log.iter().for_each(|document| drop(planner.state.apply(document.clone())));
            planner.read = log.len();
        }
    }

    fn step(&mut self) {
        let at = self.pick(self.planners.len());
        self.hub.second += 1;
        match self.pick(8) {
            0 => self.fold(at),
            1 | 2 => {
                let (now, planner) = (self.hub.now(), &mut self.planners[at]);
                if planner.decided.is_empty() {
                    planner.state.time_passed();
                    let made = planner.state.advance(&self.hub.devices, now, 8);
                    planner.decided = made.into_iter().map(|(document, _)| document).collect();
                }
            }
            3 | 4 => self.append(at),
            5 => self.effects(at),
            6 => self.hub.devices.run(),
            _ if self.pick(4) == 0 => self.planners[at] = SimPlanner::default(),
            _ => {}
        }
    }

    /// Appends one document, if nobody has appended anything since the planner has read the log.
    fn append(&mut self, at: usize) {
        let planner = &mut self.planners[at];
        if planner.decided.is_empty() {
            return;
        }
        let document = planner.decided.remove(0);
        if planner.read == self.hub.log.len() {
            planner.read += 1;
            self.hub.log.push(document.clone());
            self.hub.state.apply(document);
            check_invariants(&self.hub.state);
        } else {
            self.fold(at);
        }
    }

    /// Asks the publisher, perhaps with an old fold; the planner may die between two requests.
    fn effects(&mut self, at: usize) {
        let planner = &self.planners[at];
        if planner.read == 0 || !planner.decided.is_empty() {
            return;
        }
        let effects = planner.state.effects(&self.hub.devices, self.hub.devices.ordered());
        let count = self.pick(effects.len() + 1);
        for effect in effects.into_iter().take(count) {
            let plan = plan_of(&self.hub.state, effect.target().1);
            self.hub.devices.carry_out(effect, &plan);
        }
    }

    /// An operation that runs.
    fn running(&self) -> Option<(InstanceName, Operation)> {
        let is_running = |one: &Operation| one.state == OperationState::Running;
        self.hub.instances().into_iter().find_map(|instance| {
            let found = instance.operations.into_iter().find(is_running)?;
            Some((instance.name, found))
        })
    }

    /// A person approves, also a whole revision, rejects, completes by hand, stops or asks for something.
    fn person(&mut self) {
        let pending = self.hub.pending();
        let verdict = self.pick(12);
        if self.pick(60) == 0 {
            let open = self.hub.state.plan(&plan_name()).and_then(|plan| plan.open_revision());
            let stop = open.map(|open| json!({ "plan": "web", "id": open.id, "verb": "stop" }));
            let _ = stop.map(|stop| self.hub.ask(PlansRequest::PlanRevision(request(stop))));
        } else if self.pick(20) == 0 {
            self.change_one_instance(verdict);
        } else if self.pick(30) == 0 {
            let newest = self.hub.state.plan(&plan_name()).and_then(|plan| plan.revisions.last());
            let approval = newest.map(|newest| json!({ "plan": "web", "id": newest.id }));
            let _ = approval.map(|approval| self.hub.ask(PlansRequest::PlanApprove(request(approval))));
        } else if let Some((instance, operation)) = pending.first() {
            let request = Hub::verdict(instance, operation);
            let request =
                if verdict == 0 { PlansRequest::Reject(request) } else { PlansRequest::Approve(request) };
            self.hub.ask(request).unwrap();
        } else if let Some(running) = self.running().filter(|_| verdict > 9) {
            let end = if verdict == 10 { PlansRequest::Fail } else { PlansRequest::Complete };
            let reason = Some("seen on site".to_owned());
            let _ =
                self.hub.ask(end(OperationVerdictRequest { reason, ..Hub::verdict(&running.0, &running.1) }));
        } else if let Some(instance) = self.hub.instances().first().filter(|_| verdict < 3) {
            let relocate = json!({ "plan": "web", "instance": instance.name, "type": "RELOCATE" });
            let _ = self.hub.ask(PlansRequest::Operation(request(relocate)));
        } else if verdict < 7 {
            self.change_one_instance(verdict);
        }
    }

    /// A person asks for one instance more, or changes or deletes one.
    fn change_one_instance(&mut self, verdict: usize) {
        let instance = self.hub.instances().last().map(|instance| instance.name.clone());
        let kind = ["CREATE", "UPDATE", "DELETE"][verdict % 3];
        let asked = match instance.filter(|_| verdict > 3) {
            Some(name) => {
                PlansRequest::Operation(request(json!({ "plan": "web", "instance": name, "type": kind })))
            }
            None => PlansRequest::InstanceCreate(request(json!({ "plan": "web" }))),
        };
        self.is_changed_by_hand |= self.hub.ask(asked).is_ok();
    }

    /// A person judges an operation of a plan, or cancels or stops a migration to it.
    fn judge(&mut self, plan: &PlanName) {
        let (verdict, pending) = (self.pick(40), self.hub.pending_of(plan));
        if verdict == 0 {
            let verb = if self.pick(2) == 0 { "cancel" } else { "stop" };
            let end = json!({ "plan": plan, "id": "m1", "verb": verb });
            let _ = self.hub.ask(PlansRequest::PlanRevision(request(end)));
        } else if let Some((instance, operation)) = pending.first() {
            let request = Hub::verdict_of(plan, instance, operation);
            let verdict = if verdict == 1 { PlansRequest::Reject } else { PlansRequest::Approve };
            self.hub.ask(verdict(request)).unwrap();
        }
    }

    /// Lets everything come to an end, with one planner and approvals.
    fn converge(&mut self) {
        let mut state = PlansState::default();
        self.hub.log.iter().for_each(|document| drop(state.apply(document.clone())));
        self.hub.state = state;
        for _ in 0..20 {
            self.hub.converge();
            // Only time shows that an instance without a report is gone.
            self.hub.second += 200;
            self.hub.approve_all();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn racing_planners_that_die_at_any_step_lose_nothing(
        seed in any::<u64>(), planners in 1_usize..4, counts in prop::collection::vec((0_u32..5, 0_u8..4), 1..4),
    ) {
        let mut race = Race::new(seed, planners);
        for (at, (count, kind)) in counts.iter().enumerate() {
            let deploy = [deploy_request, rolling::rolling_request, canary::one_canary, unchanged::skipping_request][usize::from(*kind)];
            let asked = race.hub.ask(deploy(&format!("r{at}"), *count, &format!("{}", at / 2)));
            race.is_changed_by_hand &= asked.is_err();
            for _ in 0..150 {
                race.step();
                if race.pick(4) == 0 {
                    race.person();
                }
            }
            race.converge();
        }
        let hub = &race.hub;
        // A plan without instances takes no canary.
        let Some(last) = hub.state.plan(&plan_name()).unwrap().revisions.last().cloned() else { return Ok(()) };
        prop_assert!(last.state.is_final(), "{:?}", last);
        let placements: Vec<_> = hub.instances().into_iter().flat_map(|one| {
            one.placements.into_iter().map(move |placement| (placement.node, one.name.clone()))
        }).collect();
        prop_assert_eq!(hub.devices.desired.len(), placements.len(), "no orphan and none missing");
        prop_assert!(placements.iter().all(|on| hub.devices.desired.contains_key(on)));
        if last.state == RevisionState::Completed && !race.is_changed_by_hand {
            prop_assert_eq!(hub.instances().len(), last.instances as usize);
            let is_of_last = |one: &&Instance| one.revision == last.id;
            let changed = hub.instances().iter().filter(is_of_last).count();
            prop_assert_eq!(changed, last.canary.unwrap_or(last.instances) as usize);
            prop_assert!(hub.instances().iter().all(operations::keeps_revision), "each has an order");
        }
    }

    #[test]
    fn racing_planners_finish_a_migration_or_leave_its_plan_as_it_was(
        seed in any::<u64>(), planners in 1_usize..4, count in 1_u32..3, is_failing in any::<bool>(),
    ) {
        let mut race = Race::new(seed, planners);
        race.hub.ask(plan_request(&json!({ "name": "next" }))).unwrap();
        race.hub.deploy("r1", count, "1");
        race.hub.approve_all();
        let other = json!({ "coordinates": { "main": { "version": "2" } } });
        race.hub.ask(migrate::migrate_request(&other)).unwrap();
        let (web, next): (_, PlanName) = (plan_name(), "next".parse().unwrap());
        for _ in 0..300 {
            race.step();
            let added = race.hub.state.plan(&next).filter(|plan| !plan.revisions.is_empty());
            if let Some(added) = added.filter(|_| is_failing && race.hub.devices.failing.is_empty()) {
                let failing = super::super::advance::digest(added, &"m1".parse().unwrap(), &[]);
                race.hub.devices.failing.extend(failing);
            }
            if race.pick(6) == 0 {
                let plan = if race.pick(2) == 0 { &web } else { &next };
                race.judge(plan);
            }
        }
        race.converge();
        let hub = &race.hub;
        let (left, target) = (hub.state.plan(&web).unwrap(), hub.state.plan(&next).unwrap());
        prop_assert!(left.migration.is_none() && left.open_revision().is_none(), "{:?}", left);
        let is_completed = target.revisions[0].state == RevisionState::Completed;
        prop_assert!(target.revisions[0].state.is_final() && !(is_failing && is_completed));
        prop_assert_eq!(left.revisions.last().unwrap().migrated_to == Some(next.clone()), is_completed);
        let kept = hub.instances().iter().filter(|one| operations::keeps_revision(one)).count();
        let moved = hub.state.instances_of(&next).filter(|one| operations::keeps_revision(one)).count();
        if is_completed {
            prop_assert_eq!(moved, count as usize);
            // A rejected DELETE, or a cancelled revision, keeps instances.
            prop_assert!(kept == 0 || left.revisions.last().unwrap().state != RevisionState::Completed);
        } else {
            prop_assert_eq!(kept, count as usize);
        }
        prop_assert_eq!(hub.devices.desired.len(), kept + moved, "no orphan and none missing");
    }

    #[test]
    fn a_replayed_log_gives_the_same_state(seed in any::<u64>()) {
        let mut race = Race::new(seed, 2);
        race.hub.ask(deploy_request("r1", 3, "1")).unwrap();
        for _ in 0..300 {
            race.step();
            if race.pick(4) == 0 {
                race.person();
            }
        }
        let mut again = PlansState::default();
        race.hub.log.iter().for_each(|document| drop(again.apply(document.clone())));
        let hub = &race.hub.state;
        prop_assert_eq!((&again.plans, &again.instances, &again.usage), (&hub.plans, &hub.instances, &hub.usage));
    }
}
