//! MRDS's service of deployment plans over the planner. The id of a plan is its name; a deployment is a revision.

use std::collections::BTreeMap;

use muster_contract::limits::APPROVAL_EXPIRES_AFTER;
use muster_contract::plans::{
    ApplicationPort, ApplicationVolume, CapabilityMatcher, Comparator, Coordinates, Plan, PlanAnswer,
    PlanApplication, PlanApplyRequest, PlanDeleteRequest, PlanDeployRequest, PlanQuery, PlanSpec, PlanState,
    PlanStateRequest, PlansQuery, Resources, RevisionStateRequest, RevisionVerb,
};
use muster_contract::{ComponentName, PlanName};
use muster_proto::proto::mrds::ledger::deploymentplan::{
    self as messages, AddDeploymentRequest, CreateDeploymentPlanRequest, CreateDeploymentPlanResponse,
    DeleteDeploymentPlanRequest, DeleteDeploymentPlanResponse, DeploymentPlanListFilters,
    DeploymentPlanState, DeploymentState, GetDeploymentPlanByIdRequest, GetDeploymentPlanByNameRequest,
    GetDeploymentPlanResponse, ListDeploymentPlanRequest, ListDeploymentPlanResponse, PayloadCoordinates,
    UpdateDeploymentPlanResponse, UpdateDeploymentPlanStatusRequest, UpdateDeploymentStatusRequest,
};
use tonic::{Request, Response, Status};

use super::caller::split;
use super::filters::{Identity, metadata, parsed, part, passes_state};
use super::lists::Listing;
use super::planner::Planner;
use super::records;
use super::refusals::{invalid, not_found};

/// The service.
pub(super) struct Plans(pub(super) Planner);

impl Plans {
    async fn get(&self, field: &str, text: &str) -> Result<Response<GetDeploymentPlanResponse>, Status> {
        let query = PlanQuery { plan: parsed(field, text)? };
        let found: PlanAnswer = self.0.read("plan-get", &query).await?;
        Ok(Response::new(GetDeploymentPlanResponse { record: Some(records::plan(found.plan)) }))
    }

    /// The record, if a deployment has a state that only the planner sets.
    async fn confirm(
        &self,
        plan: &str,
        deployment: &str,
        wanted: DeploymentState,
    ) -> Result<Response<UpdateDeploymentPlanResponse>, Status> {
        let query = PlanQuery { plan: parsed("metadata.id", plan)? };
        let found: PlanAnswer = self.0.read("plan-get", &query).await?;
        let record = records::plan(found.plan);
        let of = record.deployments.iter().find(|one| one.id == deployment);
        let of = of.ok_or_else(|| not_found("deployment", deployment))?;
        let state = of.status.as_ref().map(messages::DeploymentStatus::state).unwrap_or_default();
        if state == wanted {
            return Ok(Response::new(UpdateDeploymentPlanResponse { record: Some(record) }));
        }
        Err(Status::failed_precondition(format!(
            "deployment {deployment} is {}, and the planner itself makes it {}, by what nodes report",
            state.as_str_name(),
            wanted.as_str_name()
        )))
    }
}

fn changed(plan: Plan) -> Response<UpdateDeploymentPlanResponse> {
    Response::new(UpdateDeploymentPlanResponse { record: Some(records::plan(plan)) })
}

fn matcher(at: usize, of: messages::MatchingComputeCapability) -> Result<CapabilityMatcher, Status> {
    let path = format!("matching_compute_capabilities[{at}]");
    let comparator = match messages::Comparator::try_from(of.comparator) {
        Ok(messages::Comparator::In) => Comparator::In,
        Ok(messages::Comparator::NotIn) => Comparator::NotIn,
        Ok(messages::Comparator::Gte) => Comparator::Gte,
        Ok(messages::Comparator::ELte) => Comparator::Lte,
        Err(_) => return Err(invalid(&format!("{path}.comparator"), "is none of IN, NOT_IN, GTE and LTE")),
    };
    let field = format!("{path}.capability_names");
    let names = of.capability_names.iter().map(|name| parsed(&field, name));
    let capability_names = names.collect::<Result<_, _>>()?;
    Ok(CapabilityMatcher { capability_type: of.capability_type, comparator, capability_names })
}

fn application(at: usize, of: messages::Application) -> Result<PlanApplication, Status> {
    let path = format!("applications[{at}]");
    let port = |port: messages::ApplicationPort| {
        let number =
            u16::try_from(port.port).map_err(|_| invalid(&format!("{path}.ports"), "is above 65535"))?;
        Ok(ApplicationPort { protocol: port.protocol, port: number })
    };
    let volume = |volume: messages::ApplicationPersistentVolume| ApplicationVolume {
        storage_class: volume.storage_class,
        capacity: u64::from(volume.capacity),
        mount_path: volume.mount_path,
    };
    let resources = of.resources.unwrap_or_default();
    Ok(PlanApplication {
        payload_name: parsed(&format!("{path}.payload_name"), &of.payload_name)?,
        resources: Resources { cores: u64::from(resources.cores), memory: u64::from(resources.memory) },
        // MRDS has no order of applications.
        after: Vec::new(),
        ports: of.ports.into_iter().map(port).collect::<Result<_, Status>>()?,
        persistent_volumes: of.persistent_volumes.into_iter().map(volume).collect(),
    })
}

fn coordinates(of: Vec<PayloadCoordinates>) -> Result<BTreeMap<ComponentName, Coordinates>, Status> {
    let mut all = BTreeMap::new();
    for payload in of {
        let name: ComponentName = parsed("payload_coordinates.payload_name", &payload.payload_name)?;
        let keys = payload.coordinates.into_iter().map(|(key, value)| (key, value.into()));
        if all.insert(name, keys.collect()).is_some() {
            let rule = format!("'{}' is there twice", payload.payload_name);
            return Err(invalid("payload_coordinates", rule));
        }
    }
    Ok(all)
}

/// The list that a request asks for.
pub(super) fn listing(
    asked: DeploymentPlanListFilters,
) -> Result<Listing<'static, PlanAnswer, messages::DeploymentPlanRecord>, Status> {
    let identity = identity(&asked);
    let (field, named) = match identity.wanted() {
        (_, []) => ("deployment_plan_id_in", asked.deployment_plan_id_in.as_slice()),
        wanted => wanted,
    };
    let query = query(&asked, field, named)?;
    let keep = move |PlanAnswer { plan, .. }: PlanAnswer| {
        let name = plan.spec.name.to_string();
        let state = records::plan_state(plan.state).into();
        let ids = &asked.deployment_plan_id_in;
        let passes = identity.passes(&name, &name, plan.version)
            && (ids.is_empty() || ids.contains(&name))
            && passes_state(&asked.state_in, &asked.state_not_in, state)
            && passes_state(&asked.deployment_plan_status_in, &[], state);
        passes.then(|| records::plan(plan))
    };
    Listing::new("plan-list", "plans", &query, asked.limit, keep)
}

fn identity(asked: &DeploymentPlanListFilters) -> Identity {
    Identity {
        ids: asked.id_in.clone(),
        names: asked.name_in.clone(),
        at_least: asked.version_gte,
        at_most: asked.version_lte,
        exactly: asked.version_eq,
    }
}

fn query(asked: &DeploymentPlanListFilters, field: &str, named: &[String]) -> Result<PlansQuery, Status> {
    let payloads = asked.payload_name_in.iter().map(|name| parsed("payload_name_in", name));
    let names = named.iter().map(|name| parsed::<PlanName>(field, name));
    let all = vec![PlanState::Active, PlanState::Inactive, PlanState::Deleted];
    Ok(PlansQuery {
        name: names.collect::<Result<_, _>>()?,
        service_name: asked.service_name_in.clone(),
        payload_name: payloads.collect::<Result<_, _>>()?,
        state: if asked.include_deleted { all } else { Vec::new() },
        ..PlansQuery::default()
    })
}

#[tonic::async_trait]
impl messages::deployment_plans_server::DeploymentPlans for Plans {
    async fn create(
        &self,
        request: Request<CreateDeploymentPlanRequest>,
    ) -> Result<Response<CreateDeploymentPlanResponse>, Status> {
        let (caller, message) = split(request)?;
        let matchers = message.matching_compute_capabilities.into_iter().enumerate();
        let applications = message.applications.into_iter().enumerate();
        let spec = PlanSpec {
            name: parsed("name", &message.name)?,
            namespace: message.namespace,
            service_name: message.service_name,
            profile: None,
            matching_compute_capabilities: matchers
                .map(|(at, of)| matcher(at, of))
                .collect::<Result<_, _>>()?,
            applications: applications.map(|(at, of)| application(at, of)).collect::<Result<_, _>>()?,
            cluster: None,
            // MRDS has no hooks.
            hooks: Vec::new(),
            approval_expires_after: APPROVAL_EXPIRES_AFTER,
            retries: None,
            composite_app: None,
        };
        let request = PlanApplyRequest { spec, expected_version: None, request_id: None };
        let plan: Plan = self.0.create(&caller, "plan-apply", &request).await?;
        Ok(Response::new(CreateDeploymentPlanResponse { record: Some(records::plan(plan)) }))
    }

    async fn get_by_id(
        &self,
        request: Request<GetDeploymentPlanByIdRequest>,
    ) -> Result<Response<GetDeploymentPlanResponse>, Status> {
        self.get("id", &request.into_inner().id).await
    }

    async fn get_by_name(
        &self,
        request: Request<GetDeploymentPlanByNameRequest>,
    ) -> Result<Response<GetDeploymentPlanResponse>, Status> {
        self.get("name", &request.into_inner().name).await
    }

    async fn update_status(
        &self,
        request: Request<UpdateDeploymentPlanStatusRequest>,
    ) -> Result<Response<UpdateDeploymentPlanResponse>, Status> {
        let (caller, message) = split(request)?;
        let of = metadata(message.metadata)?;
        let state = match part("status", message.status)?.state() {
            DeploymentPlanState::Active => PlanState::Active,
            DeploymentPlanState::Inactive => PlanState::Inactive,
            DeploymentPlanState::Unknown => return Err(invalid("status.state", "is not ACTIVE or INACTIVE")),
        };
        let (plan, expected_version) = (parsed("metadata.id", &of.id)?, Some(of.version));
        let request = PlanStateRequest { plan, state, expected_version, request_id: None };
        Ok(changed(self.0.change(&caller, "plan-state", &request).await?))
    }

    async fn list(
        &self,
        request: Request<ListDeploymentPlanRequest>,
    ) -> Result<Response<ListDeploymentPlanResponse>, Status> {
        let asked = request.into_inner().filters.unwrap_or_default();
        let records = self.0.list(listing(asked)?).await?;
        Ok(Response::new(ListDeploymentPlanResponse { records }))
    }

    async fn delete(
        &self,
        request: Request<DeleteDeploymentPlanRequest>,
    ) -> Result<Response<DeleteDeploymentPlanResponse>, Status> {
        let (caller, message) = split(request)?;
        let of = metadata(message.metadata)?;
        let plan = parsed("metadata.id", &of.id)?;
        let request = PlanDeleteRequest { plan, expected_version: Some(of.version), request_id: None };
        let _deleted: Plan = self.0.change(&caller, "plan-delete", &request).await?;
        Ok(Response::new(DeleteDeploymentPlanResponse { success: true }))
    }

    async fn add_deployment(
        &self,
        request: Request<AddDeploymentRequest>,
    ) -> Result<Response<UpdateDeploymentPlanResponse>, Status> {
        let (caller, message) = split(request)?;
        let of = metadata(message.metadata)?;
        let request = PlanDeployRequest {
            plan: parsed("metadata.id", &of.id)?,
            id: parsed("deployment_id", &message.deployment_id)?,
            instances: message.instance_count,
            coordinates: coordinates(message.payload_coordinates)?,
            max_unavailable: None,
            canary: None,
            skip_unchanged: false,
            expected_version: Some(of.version),
            request_id: None,
        };
        Ok(changed(self.0.change(&caller, "plan-deploy", &request).await?))
    }

    async fn update_deployment_status(
        &self,
        request: Request<UpdateDeploymentStatusRequest>,
    ) -> Result<Response<UpdateDeploymentPlanResponse>, Status> {
        let (caller, message) = split(request)?;
        let of = metadata(message.metadata)?;
        let verb = match part("status", message.status)?.state() {
            DeploymentState::Paused => RevisionVerb::Pause,
            DeploymentState::InProgress => RevisionVerb::Resume,
            DeploymentState::Cancelled => RevisionVerb::Cancel,
            DeploymentState::Failed => RevisionVerb::Stop,
            DeploymentState::Unknown => return Err(invalid("status.state", "is missing: set it")),
            wanted @ (DeploymentState::Pending | DeploymentState::Completed) => {
                return self.confirm(&of.id, &message.deployment_id, wanted).await;
            }
        };
        let request = RevisionStateRequest {
            plan: parsed("metadata.id", &of.id)?,
            id: parsed("deployment_id", &message.deployment_id)?,
            verb,
            expected_version: Some(of.version),
            request_id: None,
        };
        Ok(changed(self.0.change(&caller, "plan-revision", &request).await?))
    }
}
