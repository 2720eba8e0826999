//! A request, carried out at once: the device is read anew, planned, and published; over again if another writer was
//! first.

use muster_bus::{PublishErrorKind, ReadError, Trace};
use muster_contract::desired::{Source, SourceKind};
use muster_contract::query::{ErrorBody, PublishAnswer};
use muster_contract::{DeploymentId, DeviceKey};
use muster_service::error::chain;

use super::Announcer;
use crate::compose;
use crate::downlink::Downlink;
use crate::held::Held;
use crate::plan::{Draft, Wanted, draft};
use crate::requests::{Change, Request, conflict, internal};

/// Attempts for one request before somebody else's luck is conceded.
const ATTEMPTS: usize = 5;
/// Random bytes of a request's id.
const RANDOM_BYTES: usize = 10;

impl<D: Downlink> Announcer<D> {
    /// Makes a change and says what the device shall run now. The same request again changes nothing.
    pub(super) async fn change(&mut self, request: &Request) -> Result<PublishAnswer, ErrorBody> {
        let (key, source) = (&request.key, self.source_of(request));
        let trace = Trace::begin(&mut self.chance);
        let (mut tried, mut first): (Option<Draft>, _) = (None, None);
        let (mut trouble, mut overtaken) = (String::new(), None);
        for _ in 0..ATTEMPTS {
            self.read_again(key).await.map_err(|error| unread(&error))?;
            let held = self.roster.held(key);
            if let (Some(before), Some(tried)) = (overtaken.take(), &tried) {
                self.count(key, &before, tried);
            }
            // A document without an answer may have arrived all the same. Then there is nothing left to take back.
            if tried.as_ref().is_some_and(|tried| tried.is_what(&held)) {
                return answer(&held, true, first.unwrap_or_default());
            }
            let wanted = self.wanted(request, &held, &source).await?;
            let news = first.get_or_insert_with(|| self.news(request, &held)).clone();
            let Some(draft) = draft(&held, &wanted) else { return answer(&held, false, news) };
            tried = Some(draft.clone());
            let letter = self.letter(key, &draft, trace);
            match self.downlink.publish(vec![letter]).await.pop() {
                Some(Ok(sequence)) => {
                    self.stored(key, draft, sequence);
                    self.tell();
                    return answer(&self.roster.held(key), true, news);
                }
                Some(Err(error)) if error.kind == PublishErrorKind::Permanent => {
                    return Err(internal(chain(&error)));
                }
                Some(Err(error)) => {
                    overtaken = (error.kind == PublishErrorKind::Conflict).then_some(held);
                    trouble = chain(&error);
                }
                None => {}
            }
        }
        Err(conflict(format!("gave up after {ATTEMPTS} attempts: {trouble}; ask again")))
    }

    async fn wanted(&self, request: &Request, held: &Held, source: &Source) -> Result<Wanted, ErrorBody> {
        let key = &request.key;
        let git = self.roster.git(key, self.around.git);
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

    /// What else a request does than its author may know. Told on what was held before it.
    fn news(&self, request: &Request, held: &Held) -> News {
        let key = &request.key;
        let git = self.roster.git(key, self.around.git);
        let Change::Apply(contents) = &request.change else { return News::default() };
        News {
            new_device: compose::is_new(key, git, held),
            returned: held.document.as_ref().is_some_and(|document| document.retired),
            overrides: compose::overrides(key, git, held, contents),
        }
    }

    /// A request's id, time-ordered and random so that requests can be told apart and found again, and who asks.
    fn source_of(&mut self, request: &Request) -> Source {
        let millis = u64::try_from(self.around.clock.now().as_millisecond()).unwrap_or(0);
        let mut random = [0; RANDOM_BYTES];
        self.chance.fill(&mut random);
        let id = uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid();
        let requested_by = request.requested_by.clone();
        Source { requested_by, ..Source::new(SourceKind::Api, id.to_string()) }
    }
}

/// What a request does beside what it says.
#[derive(Debug, Clone, Default)]
struct News {
    new_device: bool,
    returned: bool,
    overrides: Vec<DeploymentId>,
}

fn unread(error: &ReadError) -> ErrorBody {
    internal(format!("nothing is changed: {}; ask again", chain(error)))
}

fn answer(held: &Held, changed: bool, news: News) -> Result<PublishAnswer, ErrorBody> {
    let (Some(generation), Some(document)) = (held.generation, &held.document) else {
        return Err(internal("there is nothing to say of the device"));
    };
    let deployments = document.entries.iter().map(|entry| entry.content.id().clone()).collect();
    let News { new_device, returned, overrides } = news;
    Ok(PublishAnswer { generation, changed, deployments, new_device, returned, overrides })
}
