//! A request, carried out at once: the device is read anew, planned, and published; over again if another writer was
//! first.

use muster_bus::{PublishErrorKind, Trace};
use muster_contract::desired::{Source, SourceKind};
use muster_contract::query::{ErrorBody, PublishAnswer};
use muster_service::error::chain;

use super::Announcer;
use crate::compose::{self, RequestRefused};
use crate::downlink::Downlink;
use crate::held::Held;
use crate::plan::{Wanted, draft};
use crate::requests::{Change, Request, conflict, internal};

/// Attempts for one request before somebody else's luck is conceded.
const ATTEMPTS: usize = 5;
/// Random bytes of a request's id.
const RANDOM_BYTES: usize = 10;

impl<D: Downlink> Announcer<D> {
    /// Makes a change and says what the device shall run now. The same request again changes nothing.
    pub(super) async fn change(&mut self, request: &Request) -> Result<PublishAnswer, ErrorBody> {
        let (key, source) = (&request.key, self.request_id());
        let trace = Trace::begin(&mut self.chance);
        let mut tried = None;
        let mut trouble = String::new();
        for _ in 0..ATTEMPTS {
            let unread = |error| internal(format!("nothing is changed: {}; ask again", chain(&error)));
            self.read_again(key).await.map_err(unread)?;
            let held = self.roster.held(key);
            let wanted = self.wanted(request, &held, &source)?;
            let Some(draft) = draft(&held, &wanted) else {
                // A document without an answer may have arrived all the same.
                return answer(&held, tried.is_some() && tried == held.generation);
            };
            tried = Some(draft.generation);
            let letter = self.letter(key, &draft, trace);
            match self.downlink.publish(vec![letter]).await.pop() {
                Some(Ok(sequence)) => {
                    self.stored(key, draft, sequence);
                    self.tell(None);
                    return answer(&self.roster.held(key), true);
                }
                Some(Err(error)) if error.kind == PublishErrorKind::Permanent => {
                    return Err(internal(chain(&error)));
                }
                Some(Err(error)) => {
                    let overtaken = error.kind == PublishErrorKind::Conflict;
                    self.around.metrics.conflicts.inc_by(u64::from(overtaken));
                    trouble = chain(&error);
                }
                None => {}
            }
        }
        Err(conflict(format!("gave up after {ATTEMPTS} attempts: {trouble}; ask again")))
    }

    fn wanted(&self, request: &Request, held: &Held, source: &Source) -> Result<Wanted, RequestRefused> {
        let (key, git) = (&request.key, self.roster.git(self.around.git));
        match &request.change {
            Change::Apply(contents) => compose::apply(key, git, held, contents, source),
            Change::Remove(id) => compose::remove(key, git, held, id.as_ref(), source),
            Change::Retire => compose::retire(key, git, held, source),
        }
    }

    /// Time-ordered and random, so that requests can be told apart and found again.
    fn request_id(&mut self) -> Source {
        let millis = u64::try_from(self.around.clock.now().as_millisecond()).unwrap_or(0);
        let mut random = [0; RANDOM_BYTES];
        self.chance.fill(&mut random);
        let id = uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid();
        Source { kind: SourceKind::Api, revision: id.to_string() }
    }
}

fn answer(held: &Held, changed: bool) -> Result<PublishAnswer, ErrorBody> {
    let (Some(generation), Some(document)) = (held.generation, &held.document) else {
        return Err(internal("there is nothing to say of the device"));
    };
    let deployments = document.entries.iter().map(|entry| entry.content.id().clone()).collect();
    Ok(PublishAnswer { generation, changed, deployments })
}
