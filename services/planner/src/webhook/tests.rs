//! The client of webhooks against a TLS server of this test.

use std::sync::Arc;

use muster_contract::rollout::{CHECK_ANSWER_BYTES_MAX, CheckRequest};
use ring::hmac;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::{self, ServerConfig};

use super::*;

const SECRET: &str = "a-secret-of-the-test";

/// A server that gives each connection this answer; its port and the questions that it got.
async fn server(folder: &TempDir, answer: String) -> (u16, tokio::sync::mpsc::UnboundedReceiver<String>) {
    let key = rcgen::KeyPair::generate().unwrap();
    let names = ["localhost", "127.0.0.1"].map(str::to_owned);
    let certificate = rcgen::CertificateParams::new(names).unwrap().self_signed(&key).unwrap();
    std::fs::write(folder.path().join("ca.pem"), certificate.pem()).unwrap();
    std::fs::write(folder.path().join("secret"), format!("{SECRET}\n")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.der().clone()],
            PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
        )
        .unwrap();
    let (acceptor, listener) =
        (TlsAcceptor::from(Arc::new(config)), TcpListener::bind("127.0.0.1:0").await.unwrap());
    let port = listener.local_addr().unwrap().port();
    let (questions, receiver) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(tcp).await else { continue };
            let mut question = String::new();
            let mut buffer = [0; 4096];
            while !question.contains("\"hi\"") {
                match stream.read(&mut buffer).await {
                    Ok(count @ 1..) => question += &String::from_utf8_lossy(&buffer[..count]),
                    _ => break,
                }
            }
            let _ = questions.send(question);
            let _ = stream.write_all(answer.as_bytes()).await;
            let _ = stream.shutdown().await;
        }
    });
    (port, receiver)
}

fn http(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
}

fn client(folder: &TempDir, allowed: &[&str]) -> Webhooks {
    let path = |name: &str| Some(folder.path().join(name));
    let allowed = allowed.iter().map(|host| (*host).to_owned()).collect();
    Webhooks::new(WebhookConfig { secret: path("secret"), ca: path("ca.pem"), allowed }).unwrap()
}

fn question() -> Bytes {
    let question = serde_json::json!({
        "deployment": "web", "digest": muster_contract::canonical::Digest::of_bytes(b"v2"), "rollout": "rollout.yaml",
        "wave": "canary", "ledgerSeq": 9, "targets": 2, "lo": 1, "hi": 2,
    });
    let question: CheckRequest = serde_json::from_value(question).unwrap();
    serde_json::to_vec(&question).unwrap().into()
}

async fn posted(answer: String, allowed: &[&str]) -> Result<Bytes, String> {
    let folder = TempDir::new().unwrap();
    let (port, _questions) = server(&folder, answer).await;
    let url = format!("https://localhost:{port}/smoke").parse().unwrap();
    let answer = client(&folder, allowed).post(&url, question(), CHECK_ANSWER_BYTES_MAX).await;
    answer.map_err(|error| muster_service::error::chain(&error))
}

#[tokio::test]
async fn a_webhook_gets_a_signed_question_and_its_answer_counts() {
    let folder = TempDir::new().unwrap();
    let (port, mut questions) = server(&folder, http("200 OK", r#"{"result":"pass"}"#)).await;
    let url = format!("https://localhost:{port}/smoke?token=x").parse().unwrap();
    let answer =
        client(&folder, &["localhost"]).post(&url, question(), CHECK_ANSWER_BYTES_MAX).await.unwrap();
    assert_eq!(&answer[..], br#"{"result":"pass"}"#);
    let asked = questions.recv().await.unwrap();
    assert!(asked.starts_with("POST /smoke?token=x HTTP/1.1\r\n"), "{asked}");
    let signed = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, SECRET.as_bytes()), &question());
    let hex: String = signed.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(asked.contains(&format!("muster-signature: sha256={hex}\r\n")), "{asked}");
    assert!(asked.contains(&format!("host: localhost:{port}\r\n")), "{asked}");
}

#[tokio::test]
async fn a_webhook_at_a_private_address_is_asked_only_if_its_host_is_allowed() {
    let good = || http("200 OK", r#"{"result":"pass"}"#);
    let refused = posted(good(), &[]).await.unwrap_err();
    assert!(refused.contains("localhost has a private address"), "{refused}");
    assert!(posted(good(), &["other"]).await.is_err());
    assert!(posted(good(), &["localhost"]).await.is_ok());
}

#[tokio::test]
async fn a_redirect_an_error_and_a_long_answer_are_no_answers() {
    let redirect =
        "HTTP/1.1 302 Found\r\nlocation: https://localhost/x\r\ncontent-length: 0\r\n\r\n".to_owned();
    for (answer, words) in [
        (redirect, "status 302"),
        (http("500 Internal Server Error", "{}"), "status 500"),
        (http("200 OK", &"x".repeat(CHECK_ANSWER_BYTES_MAX + 1)), "more than 4096 bytes"),
        ("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{".to_owned(), "cut off"),
        ("SSH-2.0-x\r\n".to_owned(), "the request failed"),
    ] {
        let refused = posted(answer, &["localhost"]).await.unwrap_err();
        assert!(refused.contains(words), "{refused}");
    }
}

#[tokio::test]
async fn a_webhook_of_an_unknown_authority_or_without_a_secret_is_not_asked() {
    let (folder, other) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let (port, mut questions) = server(&folder, http("200 OK", r#"{"result":"pass"}"#)).await;
    server(&other, String::new()).await;
    let url = format!("https://localhost:{port}/").parse().unwrap();
    assert!(client(&other, &["localhost"]).post(&url, question(), CHECK_ANSWER_BYTES_MAX).await.is_err());
    let without = Webhooks::new(WebhookConfig::default())
        .unwrap()
        .post(&url, question(), CHECK_ANSWER_BYTES_MAX)
        .await
        .unwrap_err();
    assert!(without.to_string().contains("--webhook-secret"), "{without}");
    assert!(questions.try_recv().is_err(), "nobody was told anything");
    std::fs::write(folder.path().join("secret"), "short").unwrap();
    let config = WebhookConfig { secret: Some(folder.path().join("secret")), ..WebhookConfig::default() };
    assert!(Webhooks::new(config).unwrap_err().to_string().contains("fewer than 16 bytes"));
}
