//! Requests to the query service of the hub, page by page.

use std::time::Duration;

use muster_bus::Bus;
use muster_contract::DeviceKey;
use muster_contract::query::{
    DeploymentsAnswer, DeviceAnswer, DeviceLine, DevicesAnswer, ErrorReply, PAGE_MAX, Query,
};
use muster_contract::subjects::QUERY_PREFIX;
use muster_contract::view::{DeploymentView, FleetView};
use serde::de::DeserializeOwned;

/// Time one answer may take.
pub const TIMEOUT: Duration = Duration::from_secs(2);

/// The query service, asked over the bus.
#[derive(Clone)]
pub struct Hub {
    bus: Bus,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// No answer.
    #[error("the query service did not answer {endpoint}")]
    Silent {
        /// The request.
        endpoint: &'static str,
        /// Why.
        #[source]
        source: muster_bus::RequestError,
    },
    /// It answered with an error.
    #[error("the query service refused {endpoint}: {message}")]
    Refused {
        /// The request.
        endpoint: &'static str,
        /// The message of the answer.
        message: String,
    },
    /// It answered something else.
    #[error("the query service answered {endpoint} with something that is no answer")]
    Garbled {
        /// The request.
        endpoint: &'static str,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
}

impl Hub {
    /// Asks over this bus.
    pub const fn new(bus: Bus) -> Self {
        Self { bus }
    }

    /// The bus.
    pub const fn bus(&self) -> &Bus {
        &self.bus
    }

    /// The fleet.
    ///
    /// # Errors
    /// There is no answer.
    pub async fn fleet(&self) -> Result<FleetView, HubError> {
        self.ask("fleet", &Query::default()).await
    }

    /// One device.
    ///
    /// # Errors
    /// There is no answer.
    pub async fn device(&self, key: &DeviceKey) -> Result<DeviceAnswer, HubError> {
        let query =
            Query { site: key.site.clone().into(), device: Some(key.device.clone()), ..Query::default() };
        self.ask("device", &query).await
    }

    /// All devices.
    ///
    /// # Errors
    /// There is no answer.
    pub async fn devices(&self) -> Result<Vec<DeviceLine>, HubError> {
        let mut all = Vec::new();
        let mut query = Query { limit: Some(PAGE_MAX), ..Query::default() };
        loop {
            let page: DevicesAnswer = self.ask("devices", &query).await?;
            all.extend(page.devices);
            query.after = page.next;
            if query.after.is_none() {
                return Ok(all);
            }
        }
    }

    /// All deployments.
    ///
    /// # Errors
    /// There is no answer.
    pub async fn deployments(&self) -> Result<Vec<DeploymentView>, HubError> {
        let mut all = Vec::new();
        let mut query = Query { limit: Some(PAGE_MAX), ..Query::default() };
        loop {
            let page: DeploymentsAnswer = self.ask("deployments", &query).await?;
            all.extend(page.deployments);
            query.after = page.next;
            if query.after.is_none() {
                return Ok(all);
            }
        }
    }

    async fn ask<T: DeserializeOwned>(&self, endpoint: &'static str, query: &Query) -> Result<T, HubError> {
        let garbled = |source| HubError::Garbled { endpoint, source };
        let question = serde_json::to_vec(query).map_err(garbled)?;
        let subject = format!("{QUERY_PREFIX}.{endpoint}");
        let answer = self
            .bus
            .request(&subject, question.into(), TIMEOUT)
            .await
            .map_err(|source| HubError::Silent { endpoint, source })?;
        if let Ok(ErrorReply { error, .. }) = serde_json::from_slice(&answer) {
            return Err(HubError::Refused { endpoint, message: error.message });
        }
        serde_json::from_slice(&answer).map_err(garbled)
    }
}
