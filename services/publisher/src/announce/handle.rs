//! The handle of the announcer for other tasks: sends it commands, and returns their answers.

use std::collections::BTreeSet;
use std::time::Duration;

use muster_contract::query::{ErrorBody, PublishAnswer};
use muster_contract::rollout::{DecideAnswer, ReleaseAnswer, TargetsAnswer, TargetsQuery};
use muster_contract::{DeviceKey, Generation};
use muster_service::supervisor::DRAIN_DEADLINE;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

use crate::device_table::LedgerCopy;
use crate::foreign::StoredDocument;
use crate::problems::Problems;
use crate::requests::{Decide, Release, Request, not_ready};
use crate::source::Fleet;

/// Commands that may wait while a round is under way.
const COMMANDS_WAITING: usize = 64;
/// How long a change waits until the announcer has read the published states: less than `muster` waits for an answer (5 s
/// by default).
const KNOWN_WITHIN: Duration = Duration::from_secs(3);

// A change that waits when the process stops is answered before the drain ends.
const _: () = assert!(2 * KNOWN_WITHIN.as_secs() < DRAIN_DEADLINE.as_secs());

/// A command to the announcer.
pub(super) enum Command {
    /// Accept a commit. The answer says whether it is accepted; publishing follows.
    Commit(Fleet, oneshot::Sender<Result<(), Problems>>),
    /// Accept an earlier commit after a start with a bad one; the set has its known ancestors. The answer says whether it is accepted. A
    /// rollout may be of a newer commit, so it ends none.
    Resume(Fleet, BTreeSet<String>, oneshot::Sender<Result<(), Problems>>),
    /// Return the commits of other publishers that are unknown here.
    Unseen(oneshot::Sender<BTreeSet<String>>),
    /// Note that this commit is newer than those.
    Follows(String, BTreeSet<String>),
    /// Return the last published commit.
    LastPublished(oneshot::Sender<Option<String>>),
    /// Compare the generations of devices with the published ones.
    Heard(Vec<(DeviceKey, Generation)>),
    /// Verify stored documents; true if DOWNLINK is another stream than before.
    Verify(Vec<StoredDocument>, bool),
    /// Restore documents of devices that are not among these, which are all that DOWNLINK has documents of.
    Listed(BTreeSet<DeviceKey>),
    /// Check that the recently stored documents of these devices still exist.
    RecentlyStored(BTreeSet<DeviceKey>),
    /// Note these copies in LEDGER.
    InLedger(Vec<LedgerCopy>),
    /// Discard the noted copies: LEDGER is read from its beginning.
    LedgerRestarted,
    /// Note that this process re-asserted a device's document: its sequence before and now.
    Renewed(DeviceKey, u64, u64),
    /// Release a content to devices.
    Release(Release, oneshot::Sender<Result<ReleaseAnswer, ErrorBody>>),
    /// Return a page of the targets of a rollout.
    Targets(TargetsQuery, oneshot::Sender<Result<TargetsAnswer, ErrorBody>>),
    /// Record a decision about a rollout.
    Decide(Decide, oneshot::Sender<Result<DecideAnswer, ErrorBody>>),
    /// Make a change.
    Change(Request, oneshot::Sender<Result<PublishAnswer, ErrorBody>>),
}

/// The handle of the announcer. Clones are handles of the same one.
#[derive(Debug, Clone)]
pub struct AnnouncerHandle {
    commands: mpsc::Sender<Command>,
    /// Whether the announcer has read the published states.
    knows: watch::Receiver<bool>,
}

impl AnnouncerHandle {
    /// A handle, the commands that it sends, and the flag that the announcer sets once it has read the published states.
    pub(super) fn new() -> (Self, mpsc::Receiver<Command>, watch::Sender<bool>) {
        let ((commands, waiting), (known, knows)) = (mpsc::channel(COMMANDS_WAITING), watch::channel(false));
        (Self { commands, knows }, waiting, known)
    }

    /// Waits until the announcer has read the published states, so that a later poll of Git is at least as new.
    pub async fn known(&self) {
        // An error means that the process is stopping.
        let _ = self.knows.clone().wait_for(|knows| *knows).await;
    }

    /// Passes on a commit. Waits while the announcer is busy, but not until the commit is published.
    ///
    /// # Errors
    /// The commit is refused: with the requested deployments, a device would exceed a limit.
    pub async fn commit(&self, fleet: Fleet) -> Result<(), Problems> {
        self.send_commit(|answer| Command::Commit(fleet, answer)).await
    }

    /// The commits of other publishers that are unknown here.
    pub async fn unseen(&self) -> BTreeSet<String> {
        let (answer, answered) = oneshot::channel();
        // Without an announcer the process is stopping.
        let _ = self.commands.send(Command::Unseen(answer)).await;
        answered.await.unwrap_or_default()
    }

    /// Notes that the last accepted commit is newer than all of `older`.
    pub async fn follows(&self, revision: String, older: BTreeSet<String>) {
        // Without an announcer the process is stopping.
        let _ = self.commands.send(Command::Follows(revision, older)).await;
    }

    /// Passes on an earlier commit after a start with a bad one. `older` has its known ancestors.
    ///
    /// # Errors
    /// The commit is refused, or something newer was published since.
    pub async fn resume(&self, fleet: Fleet, older: BTreeSet<String>) -> Result<(), Problems> {
        self.send_commit(|answer| Command::Resume(fleet, older, answer)).await
    }

    async fn send_commit(
        &self,
        command: impl FnOnce(oneshot::Sender<Result<(), Problems>>) -> Command,
    ) -> Result<(), Problems> {
        let (answer, answered) = oneshot::channel();
        // Without an announcer the process is stopping; the next one starts with this commit.
        if self.commands.send(command(answer)).await.is_err() {
            return Ok(());
        }
        answered.await.unwrap_or(Ok(()))
    }

    /// The commit of the newest document from Git, if there is one: what may be [resumed](Self::resume).
    pub async fn last_published(&self) -> Option<String> {
        let (answer, answered) = oneshot::channel();
        self.commands.send(Command::LastPublished(answer)).await.ok()?;
        answered.await.ok()?
    }

    /// Passes on the generations of devices; false if the announcer is gone.
    pub(crate) async fn report_generations(&self, beats: Vec<(DeviceKey, Generation)>) -> bool {
        self.commands.send(Command::Heard(beats)).await.is_ok()
    }

    /// Passes on stored documents for verification, with `is_new` if DOWNLINK is another stream than before; false if the
    /// announcer is gone.
    pub async fn verify(&self, documents: Vec<StoredDocument>, is_new: bool) -> bool {
        self.commands.send(Command::Verify(documents, is_new)).await.is_ok()
    }

    /// Passes on the devices that DOWNLINK has documents of; false if the announcer is gone.
    pub async fn listed(&self, devices: BTreeSet<DeviceKey>) -> bool {
        self.commands.send(Command::Listed(devices)).await.is_ok()
    }

    /// Passes on devices whose recently stored documents must be checked; false if the announcer is gone.
    pub(crate) async fn recently_stored(&self, devices: BTreeSet<DeviceKey>) -> bool {
        self.commands.send(Command::RecentlyStored(devices)).await.is_ok()
    }

    /// Passes on copies in LEDGER; false if the announcer is gone.
    pub async fn in_ledger(&self, copies: Vec<LedgerCopy>) -> bool {
        self.commands.send(Command::InLedger(copies)).await.is_ok()
    }

    /// Notes that LEDGER is read from its beginning; false if the announcer is gone.
    pub(crate) async fn ledger_restarted(&self) -> bool {
        self.commands.send(Command::LedgerRestarted).await.is_ok()
    }

    /// Notes that a device's document was re-asserted, with its sequence before and now.
    pub async fn renewed(&self, key: DeviceKey, before: u64, now: u64) {
        // Without an announcer the process is stopping; the next one reads the sequence.
        let _ = self.commands.send(Command::Renewed(key, before, now)).await;
    }

    /// Makes a change.
    ///
    /// # Errors
    /// The change was not made, for the reason that the error names.
    pub async fn change(&self, request: Request) -> Result<PublishAnswer, ErrorBody> {
        self.ask(|answer| Command::Change(request, answer)).await
    }

    /// Releases a content to devices.
    ///
    /// # Errors
    /// The documents of the devices cannot be read, so nothing, or not all, was released.
    pub async fn release(&self, release: Release) -> Result<ReleaseAnswer, ErrorBody> {
        self.ask(|answer| Command::Release(release, answer)).await
    }

    /// Records a decision about a rollout.
    ///
    /// # Errors
    /// Git does not want that content, or the decision is not possible in the state of the rollout.
    pub async fn decide(&self, decide: Decide) -> Result<DecideAnswer, ErrorBody> {
        self.ask(|answer| Command::Decide(decide, answer)).await
    }

    /// A page of the targets of a deployment.
    ///
    /// # Errors
    /// The publisher has read no good commit since its start, or `limit` or `after` is invalid.
    pub async fn targets(&self, query: TargetsQuery) -> Result<TargetsAnswer, ErrorBody> {
        self.ask(|answer| Command::Targets(query, answer)).await
    }

    /// Sends a command once the published states are known, and waits for its answer.
    async fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<Result<T, ErrorBody>>) -> Command,
    ) -> Result<T, ErrorBody> {
        let leaving = || not_ready("the publisher is stopping: ask again");
        let mut knows = self.knows.clone();
        if timeout(KNOWN_WITHIN, knows.wait_for(|knows| *knows)).await.is_err() {
            return Err(not_ready(
                "the publisher cannot read the published states (DOWNLINK and LEDGER) yet; its log says why. Ask again",
            ));
        }
        let (answer, answered) = oneshot::channel();
        self.commands.send(command(answer)).await.map_err(|_| leaving())?;
        answered.await.unwrap_or_else(|_| Err(leaving()))
    }
}
