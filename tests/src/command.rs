//! `muster` in this process, what it prints, and a hub that the test plays: a real nats-server, and a service that answers as
//! the test says. What real services answer is [`crate::system`]'s.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::future::Future;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use clap::Parser as _;
use muster_bus::{Bus, Call, EndpointSpec, Fault, ServiceSpec, Serving};
use muster_contract::query::{ErrorBody, ErrorCode};
use muster_ctl::app;
use muster_ctl::config::Cli;
use muster_ctl::terminal::Terminal;
use tokio_util::sync::CancellationToken;

use crate::server::Server;
use crate::wait::{FACT_DEADLINE, until};

/// The endpoint that tells the hub's incidents.
const INCIDENTS: &str = "incidents";
/// Its answer where there are none.
const NO_INCIDENTS: &str = r#"{"asOf":{"ledgerSeq":1,"at":"2026-08-22T12:00:00Z"},"incidents":[]}"#;

/// The output of a command and how it ended.
#[derive(Debug)]
pub struct Said {
    /// Its exit code.
    pub code: u8,
    /// Its standard output.
    pub out: String,
    /// Its standard error.
    pub err: String,
}

/// A writer whose text can be read while it is written. Clones write on the same page.
#[derive(Debug, Clone, Default)]
pub struct Page(Arc<Mutex<Vec<u8>>>);

impl Page {
    /// The text written to it so far.
    ///
    /// # Panics
    ///
    /// If it is no text.
    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    /// The lines, once there are so many.
    ///
    /// # Panics
    ///
    /// If they do not come in time.
    pub async fn lines(&self, count: usize) -> Vec<String> {
        let look = async || self.text().lines().map(str::to_owned).collect::<Vec<_>>();
        until("lines", look, |lines| lines.len() >= count).await
    }
}

impl Write for Page {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs `muster` against a server; its exit code. One that follows something goes on until it is dropped.
pub async fn run(url: &str, words: &[&str], terminal: &mut Terminal) -> u8 {
    let words = ["muster", "--nats-url", url].into_iter().chain(words.iter().copied());
    Box::pin(app::run(Cli::try_parse_from(words), terminal)).await
}

/// Runs `muster` against a server to its end.
pub async fn muster(url: &str, words: &[&str]) -> Said {
    let (out, err) = (Page::default(), Page::default());
    let code = run(url, words, &mut Terminal::of(out.clone(), err.clone())).await;
    Said { code, out: out.text(), err: err.text() }
}

/// A hub that is played: what it is asked and knows no answer to stays without one.
pub struct Hub {
    /// Its server.
    pub server: Server,
    /// A connection of the test's own, with every right.
    pub bus: Bus,
    _playing: Option<Serving>,
}

impl Hub {
    /// One with a server and nobody who answers; it has no streams.
    pub async fn without_services() -> Self {
        let server = Server::start();
        let bus = Bus::connect(server.config("test"), &CancellationToken::new()).await.unwrap();
        Self { server, bus, _playing: None }
    }

    /// The same with somebody who answers on these subjects, each with the name of its endpoint, and tells no incident of
    /// the hub.
    pub async fn play<H, F>(self, subjects: &[(&'static str, &str)], answer: H) -> Self
    where
        H: Fn(Call) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Bytes, Fault>> + Send + 'static,
    {
        let endpoint = |&(name, subject): &(_, &str)| EndpointSpec { name, subject: subject.to_owned() };
        let endpoints =
            subjects.iter().chain(&[(INCIDENTS, "muster.query.incidents")]).map(endpoint).collect();
        let answer = move |call: Call| {
            let other = (call.endpoint != INCIDENTS).then(|| answer(call));
            async move {
                match other {
                    Some(answer) => answer.await,
                    None => Ok(NO_INCIDENTS.into()),
                }
            }
        };
        let spec = ServiceSpec { name: "played", version: "0.1.0", description: "a test", endpoints };
        let serving = self.bus.serve(spec, answer).await.unwrap();
        // Who asks does so over another connection, which may be quicker than this one.
        assert!(self.bus.flush(FACT_DEADLINE).await, "the server hears of the service");
        Self { _playing: Some(serving), ..self }
    }

    /// Runs `muster` against it to its end.
    pub async fn muster(&self, words: &[&str]) -> Said {
        muster(&self.server.url(), words).await
    }
}

/// A refusal as services send it.
pub fn refused(code: ErrorCode, message: &str) -> Fault {
    ErrorBody { code, message: message.to_owned() }.into()
}
