//! What a subscriber reads of a hub: the facts of LEDGER, in their order and from any place, the views of the bucket, and the
//! digests that the hub tells of all views as of a fact.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use async_nats::jetstream::consumer::{DeliverPolicy, pull};
use async_nats::jetstream::{self, Context, kv};
use futures_util::{StreamExt as _, TryStreamExt as _};
use jiff::Timestamp;
use muster_contract::history::DigestsAnswer;
use muster_contract::subjects::{ViewKey, stream};
use muster_contract::view::AsOf;
use serde_json::{Value, json};

use crate::failure::{Result, during};
use crate::fleet::Fleet;
use crate::snapshot::Window;

/// For the next fact of which a view says that it is there.
const FACT_MAX: Duration = Duration::from_secs(10);
/// For an answer of the hub that takes its time.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between two questions to a hub that is not ready.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// A connection to a hub.
#[derive(Debug)]
pub struct Hub {
    client: async_nats::Client,
    jetstream: Context,
}

impl Hub {
    /// Connects.
    ///
    /// # Errors
    /// Nobody is there.
    pub async fn connect(url: &str) -> Result<Self> {
        let client = async_nats::connect(url).await.map_err(during(format!("cannot reach {url}")))?;
        Ok(Self { jetstream: jetstream::new(client.clone()), client })
    }

    /// Which LEDGER it is.
    ///
    /// # Errors
    /// There is none, or it may not be read.
    pub async fn window(&self) -> Result<Window> {
        let ledger = self
            .jetstream
            .get_stream(stream::LEDGER)
            .await
            .map_err(during("cannot look at LEDGER".to_owned()))?;
        let info = ledger.cached_info();
        let created = Timestamp::from_nanosecond(info.created.unix_timestamp_nanos())?;
        Ok(Window { created, first: info.state.first_sequence, last: info.state.last_sequence })
    }

    /// The views of the bucket, the oldest first: a fold does not go back.
    ///
    /// # Errors
    /// The bucket cannot be read.
    pub async fn views(&self) -> Result<Vec<(ViewKey, Value)>> {
        let bucket = self.bucket().await?;
        let subjects = bucket.stream.info_with_subjects(format!("{}>", bucket.prefix)).await?;
        let subjects: Vec<(String, usize)> = subjects.try_collect().await?;
        let mut views = Vec::new();
        for (subject, _) in subjects {
            let key = subject.strip_prefix(&bucket.prefix).unwrap_or_default();
            // What people define, and what that gives, does not follow from LEDGER alone.
            let Some(known) = ViewKey::parse(key).filter(|key| !matches!(key, ViewKey::Defined(_))) else {
                continue;
            };
            // None: it is gone.
            if let Some(view) = read(&bucket, key).await? {
                views.push((known, view));
            }
        }
        views.sort_by_key(|(_, view)| ledger_seq(view));
        Ok(views)
    }

    /// A view of the bucket; none where it is gone.
    ///
    /// # Errors
    /// The bucket cannot be read.
    pub async fn view(&self, key: &ViewKey) -> Result<Option<Value>> {
        read(&self.bucket().await?, &key.to_string()).await
    }

    async fn bucket(&self) -> Result<kv::Store> {
        let bucket = self.jetstream.get_key_value(stream::VIEWS_BUCKET).await;
        bucket.map_err(during("cannot look at the views".to_owned()))
    }

    /// Reads the tail up to a sequence into the fold; how many facts that were. LEDGER forgets pulses, so its last message may
    /// be gone: whether anything is left, the consumer knows.
    ///
    /// # Errors
    /// LEDGER cannot be read.
    pub async fn read_until(&self, fleet: &mut Fleet, ledger_seq: u64) -> Result<u64> {
        let mut read = 0;
        if fleet.as_of.ledger_seq >= ledger_seq {
            return Ok(read);
        }
        let ledger = self
            .jetstream
            .get_stream(stream::LEDGER)
            .await
            .map_err(during("cannot look at LEDGER".to_owned()))?;
        let after = DeliverPolicy::ByStartSequence { start_sequence: fleet.as_of.ledger_seq + 1 };
        let ordered = pull::OrderedConfig { deliver_policy: after, ..Default::default() };
        let consumer = ledger.create_consumer(ordered).await?;
        let (mut pending, mut at_seq) = (consumer.cached_info().num_pending, 0);
        let mut messages = consumer.messages().await?;
        while pending > 0 && at_seq < ledger_seq {
            let next = tokio::time::timeout(FACT_MAX, messages.next()).await;
            let next = next.map_err(during(format!("LEDGER has nothing up to {ledger_seq}")))?;
            let message = next.ok_or("LEDGER is gone")??;
            let info = message.info()?;
            (at_seq, pending) = (info.stream_sequence, info.pending);
            let at = Timestamp::from_nanosecond(info.published.unix_timestamp_nanos())?;
            let as_of = AsOf { ledger_seq: at_seq, at };
            fleet.apply(as_of, &message.subject, &message.payload);
            read += 1;
        }
        Ok(read)
    }

    /// The digests of all views as of a fact, by key, as the hub tells them.
    ///
    /// # Errors
    /// It does not tell.
    pub async fn digests(&self, ledger_seq: u64) -> Result<BTreeMap<String, Value>> {
        let (mut views, mut after) = (BTreeMap::new(), None);
        loop {
            let answer = self.asked(&json!({ "atSeq": ledger_seq, "after": after })).await?;
            views.extend(answer.views.into_iter().map(|(key, digest)| (key, json!(digest))));
            after = answer.next;
            if after.is_none() {
                return Ok(views);
            }
        }
    }

    /// An answer; the hub says so while it is not ready yet.
    async fn asked(&self, question: &Value) -> Result<DigestsAnswer> {
        let until = Instant::now() + PATIENCE;
        loop {
            let asked = self.client.request("muster.query.digests", question.to_string().into());
            let reply = tokio::time::timeout(PATIENCE, asked)
                .await
                .map_err(during("the hub does not answer".to_owned()))?
                .map_err(during("the hub does not tell its digests".to_owned()))?;
            let answer: Value = serde_json::from_slice(&reply.payload)?;
            let Some(error) = answer.get("error") else { return Ok(serde_json::from_value(answer)?) };
            if error["code"] != "notReady" || Instant::now() > until {
                return Err(format!("the hub does not tell its digests: {}", error["message"]).into());
            }
            tokio::time::sleep(ASK_AGAIN).await;
        }
    }
}

async fn read(bucket: &kv::Store, key: &str) -> Result<Option<Value>> {
    let Some(bytes) = bucket.get(key).await? else { return Ok(None) };
    Ok(Some(serde_json::from_slice(&bytes).map_err(during(format!("{key} is no view")))?))
}

/// Up to where a view has read.
pub fn ledger_seq(view: &Value) -> u64 {
    view["asOf"]["ledgerSeq"].as_u64().unwrap_or(0)
}
