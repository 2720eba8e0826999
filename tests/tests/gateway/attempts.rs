//! Attacks on the listener of people: foreign origins and hosts, frames, injected headers, large and slow bodies, path tricks.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::client::{Answer, get, post, post_from, send};
use super::login::LoginStage;
use super::served;

/// The gateway's own deadline for a header, and some time on top of it.
const HEADER_DEADLINE: Duration = Duration::from_secs(25);

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_page_cannot_change_anything() {
    let (system, addr) = served().await;
    let own = format!("http://{addr}");
    for headers in [
        &[("Origin", "http://evil.example")][..],
        &[("Origin", "null")],
        &[("Origin", "")],
        &[("Origin", own.as_str()), ("Sec-Fetch-Site", "cross-site")],
        &[("Sec-Fetch-Site", "same-site")],
        &[("Origin", own.as_str()), ("Origin", "http://evil.example")],
    ] {
        for path in
            ["/rollouts/web/pause", "/api/v1/rollouts/web/stop", "/quarantine/drop", "/plans/web/deactivate"]
        {
            let refused = post_from(addr, path, headers, "").await.unwrap();
            assert_eq!(refused.status, 403, "{path} {headers:?}: {refused:?}");
        }
    }
    for path in ["/rollouts/web/pause", "/quarantine/drop", "/api/v1/quarantine/requeue"] {
        let by_link = get(addr, path).await.unwrap();
        assert!(matches!(by_link.status, 400 | 404 | 405), "a link changes nothing: {by_link:?}");
    }
    let history = system.muster(&["rollout", "history", "web"]).await;
    assert!(!String::from_utf8_lossy(&history.stdout).contains("pause"));
}

/// An answer with this status and type, which no page may show in a frame.
#[track_caller]
fn assert_unframed(answer: &Answer, status: u16, media: &str) {
    assert_eq!(answer.status, status, "{answer:?}");
    assert!(answer.header("content-type").is_some_and(|found| found.starts_with(media)), "{answer:?}");
    assert_eq!(answer.header("x-frame-options"), Some("DENY"), "{answer:?}");
    let policy = answer.header("content-security-policy").unwrap_or_default();
    assert!(policy.split(';').any(|rule| rule.trim() == "frame-ancestors 'none'"), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_page_and_no_answer_of_rest_can_be_framed() {
    let (page, json, problem) = ("text/html", "application/json", "application/problem+json");
    let (_system, addr) = served().await;
    for (path, status, media) in [
        ("/", 200, page),
        ("/devices/plant7/press-9", 404, page),
        ("/api/v1/fleet", 200, json),
        ("/api/v1/nothing", 404, problem),
    ] {
        assert_unframed(&get(addr, path).await.unwrap(), status, media);
    }
    let refused = post_from(addr, "/rollouts/web/pause", &[("Origin", "null")], "").await.unwrap();
    assert_unframed(&refused, 403, problem);
    let stage = LoginStage::start().await;
    assert_unframed(&get(stage.addr, "/login").await.unwrap(), 200, page);
    assert_unframed(&get(stage.addr, "/api/v1/fleet").await.unwrap(), 401, problem);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_host_gets_nothing_and_no_header_is_injected() {
    let (_system, addr) = served().await;
    for host in ["evil.example", "127.0.0.1.evil.example", "evil.example:80\r\nX-A: b", ""] {
        let request = format!("GET /api/v1/fleet HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        let answer = send(addr, &request).await.unwrap();
        assert!(matches!(answer.status, 400 | 421) && !answer.body.contains("digest"), "{host}: {answer:?}");
    }
    let two = format!("GET / HTTP/1.1\r\nHost: {addr}\r\nHost: {addr}\r\nConnection: close\r\n\r\n");
    assert!(matches!(send(addr, &two).await.unwrap().status, 400 | 421));
    for path in ["/api/v1/devices?site=a%0d%0aSet-Cookie:%20b=c&sitte=1", "/api/v1/nothing%0d%0aX-Evil:%201"]
    {
        let answer = get(addr, path).await.unwrap();
        assert!(answer.header("set-cookie").is_none() && answer.header("x-evil").is_none(), "{answer:?}");
    }
    // A redirect goes to this gateway, whatever the name in the address.
    let answer = post(addr, "/rollouts/%2F%2Fevil.example/pause", "").await.unwrap();
    assert!(answer.header("location").is_none(), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn large_ambiguous_and_nested_requests_are_refused() {
    let (_system, addr) = served().await;
    let large = format!("reason={}", "a".repeat(1024 * 1024));
    let answer = post(addr, "/api/v1/rollouts/web/pause", &large).await.unwrap();
    assert_eq!(answer.status, 413, "{answer:?}");
    let declared = format!(
        "POST /api/v1/rollouts/web/pause HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n"
    );
    let answer = send(addr, &declared).await.unwrap();
    assert!(answer.status >= 400 && answer.head.matches("HTTP/1.1 ").count() == 1, "{answer:?}");
    assert!(!answer.body.contains("HTTP/1.1 200"), "one answer: {answer:?}");
    let query = format!("/api/v1/devices?site={}", "a".repeat(10_000));
    assert!(matches!(get(addr, &query).await.unwrap().status, 400 | 414 | 431));
    let header = format!("GET / HTTP/1.1\r\nHost: {addr}\r\nX: {}\r\n\r\n", "a".repeat(64 * 1024));
    assert!(send(addr, &header).await.map_or(true, |answer| answer.status == 431));
    for path in [
        "/assets/../Cargo.toml",
        "/assets/%2e%2e/Cargo.toml",
        "//etc/passwd",
        "/devices/..%2f..%2fetc/passwd",
    ] {
        let answer = get(addr, path).await.unwrap();
        assert!(matches!(answer.status, 400 | 404), "{path}: {answer:?}");
    }
    let script = get(addr, "/devices?error=%3Cscript%3Ealert(1)%3C/script%3E").await.unwrap();
    assert!(script.status == 200 && !script.body.contains("<script>alert"), "{}", script.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_clients_are_cut_off_and_delay_nobody() {
    let (_system, addr) = served().await;
    let mut slow = Vec::new();
    for _ in 0..50 {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHos").await.unwrap();
        slow.push(stream);
    }
    assert_eq!(get(addr, "/live").await.unwrap().status, 200);
    let mut byte = [0];
    for mut stream in slow {
        let ended = timeout(HEADER_DEADLINE, stream.read(&mut byte)).await;
        assert!(matches!(ended, Ok(Ok(0) | Err(_)) | Ok(Ok(1))), "the connection ends");
    }
}
