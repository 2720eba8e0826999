//! The wire between processes and the hub: each call of a process is an operation that waits until the world executes it.
//! It decides nothing. An operation whose answer is dropped was lost, and its process sees no answer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use muster_bus::{ApiError, NoAnswer, PublishError, ReadError, RequestError, Trace};
use muster_contract::desired::DesiredDeployment;
use muster_contract::rollout::{RolloutDecisions, RolloutRecord};
use muster_contract::{DeploymentId, DeviceKey, Timestamp};
use muster_planner::services::Requests;
use muster_publisher::downlink::{Downlink, Message, OutgoingDocument, SubjectState};
use tokio::sync::oneshot;

/// The way back to the process.
pub(crate) type Answer<T> = oneshot::Sender<T>;

/// A process, with the number of its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Process {
    Publisher(u64),
    /// One of the two planners.
    Planner(usize, u64),
    /// A person's command.
    Person(usize),
}

/// An operation.
#[derive(Debug)]
pub(crate) enum Operation {
    AllSubjects(Answer<Result<BTreeMap<DeviceKey, SubjectState>, ReadError>>),
    Copies(Answer<Result<Vec<(DeviceKey, Bytes)>, ReadError>>),
    History(DeviceKey, Answer<Result<Vec<Message>, ReadError>>),
    Last(DeviceKey, Answer<Result<Option<Message>, ReadError>>),
    AllDecisions(Answer<Result<Vec<Message>, ReadError>>),
    Decisions(DeploymentId, String, Answer<Result<Option<Message>, ReadError>>),
    StoreDecisions(StoreDecisions, Answer<Result<u64, PublishError>>),
    Publish(Box<OutgoingDocument>, Answer<Result<u64, PublishError>>),
    Request(Request, Answer<Result<Bytes, RequestError>>),
    /// Messages of LEDGER after a sequence.
    Facts(u64, Answer<super::ledger::Batch>),
    /// LEDGER's last sequence and the server's time.
    LedgerEnd(Answer<(u64, Timestamp)>),
}

/// A message of decisions on its way.
#[derive(Debug)]
pub(crate) struct StoreDecisions {
    pub(crate) path: String,
    pub(crate) decisions: RolloutDecisions,
    pub(crate) expected: u64,
}

/// A request on its way.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) subject: String,
    pub(crate) payload: Bytes,
}

impl Operation {
    /// Its effect, in one line.
    pub(crate) fn words(&self) -> String {
        match self {
            Self::StoreDecisions(StoreDecisions { path, decisions, .. }, _) => {
                let verbs = |record: &RolloutRecord| -> Vec<_> {
                    record.decisions.iter().map(|one| (one.verb.as_str(), one.wave.clone())).collect()
                };
                let last = decisions.rollouts.last();
                format!("decides about {} of {path}: {:?}", decisions.deployment, last.map(verbs))
            }
            Self::Publish(outgoing, _) => {
                let OutgoingDocument { key, document, .. } = &**outgoing;
                let entry = |entry: &DesiredDeployment| {
                    let command = &entry.profile.components[0].properties["command"];
                    format!("{}={command}@{}", entry.id, entry.target_generation)
                };
                let entries: Vec<_> = document.deployments.iter().map(entry).collect();
                format!("publishes {key} {}: {entries:?}", document.generation)
            }
            Self::Request(Request { subject, payload }, _) => {
                format!("requests {subject} {}", String::from_utf8_lossy(payload))
            }
            Self::Last(key, _) => format!("reads {key}"),
            _ => "reads".to_owned(),
        }
    }

    /// Whether it changes something at the hub, now or by the service that it asks.
    pub(crate) fn is_write(&self) -> bool {
        match self {
            Self::StoreDecisions(..) | Self::Publish(..) => true,
            Self::Request(request, _) => {
                request.subject.ends_with(".release") || request.subject.ends_with(".decide")
            }
            _ => false,
        }
    }
}

/// The operations that processes have sent.
pub(crate) type Sent = Arc<Mutex<Vec<(Process, Operation)>>>;

/// The connection of a process.
#[derive(Debug, Clone)]
pub(crate) struct Port {
    pub(crate) process: Process,
    pub(crate) sent: Sent,
}

impl Port {
    pub(crate) fn send<T>(&self, operation: impl FnOnce(Answer<T>) -> Operation) -> oneshot::Receiver<T> {
        let (answer, answered) = oneshot::channel();
        self.sent.lock().unwrap().push((self.process, operation(answer)));
        answered
    }

    async fn read<T>(
        &self,
        operation: impl FnOnce(Answer<Result<T, ReadError>>) -> Operation,
    ) -> Result<T, ReadError> {
        let lost = |_| Err(ReadError::TimedOut { what: "the hub".to_owned() });
        self.send(operation).await.unwrap_or_else(lost)
    }

    async fn write(
        &self,
        operation: impl FnOnce(Answer<Result<u64, PublishError>>) -> Operation,
    ) -> Result<u64, PublishError> {
        let lost = |_| Err(PublishError::new("the hub", ApiError::NoAnswer(NoAnswer::Disconnected)));
        self.send(operation).await.unwrap_or_else(lost)
    }
}

impl Requests for Port {
    async fn request(&self, subject: &str, payload: Bytes, timeout: Duration) -> Result<Bytes, RequestError> {
        let request = Request { subject: subject.to_owned(), payload };
        let answered = self.send(|answer| Operation::Request(request, answer));
        let subject = subject.to_owned();
        match tokio::time::timeout(timeout, answered).await {
            Ok(Ok(reply)) => reply,
            Ok(Err(_)) => Err(RequestError::Disconnected { subject }),
            Err(_) => Err(RequestError::Timeout { subject, timeout }),
        }
    }
}

impl Downlink for Port {
    async fn all_subjects(&self) -> Result<BTreeMap<DeviceKey, SubjectState>, ReadError> {
        self.read(Operation::AllSubjects).await
    }

    async fn copies(
        &self,
        _: &BTreeMap<DeviceKey, SubjectState>,
    ) -> Result<Vec<(DeviceKey, Bytes)>, ReadError> {
        self.read(Operation::Copies).await
    }

    async fn history(&self, key: &DeviceKey) -> Result<Vec<Message>, ReadError> {
        self.read(|answer| Operation::History(key.clone(), answer)).await
    }

    async fn last(&self, key: &DeviceKey) -> Result<Option<Message>, ReadError> {
        self.read(|answer| Operation::Last(key.clone(), answer)).await
    }

    async fn reported(&self, _: &DeviceKey) -> Result<bool, ReadError> {
        Ok(true)
    }

    async fn all_decisions(&self) -> Result<Vec<Message>, ReadError> {
        self.read(Operation::AllDecisions).await
    }

    async fn decisions(&self, deployment: &DeploymentId, path: &str) -> Result<Option<Message>, ReadError> {
        self.read(|answer| Operation::Decisions(deployment.clone(), path.to_owned(), answer)).await
    }

    async fn store_decisions(
        &self,
        path: &str,
        decisions: &RolloutDecisions,
        expected: u64,
        _: Trace,
    ) -> Result<u64, PublishError> {
        let store = StoreDecisions { path: path.to_owned(), decisions: decisions.clone(), expected };
        self.write(|answer| Operation::StoreDecisions(store, answer)).await
    }

    async fn publish(&self, documents: Vec<OutgoingDocument>) -> Vec<Result<u64, PublishError>> {
        let write = |document| self.write(move |answer| Operation::Publish(Box::new(document), answer));
        join_all(documents.into_iter().map(write)).await
    }
}
