//! Carries out a request at once: reads the device, plans its document and publishes it; repeats that if another writer was
//! first.

use muster_bus::{PublishErrorKind, ReadError, Trace};
use muster_contract::desired::{Source, SourceKind};
use muster_contract::query::{ErrorBody, PublishAnswer};
use muster_contract::{DeploymentId, DeviceKey, RequestedBy};
use muster_service::error::chain;

use super::Announcer;
use crate::compose;
use crate::downlink::Downlink;
use crate::plan::{DesiredDevice, Draft, draft};
use crate::published::PublishedState;
use crate::requests::{Change, Request, conflict, internal};

/// Attempts for one request.
pub(super) const ATTEMPTS: usize = 5;
/// Random bytes of a request's id.
const RANDOM_BYTES: usize = 10;

impl<D: Downlink> Announcer<D> {
    /// Makes a change, and returns the device's deployments. Repeating the request changes nothing.
    pub(super) async fn change(&mut self, request: &Request) -> Result<PublishAnswer, ErrorBody> {
        let (key, source) = (&request.key, self.source_of(request.requested_by.clone()));
        let trace = Trace::random(&mut self.rng);
        let (mut tried, mut first): (Option<Draft>, _) = (None, None);
        let (mut publish_error, mut overtaken) = (String::new(), None);
        for _ in 0..ATTEMPTS {
            self.read_again(key).await.map_err(|error| unread(&error))?;
            let held = self.table.held(key);
            if let (Some(before), Some(tried)) = (overtaken.take(), &tried) {
                self.count(key, &before, tried);
            }
            // A document whose answer was lost may be stored: then the request is done.
            if tried.as_ref().is_some_and(|tried| tried.matches(&held)) {
                return answer(&held, true, first.unwrap_or_default());
            }
            let wanted = self.wanted(request, &held, &source).await?;
            let effects = first.get_or_insert_with(|| self.effects(request, &held)).clone();
            let Some(draft) = draft(&held, &wanted) else { return answer(&held, false, effects) };
            tried = Some(draft.clone());
            let outgoing = self.outgoing(key, &draft, trace);
            match self.downlink.publish(vec![outgoing]).await.pop() {
                Some(Ok(sequence)) => {
                    self.stored(key, draft, sequence);
                    self.report_status();
                    return answer(&self.table.held(key), true, effects);
                }
                Some(Err(error)) if error.kind == PublishErrorKind::Permanent => {
                    return Err(internal(chain(&error)));
                }
                Some(Err(error)) => {
                    overtaken = (error.kind == PublishErrorKind::Conflict).then_some(held);
                    publish_error = chain(&error);
                }
                None => {}
            }
        }
        Err(conflict(format!("gave up after {ATTEMPTS} attempts: {publish_error}; ask again")))
    }

    async fn wanted(
        &self,
        request: &Request,
        held: &PublishedState,
        source: &Source,
    ) -> Result<DesiredDevice, ErrorBody> {
        let key = &request.key;
        let git = self.table.git(key, self.context.git);
        let wanted = match &request.change {
            Change::Apply(contents) => compose::apply(key, git, held, contents, source),
            Change::Remove(id) => compose::remove(key, git, held, id.as_ref(), source),
            Change::Retire => {
                let reported = held.generation.is_some() || self.reported(key).await?;
                compose::retire(key, git, held, reported, source)
            }
        };
        wanted.map_err(ErrorBody::from)
    }

    async fn reported(&self, key: &DeviceKey) -> Result<bool, ErrorBody> {
        self.downlink.reported(key).await.map_err(|error| unread(&error))
    }

    /// Effects of a request that its author may not expect, judged by the state before it.
    fn effects(&self, request: &Request, held: &PublishedState) -> ChangeEffects {
        let key = &request.key;
        let git = self.table.git(key, self.context.git);
        let Change::Apply(contents) = &request.change else { return ChangeEffects::default() };
        ChangeEffects {
            new_device: compose::is_new(key, git, held),
            returned: held.document.as_ref().is_some_and(|document| document.retired),
            overrides: compose::overrides(key, git, held, contents),
        }
    }

    /// The source of a request: a random, time-ordered id, and the requester.
    pub(super) fn source_of(&mut self, requested_by: Option<RequestedBy>) -> Source {
        let millis = u64::try_from(self.context.clock.now().as_millisecond()).unwrap_or(0);
        let mut random = [0; RANDOM_BYTES];
        self.rng.fill(&mut random);
        let id = uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid();
        Source { requested_by, ..Source::new(SourceKind::Api, id.to_string()) }
    }
}

/// Effects of a request besides the change.
#[derive(Debug, Clone, Default)]
struct ChangeEffects {
    new_device: bool,
    returned: bool,
    overrides: Vec<DeploymentId>,
}

pub(super) fn unread(error: &ReadError) -> ErrorBody {
    internal(format!("nothing was changed: {}; ask again", chain(error)))
}

fn answer(held: &PublishedState, changed: bool, effects: ChangeEffects) -> Result<PublishAnswer, ErrorBody> {
    let (Some(generation), Some(document)) = (held.generation, &held.document) else {
        return Err(internal("the device has no desired state"));
    };
    let deployments = document.entries.iter().map(|entry| entry.content.id().clone()).collect();
    let ChangeEffects { new_device, returned, overrides } = effects;
    Ok(PublishAnswer { generation, changed, deployments, new_device, returned, overrides })
}
