//! Facts for simulations and benches that write LEDGER in place of ingest: a pulse, and the report of a deployment with one
//! component. The callers choose when and where they append a fact.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use muster_contract::canonical::Digest;
use muster_contract::fact::{Fact, PulseFact, StatusFact};
use muster_contract::state::{ComponentStatus, DeploymentStatus, StatusError};
use muster_contract::{DeploymentId, Epoch, Generation, Seq, SeqRanges, State, Timestamp};
use muster_domain::aggregate;

/// The pulse of an owner that hears all of its devices.
pub fn pulse(at: Timestamp, lease_seconds: u64) -> Fact {
    Fact::Pulse(PulseFact {
        api_version: Default::default(),
        kind: Default::default(),
        owner: "hub/1/a".to_owned(),
        at,
        lease_seconds,
        current: true,
        unproven_since: None,
    })
}

/// The newest report of a deployment whose component `main` has a state, with a number of epoch 1.
pub fn status(
    at: Timestamp,
    number: u64,
    (deployment, generation, digest): (&DeploymentId, Generation, Digest),
    (state, error): (State, Option<StatusError>),
) -> StatusFact {
    let number = Seq::new(number).unwrap();
    let components = vec![ComponentStatus { name: "main".parse().unwrap(), state, error: error.clone() }];
    StatusFact {
        api_version: Default::default(),
        kind: Default::default(),
        epoch: Epoch::new(1).unwrap(),
        seq: number,
        head: number,
        observed_at: at,
        deployment: deployment.clone(),
        generation,
        digest,
        status: DeploymentStatus { state: aggregate::overall([state], error.as_ref()), error, reason: None },
        components,
        retries: Vec::new(),
        first_attempt_at: None,
        current: true,
        coalesced: SeqRanges::new(),
        received_at: at,
        origin: Default::default(),
        fidelity: Default::default(),
        late: false,
        reasserted: false,
    }
}
