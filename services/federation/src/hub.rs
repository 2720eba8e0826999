//! Follows one hub: its views say which keys changed, its rollup answers with the parts. It writes nothing to
//! the hub.
//!
//! A changed view makes its key due, and one round of questions asks for all due keys. Each round also asks for
//! the fleet, and that answer is the hub's sign of life. Every minute all keys are read again, because a part
//! may change without its view, and because removed keys must be found. While a hub does not answer, its last
//! parts stay until its lease ends ([`merged`](crate::merged)).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use fastrand::Rng;
use muster_bus::{Bus, BusConfig, ReadError, RequestError, ViewEntry, ViewIdentity, ViewWatch};
use muster_contract::lag::AnswerLag;
use muster_contract::parts::{PARTS_MAX, PartsAnswer, PartsQuery};
use muster_contract::query::{ErrorBody, ErrorReply};
use muster_contract::subjects::{QUERY_PREFIX, ViewKey};
use muster_contract::view::SiteView;
use muster_contract::{HubName, SiteId};
use muster_domain::fold::BadPart;
use muster_service::backoff::FullJitter;
use muster_service::clock::Clock;
use muster_service::error::chain;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::merged::{AppliedParts, Merged};
use crate::metrics::{AskResult, Metrics};
use crate::timing::Timing;

/// Entries of the bucket read at once.
const BATCH_MAX: usize = 500;
/// How often the rows of one part are asked for from the first again, where they change meanwhile.
const BEGINNINGS_MAX: usize = 5;
/// The question for parts.
const PARTS: &str = "parts";

/// The connection to a hub while there is one, for questions that are passed on.
pub(crate) type Line = watch::Receiver<Option<Bus>>;

/// Why a hub says nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HubError {
    /// Its views cannot be read.
    #[error("cannot read its views")]
    Views(#[from] ReadError),
    /// Its rollup does not answer.
    #[error("its rollup does not answer")]
    Request(#[from] RequestError),
    /// Its rollup answers that it cannot.
    #[error("its rollup says: {}", .0.message)]
    Refused(ErrorBody),
    /// Its rollup answers something else.
    #[error("its rollup's answer cannot be read; check its version")]
    Garbled(#[source] serde_json::Error),
    /// Its rollup says what cannot be.
    #[error("its rollup's part of '{key}' cannot be added")]
    Bad {
        /// The view concerned.
        key: ViewKey,
        /// The error.
        #[source]
        source: BadPart,
    },
    /// Its rollup says nothing of what it was asked.
    #[error("its rollup did not answer for the {0} keys asked for")]
    Unanswered(usize),
}

impl HubError {
    /// The kind of error: its text may differ between answers although nothing has changed.
    fn kind(&self) -> String {
        match self {
            Self::Refused(error) => format!("refused as {:?}", error.code),
            Self::Bad { key, .. } => format!("bad {key}"),
            Self::Views(_) => "views".to_owned(),
            Self::Request(_) => "no answer".to_owned(),
            Self::Garbled(_) => "garbled".to_owned(),
            Self::Unanswered(_) => "unanswered".to_owned(),
        }
    }
}

/// The follower of one hub.
pub(crate) struct Hub {
    name: HubName,
    config: BusConfig,
    timing: Timing,
    merged: Arc<Merged>,
    metrics: Metrics,
    clock: Arc<dyn Clock>,
    chance: Rng,
    retry: FullJitter,
    line: watch::Sender<Option<Bus>>,
    /// Keys to ask for, each with the sequence that an answer must have read: of two rollups the one that
    /// answers may lag behind the one that wrote the view.
    due: BTreeMap<ViewKey, u64>,
    /// Sites that belong to another hub, each logged once.
    disputed: BTreeSet<SiteId>,
    /// The last error that was logged.
    trouble: Option<String>,
}

impl Hub {
    /// A follower of a hub.
    pub(crate) fn new(
        name: HubName,
        config: BusConfig,
        timing: Timing,
        merged: Arc<Merged>,
        metrics: Metrics,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let retry = FullJitter::new(timing.round_every / 5, timing.sign_every / 2);
        Self {
            name,
            config,
            timing,
            merged,
            metrics,
            clock,
            chance: Rng::new(),
            retry,
            line: watch::Sender::new(None),
            due: BTreeMap::new(),
            disputed: BTreeSet::new(),
            trouble: None,
        }
    }

    /// Its connection, followed.
    pub(crate) fn line(&self) -> Line {
        self.line.subscribe()
    }

    /// Follows the hub until `stop`.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        // On the heap: a connection on its way is large.
        let stay = Box::pin(self.stay(&stop));
        stop.run_until_cancelled(stay).await;
    }

    /// Connects, and reconnects where a standing connection gives no answers.
    async fn stay(&mut self, stop: &CancellationToken) {
        loop {
            match Bus::connect(self.config.clone(), stop).await {
                Ok(bus) => {
                    self.line.send_replace(Some(bus.clone()));
                    tokio::select! {
                        () = self.follow(&bus) => {}
                        () = bus.stalled() => {}
                    }
                    self.line.send_replace(None);
                    tracing::warn!(hub = %self.name, "the hub does not answer over this connection; reconnecting");
                }
                Err(error) => self.warn_once("no connection", &chain(&error)),
            }
            self.wait_before_retry().await;
        }
    }

    /// Reads everything, listens for a while, and reads everything again.
    async fn follow(&mut self, bus: &Bus) {
        loop {
            let read = match self.read(bus).await {
                Ok(mut watch) => self.listen(bus, &mut watch).await,
                Err(error) => Err(error),
            };
            if let Err(error) = read {
                self.warn_once(&error.kind(), &chain(&error));
                self.wait_before_retry().await;
            }
        }
    }

    /// Reads all that the hub has, and takes out what it has no more.
    async fn read(&mut self, bus: &Bus) -> Result<ViewWatch, HubError> {
        let (mut watch, mut sites) = (bus.view_watch(">").await?, BTreeSet::new());
        while let Some(batch) = watch.next_present(BATCH_MAX).await? {
            for entry in batch {
                sites.extend(self.note(&entry));
            }
        }
        for key in self.merged.read_merge(|merge| merge.keys_of(&self.name)) {
            match key {
                ViewKey::Site(site) if !sites.contains(&site) => self.apply_site(&site, None),
                ViewKey::Site(_) => {}
                // The rollup says whether there is still any of it.
                key => _ = self.due.insert(key, 0),
            }
        }
        // The current answer holds: a LEDGER created anew has lower sequences than its views had.
        self.due.values_mut().for_each(|wanted| *wanted = 0);
        self.round(bus).await?;
        self.merged.read_whole(&self.name);
        Ok(watch)
    }

    /// Applies changes as they come, until the next full read is due.
    async fn listen(&mut self, bus: &Bus, watch: &mut ViewWatch) -> Result<(), HubError> {
        let (read_at, mut asked_at) = (Instant::now() + self.timing.read_every, Instant::now());
        let mut pause = self.timing.round_every;
        loop {
            let wait = if self.due.is_empty() { self.timing.sign_every } else { pause };
            tokio::select! {
                batch = watch.next_batch(BATCH_MAX) => {
                    for entry in batch? {
                        self.note(&entry);
                    }
                }
                () = sleep_until(asked_at + wait) => {
                    pause = self.timing.round_every;
                    if let Err(error) = self.round(bus).await {
                        // The views go on; only what is due waits.
                        self.warn_once(&error.kind(), &chain(&error));
                        pause = self.retry.next(&mut self.chance).max(self.timing.round_every);
                    }
                    asked_at = Instant::now();
                }
                () = sleep_until(read_at) => return Ok(()),
            }
        }
    }

    /// Applies a bucket entry; for a site's view, the site. A hub's defined views stay with the hub.
    fn note(&mut self, entry: &ViewEntry) -> Option<SiteId> {
        match ViewKey::parse(&entry.key)? {
            ViewKey::Defined(_) => None,
            ViewKey::Site(site) => {
                match entry.value.as_ref().map(|value| site_view(&site, value)).transpose() {
                    Ok(view) => {
                        let there = view.is_some();
                        self.apply_site(&site, view.as_ref());
                        there.then_some(site)
                    }
                    Err(error) => {
                        self.metrics.unreadable.inc();
                        tracing::warn!(hub = %self.name, %site, %error, "cannot read the view of a site; check the version of its rollup");
                        Some(site)
                    }
                }
            }
            key => {
                let read_to = |value: &Bytes| serde_json::from_slice::<ViewIdentity>(value).ok();
                let written = entry.value.as_ref().and_then(read_to);
                self.due.insert(key, written.map_or(0, |view| view.as_of.ledger_seq));
                None
            }
        }
    }

    fn apply_site(&mut self, site: &SiteId, view: Option<&SiteView>) {
        match self.merged.apply_site(&self.name, site, view) {
            Ok(()) => _ = self.disputed.remove(site),
            Err(other) => {
                self.metrics.sites_disputed.inc();
                if self.disputed.insert(site.clone()) {
                    tracing::error!(hub = %self.name, "{other}; its view is that of hub '{}', and devices there count twice", other.hub);
                }
            }
        }
    }

    /// Asks for all due keys and for the fleet. A key whose answer is too old or invalid stays due; the other
    /// keys proceed.
    async fn round(&mut self, bus: &Bus) -> Result<(), HubError> {
        self.due.entry(ViewKey::Fleet).or_insert(0);
        let (mut asked, mut bad) = (std::mem::take(&mut self.due), None);
        let done = self.ask_for_all(bus, &mut asked, &mut bad).await;
        // A key that became due meanwhile asks for a newer position.
        asked.append(&mut self.due);
        self.due = asked;
        done?;
        match bad {
            Some((key, source)) => Err(HubError::Bad { key, source }),
            None => {
                self.record_success();
                Ok(())
            }
        }
    }

    async fn ask_for_all(
        &mut self,
        bus: &Bus,
        asked: &mut BTreeMap<ViewKey, u64>,
        bad: &mut Option<(ViewKey, BadPart)>,
    ) -> Result<(), HubError> {
        let mut late = None;
        while !asked.is_empty() {
            let keys: Vec<ViewKey> = asked.keys().take(PARTS_MAX).cloned().collect();
            let took = self.ask(bus, &keys, 0).await?;
            if took.is_nothing() {
                return Err(HubError::Unanswered(keys.len()));
            }
            let mut settled = took.settled;
            for (key, rows) in took.rest {
                match self.ask_for_the_rest(bus, &key, rows).await {
                    Ok(()) => _ = settled.insert(key),
                    // Only this part is incomplete: the next round asks for it again.
                    Err(error @ (HubError::Unanswered(_) | HubError::Bad { .. })) => {
                        let wanted = asked.remove(&key).unwrap_or_default();
                        self.due.insert(key, wanted);
                        late.get_or_insert(error);
                    }
                    Err(error) => return Err(error),
                }
            }
            for key in settled {
                if let Some(wanted) = asked.remove(&key).filter(|wanted| *wanted > took.read_to) {
                    self.due.insert(key, wanted);
                }
            }
            for (key, why) in took.bad {
                let wanted = asked.remove(&key).unwrap_or_default();
                self.due.insert(key.clone(), wanted);
                bad.get_or_insert((key, why));
            }
        }
        late.map_or(Ok(()), Err)
    }

    /// Asks for the rows of one part that did not fit into a message. If they change meanwhile, it restarts
    /// from the first row, a few times; then the next round does.
    async fn ask_for_the_rest(&self, bus: &Bus, key: &ViewKey, mut rows: u64) -> Result<(), HubError> {
        let mut beginnings = 0;
        while beginnings < BEGINNINGS_MAX {
            let took = self.ask(bus, std::slice::from_ref(key), rows).await?;
            if let Some((key, source)) = took.bad.into_iter().next() {
                return Err(HubError::Bad { key, source });
            }
            if took.settled.contains(key) {
                return Ok(());
            }
            match took.rest.first() {
                Some((_, 0)) => (rows, beginnings) = (0, beginnings + 1),
                Some((_, more)) if *more > rows => rows = *more,
                _ => return Err(HubError::Unanswered(1)),
            }
        }
        Err(HubError::Unanswered(1))
    }

    /// Asks for the parts of some keys and applies them.
    async fn ask(&self, bus: &Bus, keys: &[ViewKey], skip: u64) -> Result<AppliedParts, HubError> {
        let took = self.read_parts(bus, keys, skip).await;
        self.metrics.ask(if took.is_ok() { AskResult::Answered } else { AskResult::Failed });
        took
    }

    async fn read_parts(&self, bus: &Bus, keys: &[ViewKey], skip: u64) -> Result<AppliedParts, HubError> {
        let query = PartsQuery { keys: keys.iter().map(ToString::to_string).collect(), skip };
        let question = serde_json::to_vec(&query).map_err(HubError::Garbled)?;
        let subject = format!("{QUERY_PREFIX}.{PARTS}");
        let answer = bus.request(&subject, question.into(), self.timing.patience).await?;
        let said: AnswerLag = serde_json::from_slice(&answer).unwrap_or_default();
        self.merged.set_lag(&self.name, said.lag());
        Ok(self.merged.apply_parts(&self.name, &parts(&answer)?, Instant::now(), self.clock.now()))
    }

    /// Logs a failure, once for each kind in a row.
    fn warn_once(&mut self, kind: &str, words: &str) {
        if self.trouble.as_deref() != Some(kind) {
            tracing::warn!(hub = %self.name, "{words}; retrying");
            self.trouble = Some(kind.to_owned());
        }
    }

    fn record_success(&mut self) {
        self.retry.reset();
        if self.trouble.take().is_some() {
            tracing::info!(hub = %self.name, "the hub answers");
        }
    }

    async fn wait_before_retry(&mut self) {
        let pause = self.retry.next(&mut self.chance);
        sleep(pause).await;
    }
}

/// Reads the view of a site, which must be of the site that its key names.
fn site_view(site: &SiteId, value: &Bytes) -> Result<SiteView, serde_json::Error> {
    let view: SiteView = serde_json::from_slice(value)?;
    if view.site == *site {
        return Ok(view);
    }
    Err(serde_json::Error::io(std::io::Error::other(format!("it is the view of site '{}'", view.site))))
}

/// Reads an answer.
fn parts(answer: &Bytes) -> Result<PartsAnswer, HubError> {
    serde_json::from_slice(answer).map_err(|error| match serde_json::from_slice::<ErrorReply>(answer) {
        Ok(ErrorReply { error, .. }) => HubError::Refused(error),
        Err(_) => HubError::Garbled(error),
    })
}
