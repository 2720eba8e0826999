//! Errors of the planner's start and of its requests.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use muster_bus::{ConnectError, RequestError, TopologyError};
use muster_contract::query::ErrorBody;

use crate::webhook::WebhookSetupError;

/// Why the planner cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No usable NATS server.
    #[error("cannot work with NATS")]
    Connect(#[from] ConnectError),
    /// Webhooks cannot be asked.
    #[error("cannot use the settings of webhooks")]
    Webhooks(#[from] WebhookSetupError),
    /// The folder of checkpoints cannot be used.
    #[error("cannot create {}: make it a folder that this user may write to, or choose another --data-dir", .path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
}

/// Why plans cannot be kept yet. The planner tries again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlansStartError {
    /// No connection.
    #[error("cannot connect for plans: check --plans-creds and the link to NATS")]
    Connect(#[from] ConnectError),
    /// PLANS cannot be created, or differs.
    #[error("cannot create PLANS")]
    Topology(#[from] TopologyError),
    /// Neither succeeded in time.
    #[error("cannot connect and create PLANS within {0:?}: check --plans-creds and the link to NATS")]
    Late(Duration),
}

/// A failed request. The planner repeats it.
#[derive(Debug, thiserror::Error)]
pub enum PlannerError {
    /// A service did not answer.
    #[error("request to {subject} failed")]
    Request {
        /// The subject.
        subject: String,
        /// The bus's reason.
        #[source]
        source: RequestError,
    },
    /// A service refuses the request.
    #[error("{subject} refused the request: {}", .body.message)]
    Refused {
        /// The subject.
        subject: String,
        /// The refusal.
        body: ErrorBody,
    },
    /// A request or its answer cannot be encoded or decoded.
    #[error("cannot read the answer of {subject}: run the planner and the service at the same version")]
    Unreadable {
        /// The subject.
        subject: String,
        /// The parser's reason.
        #[source]
        source: serde_json::Error,
    },
    /// A new commit was accepted between two pages of targets.
    #[error("a new commit was accepted while the targets were listed: the planner lists them again")]
    CommitChanged,
    /// A list has too many pages.
    #[error(
        "the list of {subject} has more than {pages} pages: another program answers on it in place of the publisher, or the fleet is \
         larger than this release supports; see `muster publisher status`"
    )]
    Endless {
        /// The subject.
        subject: String,
        /// Most pages of a list.
        pages: usize,
    },
}

impl PlannerError {
    /// Whether the requests about another deployment may succeed all the same.
    pub(crate) const fn is_of_one_deployment(&self) -> bool {
        match self {
            Self::Refused { .. } | Self::Unreadable { .. } | Self::CommitChanged | Self::Endless { .. } => {
                true
            }
            Self::Request { .. } => false,
        }
    }
}
