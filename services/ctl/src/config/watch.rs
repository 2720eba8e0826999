//! `muster watch`: what is followed, and until when.

use std::time::Duration;

use clap::{Args, Subcommand};
use muster_contract::view::Verdict;
use muster_contract::{CommitName, DeploymentId, SubscriptionName};
use muster_service::config::Problems;

use super::status::verdict_parser;

pub(super) const WATCH_EXAMPLES: &str = "\
The hub sends the changes of one deployment and its devices; changes within half a second come together.
A watch with a name goes on where it was, also after this program or the hub was away: nothing is shown twice, and what is
left out was replaced by something newer. The hub keeps it for an hour after the watch has ended; a watch of another deployment
needs another name.
A commit goes out device by device, so a verdict right after a push may be of the state before it. With --commit nothing
counts until LEDGER holds every document of that commit.

Exit codes: 0 reached; 1 a verdict of --fail-on, or the commit is rejected or superseded; 2 wrong usage, or nobody answers;
3 the time is over.

Examples:
  muster watch                           every deployment, redrawn as it changes
  muster watch web                       one deployment, and the devices that change
  muster watch web | cat                 a line for each change
  muster watch web --until converged --within 10m
                                         wait for a rollout: exit code 0 when it is there, 3 when the time is over
  muster watch web --until converged --fail-on failing,overdue --within 10m
                                         the same, and exit code 1 as soon as a device has failed or is late
  muster watch web --until converged --commit $(git rev-parse HEAD) --within 10m
                                         the same after a push: only what holds with that commit counts
  muster watch approvals                 the waves of rollouts and operations of plans that wait for an approval
  muster watch web --name night-shift    go on where the watch of that name was
  muster watch web --format json         one notice a line
  muster watch --format json             one view a line; a view that is gone is {\"key\":…,\"gone\":true}";

/// Longest time a watch may be given.
const WITHIN_MAX: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// Shortest.
const WITHIN_MIN: Duration = Duration::from_millis(1);

/// The other things that `muster watch` follows.
#[derive(Debug, Subcommand)]
pub enum WatchAbout {
    /// Waves of rollouts and operations of plans that wait for an approval, each once, and what becomes of it
    ///
    /// It begins with everything that waits, so nothing is missed while it does not run. While a service does not answer, it
    /// tries on; without a planner it follows waves alone, and says so. It follows at most 1,000 operations, the first by plan
    /// and instance, and says if there are more. In JSON `kind` is wave or operation.
    Approvals {
        /// End after this time, as in 90s or 10m
        #[arg(long, value_name = "DURATION", value_parser = duration)]
        within: Option<Duration>,
    },
}

/// `muster watch`
#[derive(Debug, Default, Args)]
pub struct WatchArgs {
    /// Something else than deployments.
    #[command(subcommand)]
    pub about: Option<WatchAbout>,
    /// The deployment; all of them if left out; one that is called `approvals` after `--`
    pub deployment: Option<DeploymentId>,
    /// End with exit code 0 when this is its verdict; one that holds already ends it at once, and standard error says
    /// as of which number of LEDGER: right after a push that may be the state before it, unless --commit says which
    #[arg(long, value_name = "VERDICT", requires = "deployment", value_parser = verdict_parser())]
    pub until: Option<Verdict>,
    /// End with exit code 1 when its verdict is one of these, such as failing,overdue
    #[arg(long, value_name = "VERDICTS", requires = "until", value_delimiter = ',', value_parser = verdict_parser())]
    pub fail_on: Vec<Verdict>,
    /// Count a verdict only as of when LEDGER holds every document of this commit: its id, or the first 7 digits of it or
    /// more
    #[arg(long, value_name = "REVISION", requires = "until")]
    pub commit: Option<CommitName>,
    /// End after this time, with exit code 3 where something was waited for; as in 90s or 10m
    #[arg(long, value_name = "DURATION", requires = "deployment", value_parser = duration)]
    pub within: Option<Duration>,
    /// Go on where the watch of this name was
    #[arg(long, requires = "deployment")]
    pub name: Option<SubscriptionName>,
}

impl WatchArgs {
    /// Checks that the flags do not contradict each other.
    ///
    /// # Errors
    /// `--until` and `--fail-on` name the same verdict.
    pub fn check(&self) -> Result<(), String> {
        match self.until.filter(|until| self.fail_on.contains(until)) {
            Some(both) => Err(format!("--until {0} and --fail-on {0} contradict each other", both.as_str())),
            None => Ok(()),
        }
    }
}

pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let mut problems = Problems::default();
    let duration = problems.duration("--within", text, WITHIN_MIN..=WITHIN_MAX);
    duration.ok_or_else(|| format!("must be a duration such as 90s or 10m, not '{text}'"))
}
