//! Persons who ask for anything at any time. A refusal appends nothing.

use super::*;

impl World {
    /// Asks for a change. It is decided with all of PLANS, as the planner decides again after a conflict.
    fn ask(&mut self, asked: PlansRequest) -> bool {
        let before = self.hub.log.len();
        let is_accepted = self.hub.ask(asked).is_ok();
        assert!(is_accepted || self.hub.log.len() == before, "a refusal appends nothing");
        self.check();
        is_accepted
    }

    fn some_plan(&mut self) -> PlanName {
        PLANS[self.pick(PLANS.len())].parse().unwrap()
    }

    fn some_node(&mut self) -> DeviceKey {
        node_key(self.pick(NODES))
    }

    fn some_instance(&mut self, plan: &PlanName) -> Option<Instance> {
        let all: Vec<_> = self.hub.state.instances_of(plan).cloned().collect();
        let at = self.pick(all.len().max(1));
        all.into_iter().nth(at)
    }

    /// An operation in a state.
    fn some_operation(&mut self, plan: &PlanName, state: OperationState) -> Option<Value> {
        let instances = self.hub.state.instances_of(plan);
        let operations = instances.flat_map(|one| one.operations.iter().map(|of| (one.name.clone(), of)));
        let all: Vec<_> = operations.filter(|(_, one)| one.state == state).collect();
        let all: Vec<_> = all.into_iter().map(|(name, one)| (name, one.id.clone())).collect();
        let at = self.pick(all.len().max(1));
        let (instance, operation) = all.into_iter().nth(at)?;
        Some(json!({ "plan": plan, "instance": instance, "operation": operation }))
    }

    /// A person asks for something.
    pub(super) fn person(&mut self) {
        let plan = self.some_plan();
        match self.pick(32) {
            0..=13 => self.approve_or_end(&plan),
            14..=16 => self.deploy(&plan),
            17..=18 => self.change_revision(&plan),
            19..=22 => self.request_operation(&plan),
            23 => self.create_instance(&plan),
            24 => self.change_node(),
            25 => self.disrupt(),
            26 => self.change_plan(&plan),
            27 => drop(self.migrate(&plan)),
            _ => {}
        }
    }

    fn approve_or_end(&mut self, plan: &PlanName) {
        let verdict = self.pick(24);
        let state = match verdict {
            0 => OperationState::Running,
            1 => OperationState::Approved,
            2 => OperationState::Preparing,
            _ => OperationState::PendingApproval,
        };
        let Some(mut value) = self.some_operation(plan, state) else { return };
        let has_reason = self.pick(2) == 0;
        if has_reason {
            value["reason"] = json!("seen on site");
        }
        let verb = match (verdict, self.pick(3)) {
            (0, 0) => PlansRequest::Complete,
            (0, 1) => PlansRequest::Fail,
            (0..=2, _) | (3, 0) => PlansRequest::Cancel,
            (3, _) => PlansRequest::Reject,
            _ => PlansRequest::Approve,
        };
        self.ask(verb(request(value)));
    }

    /// A new revision: plain, rolling, for a canary, skipping unchanged instances, of 0 instances, or a rollback.
    fn deploy(&mut self, plan: &PlanName) {
        self.revisions += 1;
        let id = format!("r{}", self.revisions);
        let (count, version) = (self.pick(4) + 1, self.pick(4));
        let payload = if plan.as_str() == PLANS[0] { "main" } else { "side" };
        let mut value = json!({ "plan": plan, "id": id, "instances": count,
            "coordinates": { payload: { "version": version.to_string() } } });
        match self.pick(7) {
            0 => value["maxUnavailable"] = json!(self.pick(2) + 1),
            1 => value["canary"] = json!(1),
            2 => value["skipUnchanged"] = json!(true),
            3 => value["instances"] = json!(0),
            4 => {
                let revisions = self.hub.state.plan(plan).map_or(&[][..], |plan| &plan.revisions[..]);
                let ids: Vec<_> = revisions.iter().map(|one| one.id.clone()).collect();
                let Some(to) = ids.get(self.pick(ids.len().max(1))) else { return };
                let back = json!({ "plan": plan, "id": id, "to": to });
                self.ask(PlansRequest::PlanRollback(request(back)));
                return;
            }
            _ => {}
        }
        self.ask(PlansRequest::PlanDeploy(request(value)));
    }

    fn change_revision(&mut self, plan: &PlanName) {
        let newest = self.hub.state.plan(plan).and_then(|plan| plan.revisions.last());
        let Some(id) = newest.map(|newest| newest.id.clone()) else { return };
        let value = json!({ "plan": plan, "id": id });
        let verb = match self.pick(8) {
            0 => "pause",
            1 | 2 => "resume",
            3 => "cancel",
            4 => "stop",
            _ => {
                self.ask(PlansRequest::PlanApprove(request(value)));
                return;
            }
        };
        self.ask(PlansRequest::PlanRevision(request(
            json!({ "plan": plan, "id": value["id"], "verb": verb }),
        )));
    }

    fn request_operation(&mut self, plan: &PlanName) {
        let Some(instance) = self.some_instance(plan) else { return };
        let kind = OperationType::ALL[self.pick(OperationType::ALL.len())];
        let kind = if self.pick(3) == 0 { OperationType::Relocate } else { kind };
        let mut value = json!({ "plan": plan, "instance": instance.name, "type": kind });
        if matches!(kind, OperationType::Create | OperationType::Relocate) && self.pick(3) == 0 {
            value["node"] = json!(self.some_node());
        }
        if self.pick(5) == 0 {
            value["notBefore"] = json!(second(self.hub.second + 20));
        }
        self.ask(PlansRequest::Operation(request(value)));
    }

    fn create_instance(&mut self, plan: &PlanName) {
        let mut value = json!({ "plan": plan });
        if self.pick(2) == 0 {
            value["node"] = json!(self.some_node());
        }
        self.ask(PlansRequest::InstanceCreate(request(value)));
    }

    /// A node moves on in the table of MRDS, or has other resources.
    fn change_node(&mut self) {
        let key = self.some_node();
        let node = self.hub.state.node(&key).unwrap().clone();
        if self.pick(3) == 0 {
            let cores = [4, 6, 8][self.pick(3)];
            let value = json!({ "expectedVersion": node.version, "item": { "node": {
                "site": key.site, "device": key.device, "updateDomain": node.update_domain,
                "totalResources": { "cores": cores, "memory": 64 } } } });
            self.ask(PlansRequest::InventoryApply(request(value)));
            return;
        }
        let state = match node.state {
            NodeState::Unallocated => "allocating",
            NodeState::Allocating => "allocated",
            NodeState::Allocated => "evicted",
            NodeState::Evicted => "sanitizing",
            NodeState::Sanitizing => "unallocated",
        };
        let cluster = state.starts_with("alloc").then_some("north");
        let value = json!({ "item": { "node": key }, "nodeState": state, "cluster": cluster });
        self.ask(PlansRequest::InventoryState(request(value)));
    }

    fn disrupt(&mut self) {
        let (node, verb) =
            (self.some_node(), ["add", "approve", "complete", "complete", "remove"][self.pick(5)]);
        let value = json!({ "node": node, "id": "d", "verb": verb, "start": second(self.hub.second + 50),
            "shouldEvict": self.pick(2) == 0 });
        self.ask(PlansRequest::Disruption(request(value)));
    }

    /// A plan is activated, deactivated, deleted or made again.
    fn change_plan(&mut self, plan: &PlanName) {
        if self.hub.state.plan(plan).is_none() {
            self.apply_plan(plan.as_str());
        } else if self.pick(4) == 0 {
            self.ask(PlansRequest::PlanDelete(request(json!({ "plan": plan }))));
        } else {
            let state = ["active", "active", "inactive"][self.pick(3)];
            self.ask(PlansRequest::PlanState(request(json!({ "plan": plan, "state": state }))));
        }
    }

    /// A plan migrates to the other one, which has other payloads.
    fn migrate(&mut self, plan: &PlanName) -> Option<()> {
        self.revisions += 1;
        let to = PLANS.into_iter().find(|other| *other != plan.as_str())?;
        let payload = if to == PLANS[0] { "main" } else { "side" };
        let value = json!({ "plan": plan, "to": to, "id": format!("m{}", self.revisions),
            "coordinates": { payload: { "version": "9" } } });
        self.ask(PlansRequest::PlanMigrate(request(value)));
        Some(())
    }

    pub(super) fn apply_plan(&mut self, name: &str) {
        let (payload, cores) = if name == PLANS[0] { ("main", 4) } else { ("side", 3) };
        let value = json!({ "name": name, "serviceName": name, "approvalExpiresAfter": "10m", "applications": [
            { "payloadName": payload, "resources": { "cores": cores, "memory": 8 } }] });
        self.ask(plan_request(&value));
    }

    /// Persons end what holds others, and approve what waits.
    pub(super) fn approve_all(&mut self) -> bool {
        let before = self.hub.log.len();
        for plan in PLANS.map(|name| name.parse::<PlanName>().unwrap()) {
            self.ask(PlansRequest::PlanState(request(json!({ "plan": plan, "state": "active" }))));
            let open = self.hub.state.plan(&plan).and_then(|plan| plan.open_revision());
            if let Some(paused) = open.filter(|open| open.state == RevisionState::Paused) {
                let resume = json!({ "plan": plan, "id": paused.id, "verb": "resume" });
                self.ask(PlansRequest::PlanRevision(request(resume)));
            }
            for (instance, operation) in self.hub.pending_of(&plan) {
                self.ask(PlansRequest::Approve(Hub::verdict_of(&plan, &instance, &operation)));
            }
        }
        self.hub.log.len() > before
    }
}
