//! `apiVersion` and `kind` as types: a document of another version or kind cannot be constructed.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// The version of every document here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ApiVersion {
    /// `muster/v1`
    #[default]
    #[serde(rename = "muster/v1")]
    V1,
}

macro_rules! kinds {
    ($($name:ident),+ $(,)?) => {
        /// One type for each document kind, with its name as the only value.
        pub mod kind {
            use super::*;
            $(
                #[doc = concat!("The kind `", stringify!($name), "`.")]
                #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
                pub enum $name {
                    #[doc = concat!("`", stringify!($name), "`")]
                    #[default]
                    $name,
                }

                impl JsonSchema for $name {
                    fn inline_schema() -> bool {
                        true
                    }
                    fn schema_name() -> Cow<'static, str> {
                        concat!(stringify!($name), "Kind").into()
                    }
                    fn json_schema(_: &mut SchemaGenerator) -> Schema {
                        json_schema!({ "const": stringify!($name) })
                    }
                }
            )+
        }
    };
}

kinds!(
    DesiredState,
    StatusReport,
    CapabilitiesReport,
    ReportBatch,
    Heartbeat,
    Receipt,
    Credential,
    StatusFact,
    DeviceFact,
    LivenessFact,
    DeadlineFact,
    QuarantineFact,
    Incident,
    Ownership,
    PulseFact,
    HearingFact,
    QuarantineVerdict,
    RejectedReport,
    DeploymentView,
    SiteView,
    FleetView,
    SubscriptionRecord,
    Notice,
    GroupView,
    ViewDefinition,
    DefinedView,
    HubList,
    Rollout,
    RolloutDecisions,
    Plan,
    Instance,
    Node,
    Cluster,
    Capability,
);
