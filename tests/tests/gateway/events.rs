//! Events: the snapshot first, changes after it, a resumed stream without what the client has, and an honest `stale`.

use std::net::SocketAddr;
use std::time::Duration;

use muster_contract::view::Verdict;
use muster_tests::story;
use muster_tests::wait::soon;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use super::served;

/// An open stream of events.
pub(super) struct Events {
    stream: TcpStream,
    text: String,
}

/// One event.
#[derive(Debug)]
pub(super) struct Event {
    pub(super) kind: String,
    id: Option<u64>,
    /// The id as it came.
    pub(super) id_text: Option<String>,
    pub(super) data: Value,
}

impl Events {
    async fn open(addr: SocketAddr, path: &str, last: Option<u64>) -> Self {
        Self::open_after(addr, path, last.map(|id| id.to_string()).as_deref()).await
    }

    pub(super) async fn open_after(addr: SocketAddr, path: &str, last: Option<&str>) -> Self {
        let last = last.map_or_else(String::new, |id| format!("Last-Event-ID: {id}\r\n"));
        Self::open_with(addr, path, &last).await
    }

    /// Opens a stream with more header lines.
    pub(super) async fn open_with(addr: SocketAddr, path: &str, headers: &str) -> Self {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: {addr}\r\nAccept: text/event-stream\r\n{headers}\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        Self { stream, text: String::new() }
    }

    /// Reads until the server ends the stream.
    pub(super) async fn ended(&mut self) {
        let mut rest = Vec::new();
        soon("the end of the stream", self.stream.read_to_end(&mut rest)).await.unwrap();
        let rest = String::from_utf8_lossy(&rest);
        assert!(rest.ends_with("0\r\n\r\n"), "the last chunk is missing: {rest}");
    }

    /// The next event; chunk sizes are lines that no field begins.
    pub(super) async fn next(&mut self) -> Event {
        soon("an event", async {
            loop {
                if let Some(event) = self.take() {
                    return event;
                }
                let mut bytes = vec![0; 64 * 1024];
                let read = self.stream.read(&mut bytes).await.unwrap();
                assert!(read > 0, "the stream ended: {}", self.text);
                self.text += &String::from_utf8_lossy(&bytes[..read]).replace('\r', "");
            }
        })
        .await
    }

    fn take(&mut self) -> Option<Event> {
        let begin = self.text.find("event: ")?;
        let end = begin + self.text[begin..].find("\n\n")?;
        let before = self.text[..begin].lines().rev().take(1).find_map(|line| line.strip_prefix("id: "));
        let id_text = before.map(str::to_owned);
        let id = before.and_then(|id| id.parse().ok());
        let block: String = self.text.drain(..end + 2).skip(begin).collect();
        let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name));
        let data = serde_json::from_str(field("data: ").unwrap_or("null")).unwrap();
        Some(Event { kind: field("event: ").unwrap().to_owned(), id, id_text, data })
    }

    /// The next event of a kind.
    pub(super) async fn next_of(&mut self, kind: &str) -> Event {
        loop {
            let event = self.next().await;
            if event.kind == kind {
                return event;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn events_begin_with_the_snapshot_and_resume_after_the_last_one() {
    let (system, addr) = served().await;
    let path = "/api/v1/watch/deployments/web";
    let mut events = Events::open(addr, path, None).await;
    let first = events.next().await;
    assert_eq!((first.kind.as_str(), &first.data["deployment"]), ("snapshot", &Value::from("web")));
    assert_eq!(first.data["asOf"]["ledgerSeq"].as_u64(), first.id);

    let devices: Vec<_> = super::DEVICES.iter().map(|text| story::key(text)).collect();
    story::publish(&system, &devices, "web", 2).await;
    let change = events.next_of("change").await;
    assert!(change.id > first.id && change.data["digest"].is_string(), "{change:?}");
    story::verdict(&system, "web", 2, Verdict::Converged).await;

    let mut resumed = Events::open(addr, path, first.id).await;
    let next = resumed.next().await;
    assert_eq!(next.kind, "change", "the client had an older view");
    assert!(next.id > first.id);
    let mut foreign = Events::open(addr, path, Some(u64::MAX)).await;
    assert_eq!(foreign.next().await.kind, "snapshot", "the client had a view of another LEDGER");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_has_at_most_one_view_a_second_and_says_that_it_is_alive() {
    let (system, addr) = served().await;
    let mut events = Events::open(addr, "/api/v1/watch/fleet", None).await;
    assert_eq!(events.next().await.kind, "snapshot");
    let devices: Vec<_> = super::DEVICES.iter().map(|text| story::key(text)).collect();
    let begin = Instant::now();
    for release in 2..6 {
        story::publish(&system, &devices, "web", release).await;
    }
    events.next_of("change").await;
    let mut views = 1;
    while begin.elapsed() < Duration::from_secs(8) {
        if let Ok(event) = timeout(Duration::from_secs(1), events.next()).await {
            views += u64::from(event.kind == "change");
        }
    }
    assert!(views <= begin.elapsed().as_secs() + 1, "{views} views");
    assert_eq!(events.next_of("alive").await.id, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hub_that_dies_makes_streams_and_pages_stale_at_once() {
    let (mut system, addr) = served().await;
    let mut events = Events::open(addr, "/api/v1/watch/fleet", None).await;
    assert_eq!(events.next().await.kind, "snapshot");
    system.server.kill();
    let stale = events.next_of("stale").await;
    assert!(stale.data["cause"].as_str().unwrap().contains("NATS"), "{stale:?}");
    let page = super::get(addr, "/").await.unwrap();
    assert_eq!((page.status, page.header("retry-after")), (503, Some("2")));
    assert!(page.body.contains("is-stale") && page.body.contains("Not up to date"), "{}", page.body);
    assert!(page.body.contains("/deployments/web"), "what was known before is shown, greyed");
    assert_eq!(super::get(addr, "/live").await.unwrap().status, 200);
    for path in ["/api/v1/fleet", "/api/v1/rollouts", "/deployments/web", "/ready"] {
        let refused = super::get(addr, path).await.unwrap();
        assert_eq!((refused.status, refused.header("retry-after")), (503, Some("2")), "{path}");
    }
    system.server.restart();
    // A server that is killed may lose its last facts; the rollup then begins anew, with a view of nothing.
    let goes_on = async { while !matches!(events.next_of("change").await.id, Some(1..)) {} };
    soon("the stream goes on", goes_on).await;
    system
        .eventually("the page is up to date again", async || match super::get(addr, "/").await {
            Ok(page) if page.status == 200 => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
    assert_eq!(super::get(addr, "/ready").await.unwrap().body, "ready\n");
}
