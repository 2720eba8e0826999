//! `muster top`: the fleet on a screen that follows it, worst first; keys open the page of each row.
//!
//! [`poll`] asks the services, [`sites`] follows the views of sites, [`fleet_screen`] holds their newest answers with the
//! time of each, [`model`] is the state of the screen and reacts to keys, [`view`] is one list or page of it, [`listing`]
//! makes rows of answers, [`draw`] draws them. All but [`poll`], [`sites`], the sending of a decision and this file are pure.
//! Every frame marks answers that may be out of date. It changes something at the hub only by a [decision] about a rollout
//! that the person confirms.

pub mod decision;
pub mod draw;
pub mod fleet_screen;
pub mod listing;
pub mod model;
mod poll;
mod sites;
mod spans;
pub mod view;

use std::io::{self, Stdout};
use std::sync::Arc;
use std::time::Duration;

use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{MissedTickBehavior, interval};

use self::model::{Model, Update};
use crate::error::CtlError;
use crate::session::Session;

/// Time between two frames without a key or an answer: ages count on.
const REDRAW: Duration = Duration::from_secs(1);
/// Time between two checks whether the screen is gone.
const KEY_WAIT: Duration = Duration::from_millis(100);
/// Most keys, or answers, that wait for the screen.
const WAITING: usize = 16;

/// Shows the fleet until `q`, Ctrl-C, or the end of the terminal.
///
/// # Errors
/// Standard output is no terminal, or cannot be written.
pub async fn run(session: &mut Session<'_>) -> Result<(), CtlError> {
    if !session.terminal.is_interactive() {
        let words = "muster top needs a terminal; `muster fleet` and `muster status` print the same once";
        return Err(CtlError::Usage(words.to_owned()));
    }
    let mut model = Model::new(session.hub.address().to_owned(), session.terminal.has_colour());
    let (sender, mut updates) = mpsc::channel(WAITING);
    let wanted = watch::Sender::new(None);
    let mut tasks = JoinSet::new();
    tasks.spawn(poll::rounds(session.hub.clone(), session.clock.clone(), sender.clone()));
    tasks.spawn(sites::follow(session.hub.clone(), session.clock.clone(), sender.clone()));
    tasks.spawn(poll::details(
        session.hub.clone(),
        session.clock.clone(),
        wanted.subscribe(),
        sender.clone(),
    ));
    let mut events = events();
    let mut link = session.hub.bus().link();
    let mut ticks = interval(REDRAW);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut terminated = signal(SignalKind::terminate())?;
    let clock = Arc::clone(&session.clock);
    let mut screen = RawScreen::enter()?;
    while !model.is_over() {
        let now = clock.now();
        screen.terminal.draw(|frame| draw::draw(frame, &mut model, now))?;
        tokio::select! {
            event = events.recv() => match event {
                Some(Event::Key(key)) if key.kind != KeyEventKind::Release => model.press(key, clock.now()),
                Some(_) => {}
                None => break,
            },
            Some(update) = updates.recv() => model.apply(update),
            Ok(()) = link.changed() => model.fleet_screen.set_link(link.borrow_and_update().is_up(), clock.now()),
            _ = ticks.tick() => {}
            _ = terminated.recv() => break,
        }
        if let Some(question) = model.take_confirmed() {
            let (hub, sender, now) = (session.hub.clone(), sender.clone(), clock.now());
            tasks.spawn(async move {
                let outcome = decision::send(&hub, &question, now).await;
                // Fails if the person has ended the screen.
                let _ = sender.send(Update::Outcome(outcome)).await;
            });
        }
        let target = model.wanted();
        wanted.send_if_modified(|held| {
            let is_new = *held != target;
            *held = target;
            is_new
        });
    }
    Ok(())
}

/// Keys and changes of the size, read on a thread that may block. It ends when the terminal is gone, or nobody waits.
fn events() -> mpsc::Receiver<Event> {
    let (sender, events) = mpsc::channel(WAITING);
    spawn_blocking(move || {
        while !sender.is_closed() {
            let event = match event::poll(KEY_WAIT) {
                Ok(true) => event::read(),
                Ok(false) => continue,
                Err(error) => Err(error),
            };
            let Ok(event) = event else { return };
            if sender.blocking_send(event).is_err() {
                return;
            }
        }
    });
    events
}

/// The terminal while this program has all of it; given back as it was.
struct RawScreen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
}

impl RawScreen {
    fn enter() -> io::Result<Self> {
        enable_raw_mode()?;
        // From here on the terminal is given back, whatever fails.
        let entered = execute!(io::stdout(), EnterAlternateScreen);
        let terminal = entered.and_then(|()| Terminal::new(CrosstermBackend::new(io::stdout())));
        terminal.map(|terminal| Self { terminal }).inspect_err(|_| leave())
    }
}

impl Drop for RawScreen {
    fn drop(&mut self) {
        leave();
    }
}

/// Gives the terminal back. One that is gone is no failure.
fn leave() {
    let _ = disable_raw_mode();
    let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
}
