//! Errors that keep an agent from starting, or end it. Each module defines its own errors.

use crate::{db, identity};

/// The error that keeps an agent from starting.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The database cannot be used.
    #[error("the agent cannot start")]
    Database(#[from] db::Error),
    /// The thread that opens the database panicked.
    #[error("the agent cannot start: the thread that opens the database panicked")]
    Interrupted(#[from] tokio::task::JoinError),
    /// The device cannot ask for enrolment.
    #[error("the agent cannot start: it cannot ask for enrolment")]
    Join(#[from] identity::IdentityError),
    /// This program does not have the runtime.
    #[error("the agent cannot start: it has no runtime 'kubernetes': start muster-agent-kubernetes instead")]
    OtherProgram,
    /// The cluster's settings cannot be used.
    #[cfg(feature = "kubernetes")]
    #[error("the agent cannot start: its kubeconfig or service account cannot be used")]
    Kubeconfig(#[from] crate::runtime::kubernetes::KubeconfigError),
}

/// The error that ends a running agent.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    /// The database is damaged: the agent must start again with a new one.
    #[error(
        "the database is damaged: workloads keep running; start the agent again, it moves the file aside and begins a new epoch"
    )]
    Damaged,
}
