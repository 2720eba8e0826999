//! Every shape of the contract by its name: the documents of the streams and buckets, and the requests and answers
//! of the services. What is not listed here has no schema.

use muster_contract::actions::ActionsAnswer;
use muster_contract::changes::{ChangesAnswer, ChangesQuery};
use muster_contract::credential::Credential;
use muster_contract::decode::{self, Document};
use muster_contract::defined::{DefinedView, ViewDefinition};
use muster_contract::desired::DesiredState;
use muster_contract::fact::{
    DeadlineFact, DeviceFact, HearingFact, Incident, LivenessFact, Ownership, PulseFact, QuarantineFact,
    StatusFact,
};
use muster_contract::groups::{
    GroupQuery, GroupView, GroupsAnswer, LabelsAnswer, RemoveViewRequest, ViewAnswer, ViewsAnswer,
};
use muster_contract::history::{DiffAnswer, DiffQuery, DigestsAnswer, MomentAnswer, VerifyAnswer};
use muster_contract::incident::{IncidentAnswer, IncidentRequest, IncidentsAnswer};
use muster_contract::notify::{
    ConfirmRequest, ContentQuery, MissedAnswer, MissedQuery, Notice, NoticeContent, Subscription,
    SubscriptionAnswer, SubscriptionRecord, SubscriptionsAnswer, SubscriptionsQuery, UnsubscribeRequest,
    WebhookDueAnswer, WebhookDueQuery, WebhookLine, WebhookRequest, WebhookResultRequest,
    WebhookRevokeAnswer, WebhookRevokeRequest, WebhooksAnswer,
};
use muster_contract::packed::ReportBatch;
use muster_contract::parts::{HubList, PartsAnswer, PartsQuery};
use muster_contract::plans::{
    Capability, Cluster, DisruptionRequest, ExplainAnswer, HookAnswer, HookRequest, Instance,
    InstanceCreateRequest, InstancesAnswer, InstancesQuery, InventoryAnswer, InventoryApplyRequest,
    InventoryDeleteRequest, InventoryQuery, InventoryStateRequest, Node, OperationRequest,
    OperationVerdictRequest, OperationsAnswer, OperationsQuery, Plan, PlanAnswer, PlanApplyRequest,
    PlanApproveRequest, PlanDeleteRequest, PlanDeployRequest, PlanMigrateRequest, PlanQuery,
    PlanRollbackRequest, PlanStateRequest, PlannerErrorReply, PlansAnswer, PlansChangesAnswer,
    PlansChangesQuery, PlansQuery, RevisionStateRequest,
};
use muster_contract::presence::Heartbeat;
use muster_contract::profile::{Package, Process, Simulated};
use muster_contract::quarantine::{QuarantineAnswer, QuarantineRequest, QuarantineVerdict, RejectedReport};
use muster_contract::query::{
    ApplyRequest, DeploymentAnswer, DeploymentsAnswer, DeviceAnswer, DevicesAnswer, ErrorReply,
    PublishAnswer, PublisherQuery, PublisherStatus, Query, RemoveRequest, RetireRequest,
};
use muster_contract::question;
use muster_contract::receipt::Receipt;
use muster_contract::report::{CapabilitiesReport, StatusReport};
use muster_contract::rollout::{
    CheckAnswer, CheckRequest, DecideAnswer, DecideRequest, ReleaseAnswer, ReleaseRequest, RolloutDecisions,
    TargetsAnswer, TargetsQuery,
};
use muster_contract::status::{StatusAnswer, StatusQuery};
use muster_contract::timeline::TimelineAnswer;
use muster_contract::view::{DeploymentView, FleetView, SiteView};
use muster_contract::why::WhyAnswer;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Makes a schema with the settings it is given.
pub type Make = fn(SchemaGenerator) -> Schema;

/// One shape.
pub struct Shape {
    /// Its name: the document's `kind`, or the type's name.
    pub name: &'static str,
    /// Its schema.
    pub schema: Make,
    /// Reads bytes as our services do and says what they then hold, or why they refuse.
    pub read: fn(&[u8]) -> Result<Value, String>,
    /// Our services refuse an unknown key of it.
    pub is_request: bool,
}

/// Documents: what streams and buckets hold.
pub const DOCUMENTS: [Shape; 24] = [
    document::<DesiredState>(),
    document::<StatusReport>(),
    document::<CapabilitiesReport>(),
    document::<ReportBatch>(),
    document::<Heartbeat>(),
    document::<Receipt>(),
    document::<Credential>(),
    document::<RolloutDecisions>(),
    document::<StatusFact>(),
    document::<DeviceFact>(),
    document::<LivenessFact>(),
    document::<DeadlineFact>(),
    document::<QuarantineFact>(),
    document::<Incident>(),
    document::<QuarantineVerdict>(),
    document::<RejectedReport>(),
    document::<Ownership>(),
    document::<PulseFact>(),
    document::<HearingFact>(),
    document::<DeploymentView>(),
    document::<SiteView>(),
    document::<FleetView>(),
    document::<SubscriptionRecord>(),
    document::<Notice>(),
];

/// Requests and answers of the query service, the publisher and ingest.
pub const MESSAGES: [Shape; 57] = [
    message::<CheckRequest>("CheckRequest"),
    message::<CheckAnswer>("CheckAnswer"),
    message::<HookRequest>("HookRequest"),
    message::<HookAnswer>("HookAnswer"),
    request::<IncidentRequest>("IncidentRequest"),
    message::<IncidentAnswer>("IncidentAnswer"),
    message::<IncidentsAnswer>("IncidentsAnswer"),
    request::<Query>("Query"),
    message::<DeploymentAnswer>("DeploymentAnswer"),
    message::<DeploymentsAnswer>("DeploymentsAnswer"),
    message::<DeviceAnswer>("DeviceAnswer"),
    message::<DevicesAnswer>("DevicesAnswer"),
    message::<WhyAnswer>("WhyAnswer"),
    request::<StatusQuery>("StatusQuery"),
    message::<StatusAnswer>("StatusAnswer"),
    message::<ActionsAnswer>("ActionsAnswer"),
    message::<TimelineAnswer>("TimelineAnswer"),
    message::<MomentAnswer>("MomentAnswer"),
    message::<DigestsAnswer>("DigestsAnswer"),
    request::<DiffQuery>("DiffQuery"),
    message::<DiffAnswer>("DiffAnswer"),
    request::<ChangesQuery>("ChangesQuery"),
    message::<ChangesAnswer>("ChangesAnswer"),
    message::<VerifyAnswer>("VerifyAnswer"),
    request::<Subscription>("Subscription"),
    message::<SubscriptionAnswer>("SubscriptionAnswer"),
    request::<ConfirmRequest>("ConfirmRequest"),
    request::<UnsubscribeRequest>("UnsubscribeRequest"),
    request::<SubscriptionsQuery>("SubscriptionsQuery"),
    message::<SubscriptionsAnswer>("SubscriptionsAnswer"),
    request::<MissedQuery>("MissedQuery"),
    message::<MissedAnswer>("MissedAnswer"),
    request::<ContentQuery>("ContentQuery"),
    message::<NoticeContent>("NoticeContent"),
    request::<WebhookRequest>("WebhookRequest"),
    message::<WebhooksAnswer>("WebhooksAnswer"),
    request::<WebhookDueQuery>("WebhookDueQuery"),
    message::<WebhookDueAnswer>("WebhookDueAnswer"),
    request::<WebhookResultRequest>("WebhookResultRequest"),
    message::<WebhookLine>("WebhookLine"),
    request::<WebhookRevokeRequest>("WebhookRevokeRequest"),
    message::<WebhookRevokeAnswer>("WebhookRevokeAnswer"),
    message::<ErrorReply>("ErrorReply"),
    request::<ApplyRequest>("ApplyRequest"),
    request::<RemoveRequest>("RemoveRequest"),
    request::<RetireRequest>("RetireRequest"),
    message::<PublishAnswer>("PublishAnswer"),
    request::<PublisherQuery>("PublisherQuery"),
    message::<PublisherStatus>("PublisherStatus"),
    request::<TargetsQuery>("TargetsQuery"),
    message::<TargetsAnswer>("TargetsAnswer"),
    request::<ReleaseRequest>("ReleaseRequest"),
    message::<ReleaseAnswer>("ReleaseAnswer"),
    request::<DecideRequest>("DecideRequest"),
    message::<DecideAnswer>("DecideAnswer"),
    request::<QuarantineRequest>("QuarantineRequest"),
    message::<QuarantineAnswer>("QuarantineAnswer"),
];

/// Groups of devices and the views that people define: documents, then requests and answers.
pub const GROUPS: [Shape; 9] = [
    document::<GroupView>(),
    definition::<ViewDefinition>(),
    document::<DefinedView>(),
    request::<GroupQuery>("GroupQuery"),
    message::<LabelsAnswer>("LabelsAnswer"),
    message::<GroupsAnswer>("GroupsAnswer"),
    message::<ViewsAnswer>("ViewsAnswer"),
    request::<RemoveViewRequest>("RemoveViewRequest"),
    message::<ViewAnswer>("ViewAnswer"),
];

/// The answers of hubs to a federation.
pub const FEDERATION: [Shape; 3] =
    [document::<HubList>(), request::<PartsQuery>("PartsQuery"), message::<PartsAnswer>("PartsAnswer")];

/// Plans, instances and the inventory: documents, then requests and answers of the planner.
pub const PLANS: [Shape; 33] = [
    document::<Plan>(),
    document::<Instance>(),
    document::<Node>(),
    document::<Cluster>(),
    document::<Capability>(),
    request::<PlanApplyRequest>("PlanApplyRequest"),
    request::<PlanDeleteRequest>("PlanDeleteRequest"),
    request::<PlanStateRequest>("PlanStateRequest"),
    request::<PlanDeployRequest>("PlanDeployRequest"),
    request::<PlanRollbackRequest>("PlanRollbackRequest"),
    request::<PlanMigrateRequest>("PlanMigrateRequest"),
    request::<PlanApproveRequest>("PlanApproveRequest"),
    request::<InstanceCreateRequest>("InstanceCreateRequest"),
    request::<RevisionStateRequest>("RevisionStateRequest"),
    request::<OperationRequest>("OperationRequest"),
    request::<OperationVerdictRequest>("OperationVerdictRequest"),
    request::<InventoryApplyRequest>("InventoryApplyRequest"),
    request::<InventoryStateRequest>("InventoryStateRequest"),
    request::<DisruptionRequest>("DisruptionRequest"),
    request::<InventoryDeleteRequest>("InventoryDeleteRequest"),
    request::<PlanQuery>("PlanQuery"),
    request::<PlansQuery>("PlansQuery"),
    request::<InstancesQuery>("InstancesQuery"),
    request::<OperationsQuery>("OperationsQuery"),
    request::<PlansChangesQuery>("PlansChangesQuery"),
    request::<InventoryQuery>("InventoryQuery"),
    message::<PlanAnswer>("PlanAnswer"),
    message::<PlansAnswer>("PlansAnswer"),
    message::<InstancesAnswer>("InstancesAnswer"),
    message::<OperationsAnswer>("OperationsAnswer"),
    message::<PlansChangesAnswer>("PlansChangesAnswer"),
    message::<InventoryAnswer>("InventoryAnswer"),
    message::<ExplainAnswer>("ExplainAnswer"),
];

/// Refusals of the planner.
pub const REFUSALS: [Shape; 1] = [message::<PlannerErrorReply>("PlannerErrorReply")];

/// The properties of a component, by the type of its profile.
pub const PROPERTIES: [(&str, Make); 5] = [
    ("process", SchemaGenerator::into_root_schema_for::<Process>),
    ("simulated", SchemaGenerator::into_root_schema_for::<Simulated>),
    ("compose", SchemaGenerator::into_root_schema_for::<Package>),
    ("helm", SchemaGenerator::into_root_schema_for::<Package>),
    ("kubernetes", SchemaGenerator::into_root_schema_for::<Package>),
];

/// Every shape that has examples.
pub fn shapes() -> impl Iterator<Item = &'static Shape> {
    DOCUMENTS.iter().chain(&MESSAGES).chain(&GROUPS).chain(&FEDERATION).chain(&PLANS).chain(&REFUSALS)
}

/// The shape of a name.
pub fn shape(name: &str) -> Option<&'static Shape> {
    shapes().find(|shape| shape.name == name)
}

const fn document<T: Document + JsonSchema>() -> Shape {
    let read = |bytes: &[u8]| decode::parse::<T>(bytes).map(value_of).map_err(|refusal| refusal.to_string());
    Shape { name: T::KIND, schema: SchemaGenerator::into_root_schema_for::<T>, read, is_request: false }
}

const fn message<T: Serialize + DeserializeOwned + JsonSchema>(name: &'static str) -> Shape {
    Shape {
        name,
        schema: SchemaGenerator::into_root_schema_for::<T>,
        read: read_message::<T>,
        is_request: false,
    }
}

const fn request<T: Serialize + DeserializeOwned + JsonSchema + 'static>(name: &'static str) -> Shape {
    let read = |bytes: &[u8]| question::read::<T>(bytes).map(value_of).map_err(|refusal| refusal.message);
    Shape { name, schema: SchemaGenerator::into_root_schema_for::<T>, read, is_request: true }
}

/// A document that is written by request: as [`document`], but for unknown keys.
const fn definition<T: Document + JsonSchema + 'static>() -> Shape {
    let read = |bytes: &[u8]| {
        let document: T = question::read(bytes).map_err(|refusal| refusal.message)?;
        document.check().map_err(|violation| violation.to_string())?;
        Ok(value_of(document))
    };
    Shape { name: T::KIND, schema: SchemaGenerator::into_root_schema_for::<T>, read, is_request: true }
}

fn read_message<T: Serialize + DeserializeOwned>(bytes: &[u8]) -> Result<Value, String> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    serde_path_to_error::deserialize::<_, T>(&mut json)
        .map(value_of)
        .map_err(|error| format!("{}: {}", error.path(), error.inner()))
}

#[allow(clippy::needless_pass_by_value)]
fn value_of<T: Serialize>(document: T) -> Value {
    serde_json::to_value(document).expect("documents of the contract are JSON")
}
