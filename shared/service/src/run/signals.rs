//! The signals that end a process, as values. What they lead to is decided in [`super`].

use std::fmt;
use std::io;

use tokio::signal::unix::{self, SignalKind};

/// A request to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Signal {
    /// SIGTERM: from a supervisor; drain.
    Terminate,
    /// SIGINT: Ctrl-C; drain.
    Interrupt,
    /// SIGQUIT: leave at once, even the first time.
    Quit,
}

/// Listens for every [`Signal`] from the moment it is made.
#[derive(Debug)]
pub(super) struct Signals {
    terminate: unix::Signal,
    interrupt: unix::Signal,
    quit: unix::Signal,
}

impl Signals {
    /// Starts to listen; from now on these signals do not end the process by themselves.
    pub(super) fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: unix::signal(SignalKind::terminate())?,
            interrupt: unix::signal(SignalKind::interrupt())?,
            quit: unix::signal(SignalKind::quit())?,
        })
    }

    /// The next signal.
    pub(super) async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.terminate.recv() => Signal::Terminate,
            _ = self.interrupt.recv() => Signal::Interrupt,
            _ = self.quit.recv() => Signal::Quit,
        }
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Terminate => "SIGTERM",
            Self::Interrupt => "SIGINT",
            Self::Quit => "SIGQUIT",
        })
    }
}
