//! Requests to the planner: reads with the gateway's own credentials, changes with a signed note that names the caller.

use std::sync::Arc;

use muster_client::ask::{AskError, Hub, understood};
use muster_contract::plans::{
    InventoryDeleteRequest, InventoryKind, InventoryName, InventoryQuery, InventoryStateRequest,
};
use muster_contract::{DeviceKey, SiteId, Timestamp};
use muster_identity::on_behalf::NoteSigner;
use muster_service::clock::Clock;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tonic::Status;

use super::caller::GrpcCaller;
use super::lists::Listing;
use super::refusals::{invalid, not_found, not_made, refused};
use crate::login;

/// The planner as callers reach it. Clones share everything.
#[derive(Clone)]
pub(super) struct Planner {
    hub: Hub,
    signer: Option<Arc<NoteSigner>>,
    clock: Arc<dyn Clock>,
    /// The names of nodes.
    pub(super) names: NodeNames,
}

/// The names of nodes: SITE/DEVICE, and the device alone for the site that names without one mean.
#[derive(Clone)]
pub(super) struct NodeNames(pub(super) Option<SiteId>);

impl Planner {
    /// The planner of a hub. Without a signer changes are requested with the gateway's credentials alone.
    pub(super) fn new(
        hub: Hub,
        signer: Option<Arc<NoteSigner>>,
        clock: Arc<dyn Clock>,
        site: Option<SiteId>,
    ) -> Self {
        Self { hub, signer, clock, names: NodeNames(site) }
    }

    /// The time.
    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Makes a change for a caller; the changed document.
    ///
    /// # Errors
    /// The planner refuses it, or does not answer.
    pub(super) async fn change<T: Serialize, R: DeserializeOwned>(
        &self,
        caller: &GrpcCaller,
        verb: &'static str,
        request: &T,
    ) -> Result<R, Status> {
        self.request(caller, verb, request).await.map_err(refused)
    }

    /// Makes a record for a caller.
    ///
    /// # Errors
    /// As [`Self::change`]; one of the name exists already.
    pub(super) async fn create<T: Serialize, R: DeserializeOwned>(
        &self,
        caller: &GrpcCaller,
        verb: &'static str,
        request: &T,
    ) -> Result<R, Status> {
        self.request(caller, verb, request).await.map_err(not_made)
    }

    /// Sets the state that a request has, for a caller. An empty message sets none.
    ///
    /// # Errors
    /// As [`Self::change`].
    pub(super) async fn set_state<R: DeserializeOwned>(
        &self,
        caller: &GrpcCaller,
        version: u64,
        message: String,
        request: InventoryStateRequest,
    ) -> Result<R, Status> {
        let message = Some(message).filter(|text| !text.is_empty());
        let request = InventoryStateRequest { message, expected_version: Some(version), ..request };
        self.change(caller, "inventory-state", &request).await
    }

    /// Deletes an entry of the inventory for a caller.
    ///
    /// # Errors
    /// As [`Self::change`].
    pub(super) async fn delete<R: DeserializeOwned>(
        &self,
        caller: &GrpcCaller,
        item: InventoryName,
        version: u64,
    ) -> Result<(), Status> {
        let request = InventoryDeleteRequest { item, expected_version: Some(version), request_id: None };
        let _deleted: R = self.change(caller, "inventory-delete", &request).await?;
        Ok(())
    }

    /// The entry of the inventory with this name.
    ///
    /// # Errors
    /// As [`Self::change`]; there is none.
    pub(super) async fn entry<R: DeserializeOwned>(
        &self,
        kind: InventoryKind,
        name: &str,
    ) -> Result<R, Status> {
        let (rows, word) = match kind {
            InventoryKind::Node => ("nodes", "node"),
            InventoryKind::Cluster => ("clusters", "cluster"),
            InventoryKind::Capability => ("capabilities", "compute capability"),
        };
        let query = InventoryQuery { name: vec![name.to_owned()], ..InventoryQuery::of(kind) };
        let found: Vec<R> = self.list(Listing::new("inventory-list", rows, &query, 1, Some)?).await?;
        found.into_iter().next().ok_or_else(|| not_found(word, name))
    }

    /// An answer to a question that changes nothing.
    ///
    /// # Errors
    /// As [`Self::change`].
    pub(super) async fn read<T: Serialize, R: DeserializeOwned>(
        &self,
        verb: &'static str,
        question: &T,
    ) -> Result<R, Status> {
        let answer = self.hub.planner(verb, question).await.map_err(refused)?;
        understood(&answer).map_err(refused)
    }

    /// The records of a list.
    ///
    /// # Errors
    /// As [`Self::change`], and those of [`Listing::add`].
    pub(super) async fn list<R: DeserializeOwned, T>(
        &self,
        mut listing: Listing<'_, R, T>,
    ) -> Result<Vec<T>, Status> {
        loop {
            let answer = self.hub.planner(listing.verb, &listing.question).await.map_err(refused)?;
            if !listing.add(answer)? {
                return Ok(listing.into_records());
            }
        }
    }

    async fn request<T: Serialize, R: DeserializeOwned>(
        &self,
        caller: &GrpcCaller,
        verb: &'static str,
        request: &T,
    ) -> Result<R, AskError> {
        let hub = match &self.signer {
            Some(signer) => self.hub.on_behalf(login::representation(signer, &caller.person)),
            None => self.hub.clone(),
        };
        understood(&hub.planner(verb, request).await?)
    }
}

impl NodeNames {
    /// The device of a node's id or name.
    ///
    /// # Errors
    /// It is none.
    pub(super) fn key(&self, field: &str, text: &str) -> Result<DeviceKey, Status> {
        let whole = match &self.0 {
            Some(site) if !text.contains('/') => format!("{site}/{text}"),
            _ => text.to_owned(),
        };
        let hint = if whole.contains('/') {
            ""
        } else {
            ": a node is SITE/DEVICE here; --grpc-site names a site for all"
        };
        whole.parse().map_err(|error| invalid(field, format!("'{text}': {error}{hint}")))
    }

    /// The name of a node: without its site, if names without one mean that site.
    pub(super) fn name(&self, key: &DeviceKey) -> String {
        if self.0.as_ref() == Some(&key.site) { key.device.to_string() } else { key.to_string() }
    }
}
