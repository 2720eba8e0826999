//! `muster verify` against a rollup that the test plays on a real nats-server: what the exit code says. What a real one finds
//! is in `rollup/proof`.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use clap::Parser as _;
use muster_bus::{Bus, EndpointSpec, Fault, ServiceSpec, Serving};
use muster_contract::query::{ErrorBody, ErrorCode, ErrorReply};
use muster_ctl::app;
use muster_ctl::config::Cli;
use muster_ctl::terminal::Terminal;
use muster_tests::schemas;
use muster_tests::server::Server;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

/// What a command printed and how it ended.
#[derive(Debug)]
struct Said {
    code: u8,
    out: String,
    err: String,
}

/// A writer whose text is read at the end.
#[derive(Clone, Default)]
struct Page(Arc<Mutex<Vec<u8>>>);

struct Hub {
    server: Server,
    bus: Bus,
    _serving: Option<Serving>,
}

#[tokio::test]
async fn the_exit_code_of_verify_is_its_answer_and_no_answer_is_not_a_no() {
    let same = Hub::start(Ok(example("VerifyAnswer.same"))).await;
    let said = same.muster(&["verify"]).await;
    assert_eq!((said.code, said.err.as_str()), (0, ""));
    assert!(said.out.starts_with("Verified: "), "{}", said.out);
    let different = Hub::start(Ok(example("VerifyAnswer.different"))).await;
    for format in ["table", "json"] {
        let said = different.muster(&["verify", "--format", format]).await;
        assert_eq!((said.code, said.err.as_str()), (1, ""), "{format}");
        assert!(said.out.contains("rows[0].report.state"), "{}", said.out);
    }
    // Also where the same word would be a no of any other question.
    for code in [ErrorCode::Internal, ErrorCode::NotFound, ErrorCode::BadRequest] {
        let said = Hub::start(Err(code)).await.muster(&["verify"]).await;
        assert_eq!(
            (said.code, said.out.as_str(), said.err.as_str()),
            (2, "", "muster: no rebuild\n"),
            "{code:?}"
        );
    }
    let said = Hub::without_a_rollup().await.muster(&["verify"]).await;
    assert_eq!((said.code, said.out.as_str()), (2, ""));
}

impl Hub {
    async fn without_a_rollup() -> Self {
        let server = Server::start();
        let bus = Bus::connect(server.config("test"), &CancellationToken::new()).await.unwrap();
        Self { server, bus, _serving: None }
    }

    /// One with this answer.
    async fn start(answer: Result<Value, ErrorCode>) -> Self {
        let hub = Self::without_a_rollup().await;
        let subject = "muster.query.verify".to_owned();
        let endpoints = vec![EndpointSpec { name: "verify", subject }];
        let spec = ServiceSpec { name: "played", version: "0.1.0", description: "a test", endpoints };
        let serving = hub.bus.serve(spec, move |_| {
            let answer = answer.clone().map(|answer| Bytes::from(answer.to_string())).map_err(fault);
            async move { answer }
        });
        Self { _serving: Some(serving.await.unwrap()), ..hub }
    }

    async fn muster(&self, words: &[&str]) -> Said {
        let (out, err, url) = (Page::default(), Page::default(), self.server.url());
        let words = ["muster", "--nats-url", &url].into_iter().chain(words.iter().copied());
        let code = app::run(Cli::try_parse_from(words), &mut Terminal::of(out.clone(), err.clone())).await;
        Said { code, out: out.text(), err: err.text() }
    }
}

fn fault(code: ErrorCode) -> Fault {
    let reply = ErrorReply { error: ErrorBody { code, message: "no rebuild".to_owned() } };
    Fault { code: 400, message: "no".to_owned(), body: serde_json::to_vec(&reply).unwrap().into() }
}

fn example(name: &str) -> Value {
    let path = schemas::folder().join(format!("examples/good/{name}.json"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

impl Page {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
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
