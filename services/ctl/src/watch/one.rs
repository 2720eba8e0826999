//! `muster watch DEPLOYMENT`: one deployment as it changes, by notices: counts, changes of the verdict, and the devices
//! that changed. It ends when what was waited for is there, or the time is over.

use std::collections::VecDeque;
use std::time::Duration;

use muster_bus::Link;
use muster_contract::DeploymentId;
use muster_contract::notify::{Notice, NoticeState, Subscription, TellOn};
use muster_contract::query::ErrorCode;
use muster_contract::view::Verdict;
use tokio::sync::watch;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::silence::Silence;
use super::{REDRAW, is_redrawn};
use crate::ask::AskError;
use crate::config::{Format, WatchArgs};
use crate::error::CtlError;
use crate::notices::{Notices, Read, is_last};
use crate::render;
use crate::session::Session;

/// Least time between two notices: what a person can follow.
const WINDOW_MS: u64 = 500;
/// How long a watch without a name is kept after its program has gone.
const LEASE_SECONDS: u64 = 60;
/// Lines of changes that stand under a picture.
const RECENT_MAX: usize = 12;

/// Follows a deployment. True unless what was waited for did not come.
///
/// # Errors
/// When nobody answers, the subscription is refused, or the output cannot be written.
pub(super) async fn run(
    session: &mut Session<'_>,
    deployment: DeploymentId,
    args: &WatchArgs,
) -> Result<bool, CtlError> {
    let (mut notices, is_there) = subscribe(session, &deployment, args).await?;
    let wanted = args.until.map(Verdict::from);
    let over = args.within.map(|within| Instant::now() + within);
    let silence = Silence::new(session.hub.place().to_owned());
    let mut picture = Picture::new(deployment, is_there && !notices.is_told(), silence);
    if let Some(known) = notices.known().await? {
        picture.know(&known);
        if wanted.is_some() && picture.verdict == wanted {
            // What is waited for is there, and was shown before.
            picture.tell_of_before(session, &known);
            return Ok(true);
        }
    }
    let end = follow(session, &mut notices, &mut picture, wanted, over).await;
    if args.name.is_none() {
        notices.close().await;
    }
    answered(end, wanted, picture.verdict)
}

/// The end of a watch. One that waits for a verdict has it or not, also where its reader has gone.
fn answered(
    end: Result<bool, CtlError>,
    wanted: Option<Verdict>,
    verdict: Option<Verdict>,
) -> Result<bool, CtlError> {
    match end {
        Err(error) if wanted.is_some() && error.is_reader_gone() => Ok(verdict == wanted),
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
            session.terminal.say(&format!("muster: {}; waiting for it\n", body.message));
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
    picture: &mut Picture,
    wanted: Option<Verdict>,
    over: Option<Instant>,
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
    loop {
        tokio::select! {
            read = meanwhile.until(notices.next(), session, picture) => {
                let read = read?;
                picture.show(session, &read)?;
                let is_there = wanted.is_some() && picture.verdict == wanted;
                if !is_last(&read.notice) && !is_there {
                    picture.is_of_before = false;
                    notices.confirm_soon();
                    continue;
                }
                tokio::select! {
                    confirmed = notices.confirm() => confirmed?,
                    () = &mut over => {}
                    _ = &mut interrupted => {}
                }
                if is_last(&read.notice) {
                    return Ok(false);
                }
                if picture.is_of_before {
                    picture.tell_of_before(session, &read.notice);
                }
                return Ok(true);
            }
            () = &mut over => {
                let words = wanted.map_or("the time", Verdict::as_str);
                session.terminal.say(&render::notice::over(words, picture.verdict));
                return Ok(wanted.is_none());
            }
            _ = &mut interrupted => return Ok(wanted.is_none()),
        }
    }
}

/// What happens while the next notice is waited for.
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
    /// to answer than the next picture.
    async fn until(
        &mut self,
        next: impl Future<Output = Result<Read, CtlError>>,
        session: &mut Session<'_>,
        picture: &mut Picture,
    ) -> Result<Read, CtlError> {
        tokio::pin!(next);
        loop {
            tokio::select! {
                read = &mut next => return read,
                _ = self.ticks.tick() => {
                    let is_answered = *self.answered.borrow();
                    picture.silence.tick(session, is_answered);
                    picture.redraw(session)?;
                }
                Ok(()) = self.link.changed() => {
                    picture.tell(session, self.link.borrow_and_update().is_up())?;
                }
            }
        }
    }
}

/// What is known, and what of it stands on the screen.
struct Picture {
    deployment: DeploymentId,
    /// The last verdict; none while it is not there.
    verdict: Option<Verdict>,
    /// The last state.
    state: Option<NoticeState>,
    /// The last lines about changes, the newest last.
    recent: VecDeque<String>,
    drawn: bool,
    silence: Silence,
    /// What comes next is how it was when this began.
    is_of_before: bool,
}

impl Picture {
    const fn new(deployment: DeploymentId, is_of_before: bool, silence: Silence) -> Self {
        let recent = VecDeque::new();
        Self { deployment, verdict: None, state: None, recent, drawn: false, silence, is_of_before }
    }

    /// Says that nothing was waited for: whoever has just published something sees here whether it was read by then.
    fn tell_of_before(&self, session: &mut Session<'_>, notice: &Notice) {
        session.terminal.say(&render::notice::already(&self.deployment, self.verdict, notice.as_of));
    }

    /// Takes in what an earlier run has shown.
    fn know(&mut self, notice: &Notice) {
        self.verdict = notice.state.as_ref().and_then(|state| state.verdict);
        self.state.clone_from(&notice.state);
    }

    fn show(&mut self, session: &mut Session<'_>, read: &Read) -> Result<(), CtlError> {
        let Notice { state, .. } = &read.notice;
        let verdict = state.as_ref().and_then(|state| state.verdict);
        let changes = render::notice::changes(&read.notice, self.verdict, verdict);
        (self.verdict, self.state) = (verdict, state.clone());
        if is_redrawn(session) {
            self.recent.extend(changes);
            self.recent.drain(..self.recent.len().saturating_sub(RECENT_MAX));
            return self.redraw(session);
        }
        match session.format {
            Format::Json => session.terminal.print_json(&format!("{}\n", read.value))?,
            Format::Table => {
                let view = state.as_ref().and_then(|state| state.view.as_deref());
                let first = render::notice::line(&self.deployment, &read.notice, view, session.clock.now());
                session.terminal.print(&(first + &changes.concat()))?;
            }
        }
        Ok(())
    }

    /// Takes in whether there is a connection.
    fn tell(&mut self, session: &mut Session<'_>, is_up: bool) -> Result<(), CtlError> {
        let words = self.silence.tell(is_up);
        if is_redrawn(session) {
            return self.redraw(session);
        }
        session.terminal.say(words);
        Ok(())
    }

    fn redraw(&mut self, session: &mut Session<'_>) -> Result<(), CtlError> {
        if !is_redrawn(session) {
            return Ok(());
        }
        let view = self.state.as_ref().and_then(|state| state.view.as_deref());
        let shown = match view {
            Some(view) => render::deployment::view(view, session.frame()),
            None => render::watch::nothing(Some(&self.deployment)),
        };
        let lost = self.silence.above();
        let recent: String = self.recent.iter().map(String::as_str).collect();
        let gap = if recent.is_empty() { "" } else { "\n" };
        if !self.drawn {
            session.terminal.clear()?;
            self.drawn = true;
        }
        Ok(session.terminal.redraw(&format!("{lost}{shown}{gap}{recent}"))?)
    }
}

const _: () = assert!(Duration::from_secs(LEASE_SECONDS).as_millis() > 4 * WINDOW_MS as u128);

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;

    #[test]
    fn a_reader_that_went_away_before_the_verdict_came_has_no_yes() {
        let gone = || Err(CtlError::Output(ErrorKind::BrokenPipe.into()));
        let wanted = Some(Verdict::Converged);
        assert!(matches!(answered(gone(), wanted, Some(Verdict::Failing)), Ok(false)));
        assert!(matches!(answered(gone(), wanted, None), Ok(false)));
        assert!(matches!(answered(gone(), wanted, wanted), Ok(true)));
        assert!(answered(gone(), None, None).is_err(), "nothing was asked");
        let full = Err(CtlError::Output(ErrorKind::StorageFull.into()));
        assert!(answered(full, wanted, wanted).is_err());
    }
}
