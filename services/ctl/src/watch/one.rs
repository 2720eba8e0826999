//! `muster watch DEPLOYMENT`: one deployment as it changes, by notices: counts, changes of the verdict, and the devices
//! that changed. It ends when the awaited condition holds, or the time is over.

use std::time::Duration;

use muster_bus::Link;
use muster_contract::DeploymentId;
use muster_contract::notify::{Subscription, TellOn};
use muster_contract::query::ErrorCode;
use tokio::sync::watch;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, timeout};

use super::REDRAW;
use super::gate::Goal;
use super::hub_check::HubCheck;
use super::screen::WatchScreen;
use super::silence::Silence;
use crate::ask::AskError;
use crate::config::WatchArgs;
use crate::error::CtlError;
use crate::names::ShownNames;
use crate::notices::{Notices, Read, is_last};
use crate::session::Session;

/// Least time between two notices: what a person can follow.
const WINDOW_MS: u64 = 500;
/// How long a watch without a name is kept after its program has gone.
const LEASE_SECONDS: u64 = 60;
/// How long the end by Ctrl-C may wait for the confirmation of what was shown.
const LAST_CONFIRMATION: Duration = Duration::from_secs(2);

/// Follows a deployment. False if it ended with a verdict that counts as failed, or no notice follows.
///
/// # Errors
/// When nobody answers, the subscription is refused, or the output cannot be written.
pub(super) async fn run(
    session: &mut Session<'_>,
    deployment: DeploymentId,
    args: &WatchArgs,
) -> Result<bool, CtlError> {
    let (mut notices, is_there) = subscribe(session, &deployment, args).await?;
    let mut goal =
        Goal::start(&session.hub, &deployment, args.until, args.fail_on.clone(), args.commit.as_ref());
    if let Some(words) = goal.words() {
        session.terminal.print_note(&words);
    }
    let over = args.within.map(|within| Instant::now() + within);
    let silence = Silence::new(session.hub.address().to_owned());
    let mut hub = HubCheck::new(deployment.clone());
    let names = ShownNames::of(session, [&deployment]).await;
    let mut screen =
        WatchScreen::new(names.shown(&deployment).clone(), is_there && !notices.is_told(), silence);
    if let Some(known) = notices.known().await? {
        screen.know(&known);
        if goal.is_met(screen.verdict, screen.as_of) && hub.vouches(session, screen.verdict).await {
            // The condition holds already, and its state was shown before.
            screen.print_already_reached(session, known.as_of);
            return Ok(!goal.is_failure(screen.verdict));
        }
    }
    let mut shown = (&mut screen, &mut hub);
    let end = follow(session, &mut notices, &mut shown, &mut goal, over, args.name.is_some()).await;
    if args.name.is_none() {
        notices.close().await;
    }
    answered(end, &goal, &screen)
}

/// The end of a watch. One that waits for a verdict has it or not, also where its reader has gone.
fn answered(end: Result<bool, CtlError>, goal: &Goal, screen: &WatchScreen) -> Result<bool, CtlError> {
    match end {
        Err(error) if goal.is_any() && error.is_reader_gone() => {
            Ok(goal.is_met(screen.verdict, screen.as_of) && !goal.is_failure(screen.verdict))
        }
        end => end,
    }
}

/// Subscribes; whether the deployment is there. One that is not there yet is said to be missing, and waited for.
async fn subscribe(
    session: &mut Session<'_>,
    deployment: &DeploymentId,
    args: &WatchArgs,
) -> Result<(Notices, bool), CtlError> {
    let mut subscription = Subscription {
        id: Some(deployment.clone()),
        on: TellOn::Change,
        window_ms: WINDOW_MS,
        ..Subscription::named(args.name.clone().map_or_else(own_name, Ok)?)
    };
    if args.name.is_none() {
        subscription.lease_seconds = LEASE_SECONDS;
    }
    match Notices::open(&session.hub, subscription.clone()).await {
        Err(CtlError::Ask(AskError::Refused(body))) if body.code == ErrorCode::NotFound => {
            session.terminal.print_note(&format!("muster: {}; waiting for it\n", body.message));
            subscription.wait_for = true;
            Ok((Notices::open(&session.hub, subscription).await?, false))
        }
        opened => Ok((opened?, true)),
    }
}

/// A name that no other watch has.
fn own_name() -> Result<muster_contract::SubscriptionName, CtlError> {
    let name = format!("watch-{:016x}", fastrand::u64(..));
    name.parse().map_err(|error: muster_contract::LabelError| CtlError::Name(error.to_string()))
}

async fn follow(
    session: &mut Session<'_>,
    notices: &mut Notices,
    (screen, hub): &mut (&mut WatchScreen, &mut HubCheck),
    goal: &mut Goal,
    over: Option<Instant>,
    is_named: bool,
) -> Result<bool, CtlError> {
    let mut meanwhile = Meanwhile::new(session, notices);
    let over = async {
        match over {
            Some(over) => tokio::time::sleep_until(over).await,
            None => std::future::pending().await,
        }
    };
    // One for the whole time: a Ctrl-C between two notices must not be lost.
    let interrupted = tokio::signal::ctrl_c();
    tokio::pin!(over, interrupted);
    let has_ended = loop {
        tokio::select! {
            read = meanwhile.until(notices.next(), session, screen) => {
                let read = read?;
                let is_listed = is_named
                    && read.is_after_a_gap
                    && screen.show_missed(session, notices.missed(&read.notice).await)?;
                screen.show(session, &read, is_listed)?;
                let is_last = is_last(&read.notice);
                let is_met = goal.is_met(screen.verdict, screen.as_of);
                if is_last || (is_met && hub.vouches(session, screen.verdict).await) {
                    break is_last;
                }
                screen.is_of_before = false;
                notices.confirm_soon();
            }
            news = goal.next() => if screen.learn(session, goal, news)? {
                break false;
            },
            () = hub.next_check(), if goal.is_met(screen.verdict, screen.as_of) => {
                if hub.vouches(session, screen.verdict).await {
                    break false;
                }
            }
            () = &mut over => {
                if goal.is_any() {
                    return Err(CtlError::TimeOver(goal.over(screen.verdict)));
                }
                session.terminal.print_note(&format!("muster: {}\n", goal.over(screen.verdict)));
                return Ok(true);
            }
            _ = &mut interrupted => {
                // A named watch that comes back goes on after what was shown.
                _ = timeout(LAST_CONFIRMATION, notices.confirm()).await;
                return Ok(!goal.is_any());
            }
        }
    };
    tokio::select! {
        confirmed = notices.confirm() => confirmed?,
        () = &mut over => {}
        _ = &mut interrupted => {}
    }
    if !has_ended {
        screen.print_end(session, goal);
    }
    Ok(!has_ended && !goal.is_failure(screen.verdict))
}

/// Events until the next notice.
struct Meanwhile {
    link: watch::Receiver<Link>,
    answered: watch::Receiver<bool>,
    ticks: Interval,
}

impl Meanwhile {
    fn new(session: &Session<'_>, notices: &Notices) -> Self {
        let mut ticks = interval_at(Instant::now() + REDRAW, REDRAW);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { link: session.hub.bus().link(), answered: notices.answered(), ticks }
    }

    /// The next notice. It is waited for without a break over all that happens meanwhile: what it asks the hub may take longer
    /// to answer than the next screen.
    async fn until(
        &mut self,
        next: impl Future<Output = Result<Read, CtlError>>,
        session: &mut Session<'_>,
        screen: &mut WatchScreen,
    ) -> Result<Read, CtlError> {
        tokio::pin!(next);
        loop {
            tokio::select! {
                read = &mut next => return read,
                _ = self.ticks.tick() => {
                    let is_answered = *self.answered.borrow();
                    screen.silence.tick(session, is_answered);
                    screen.redraw(session)?;
                }
                Ok(()) = self.link.changed() => {
                    screen.show_connection(session, self.link.borrow_and_update().is_up())?;
                }
            }
        }
    }
}

const _: () = assert!(Duration::from_secs(LEASE_SECONDS).as_millis() > 4 * WINDOW_MS as u128);

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use muster_contract::view::Verdict;

    use super::*;

    #[test]
    fn a_reader_that_went_away_before_the_verdict_came_has_no_yes() {
        let gone = || Err(CtlError::Output(ErrorKind::BrokenPipe.into()));
        let wanted = Some(Verdict::Converged);
        let goal = Goal::until;
        let shown = |verdict| {
            let mut screen = WatchScreen::new("web".parse().unwrap(), false, Silence::new("here".to_owned()));
            screen.verdict = verdict;
            screen
        };
        assert!(matches!(answered(gone(), &goal(wanted), &shown(Some(Verdict::Failing))), Ok(false)));
        assert!(matches!(answered(gone(), &goal(wanted), &shown(None)), Ok(false)));
        assert!(matches!(answered(gone(), &goal(wanted), &shown(wanted)), Ok(true)));
        assert!(answered(gone(), &goal(None), &shown(None)).is_err(), "nothing was asked");
        let full = Err(CtlError::Output(ErrorKind::StorageFull.into()));
        assert!(answered(full, &goal(wanted), &shown(wanted)).is_err());
    }
}
