//! A Git server that accepts connections and never answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use muster_contract::query::{GitStatus, PublisherStatus};
use muster_tests::wait::until;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::requests::apply;
use crate::stage::{Publisher, Stage, deployment};

/// Time for one run of git.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Accepts and counts connections, and reads them without an answer until `answers` is set.
struct SilentRemote {
    url: String,
    /// Accepted connections.
    taken: Arc<AtomicUsize>,
    /// Connections that the other side closed.
    closed: Arc<AtomicUsize>,
    answers: Arc<AtomicBool>,
}

impl SilentRemote {
    async fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("http://{}/fleet.git", listener.local_addr().unwrap());
        let remote = Self { url, taken: Arc::default(), closed: Arc::default(), answers: Arc::default() };
        let (taken, closed, answers) = (remote.taken.clone(), remote.closed.clone(), remote.answers.clone());
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                taken.fetch_add(1, Ordering::SeqCst);
                let (closed, answers) = (closed.clone(), answers.clone());
                tokio::spawn(async move {
                    let mut request = [0; 4096];
                    while stream.read(&mut request).await.is_ok_and(|bytes| bytes > 0) {
                        if answers.load(Ordering::SeqCst) {
                            let refusal = "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n";
                            stream.write_all(refusal.as_bytes()).await.unwrap();
                        }
                    }
                    closed.fetch_add(1, Ordering::SeqCst);
                });
            }
        });
        remote
    }
}

async fn git(publisher: &Publisher, what: &str, holds: impl Fn(&GitStatus) -> bool) -> GitStatus {
    let holds = |status: &PublisherStatus| status.git.as_ref().is_some_and(&holds);
    until(what, async || publisher.status.answer(), holds).await.git.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hanging_repository_is_named_while_requests_are_served() {
    let (stage, remote) = (Stage::new().await, SilentRemote::start().await);
    let publisher = stage.publisher_of_url(&remote.url, TIMEOUT).await;
    let hanging = git(&publisher, "the hang is reported", |git| git.hanging_since.is_some()).await;
    assert_eq!((hanging.failures, hanging.error), (0, None), "reported before git is killed");
    let since = hanging.hanging_since.unwrap();
    assert_ne!(gauge(&publisher), 0.0);

    // The command that is under way blocks no request.
    let applied = apply(&stage, "a/one", deployment("web", "api")).await.unwrap();
    assert!(applied.changed);
    assert_eq!(stage.shown("a/one").await, (1, vec!["web=api@1".to_owned()]));

    // The publisher kills git, which closes its connection, and starts it again; the hang counts from the first start.
    let killed = git(&publisher, "git is killed twice", |git| git.failures >= 2).await;
    assert_eq!(killed.hanging_since, Some(since));
    assert!(killed.error.as_ref().unwrap().contains("within 3 s"), "{killed:?}");
    let taken = async || (remote.taken.load(Ordering::SeqCst), remote.closed.load(Ordering::SeqCst));
    until("no git is left behind", taken, |(taken, closed)| *taken >= 2 && taken - closed <= 1).await;

    // An answer, even a refusal, ends the hang.
    remote.answers.store(true, Ordering::SeqCst);
    let answered = git(&publisher, "the hang is over", |git| git.hanging_since.is_none()).await;
    assert!(answered.error.is_some(), "{answered:?}");
    assert_eq!(gauge(&publisher), 0.0);
    assert!(publisher.stop().await.late.is_empty());
}

/// The metric of the hang.
fn gauge(publisher: &Publisher) -> f64 {
    let text = publisher.supervisor.health().metrics_text();
    let name = "muster_publisher_git_hanging_since_timestamp_seconds ";
    text.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().parse().unwrap()
}
