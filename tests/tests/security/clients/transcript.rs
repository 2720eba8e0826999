//! Replays the calls of another program: each is answered or refused as the transcript lists.

use std::time::Duration;

use async_nats::{Client, Request};
use futures_util::StreamExt as _;
use muster_identity::Role;
use muster_tests::guarded::Guarded;
use muster_tests::wait::soon;
use tokio::sync::mpsc::UnboundedReceiver;

use super::async_nats_client::connected;

/// How long a refused request waits; the refusal comes beside it.
const REFUSED_TIMEOUT: Duration = Duration::from_millis(500);

/// The expected outcome of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// An answer without an error.
    Answered,
    /// A stored message, or word that there is none.
    Delivered,
    /// The server refuses it, and names the subject.
    Refused,
    /// It needs no answer, and the server does not refuse it.
    Sent,
}

/// A call of a command.
#[derive(Debug)]
pub(super) struct Call {
    command: String,
    outcome: Outcome,
    subject: String,
    payload: String,
}

/// The calls of a transcript.
pub(super) fn calls(transcript: &str) -> Vec<Call> {
    let mut command = "";
    let mut calls = Vec::new();
    for line in transcript.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (mark, rest) = line.split_once(' ').unwrap();
        let outcome = match mark {
            "$" => {
                command = rest;
                continue;
            }
            ">" => Outcome::Answered,
            "?" => Outcome::Delivered,
            "!" => Outcome::Refused,
            "." => Outcome::Sent,
            other => panic!("a line begins with {other}"),
        };
        let (subject, payload) = rest.split_once(' ').unwrap_or((rest, ""));
        let (command, subject, payload) = (command.to_owned(), subject.to_owned(), payload.to_owned());
        calls.push(Call { command, outcome, subject, payload });
    }
    calls
}

/// Sends each call with the credentials of a role.
pub(super) async fn replay(hub: &Guarded, role: Role, calls: &[Call]) {
    let (client, mut events) = connected(hub, role).await;
    let (name, inbox) = (format!("cli-{}", role.as_str()), client.new_inbox());
    let filled = |text: &str| text.replace("NAME", &name).replace("INBOX", &inbox);
    for call in calls {
        let what = format!("{role:?}: `{}`: {}", call.command, call.subject);
        let (subject, payload) = (filled_subject(&call.subject, &name), filled(&call.payload));
        match call.outcome {
            Outcome::Refused => refused(&client, &mut events, &what, subject, payload).await,
            Outcome::Sent => client.publish(subject, payload.into()).await.unwrap(),
            Outcome::Answered | Outcome::Delivered => {
                // A message of a stream comes under its own subject, so the inbox is subscribed by itself.
                let reply = client.new_inbox();
                let mut answers = client.subscribe(reply.clone()).await.unwrap();
                client.publish_with_reply(subject, reply, payload.into()).await.unwrap();
                let answer = soon(&what, answers.next()).await.unwrap();
                let text = String::from_utf8_lossy(&answer.payload);
                assert!(!text.contains("\"error\""), "{what}: {text}");
                let is_empty = answer.status.is_some() || answer.payload.is_empty();
                assert!(call.outcome == Outcome::Delivered || !is_empty, "{what}: {answer:?}");
            }
        }
    }
    client.flush().await.unwrap();
    assert_eq!(events.try_recv().ok(), None, "{role:?}: the server refused something else");
}

/// The subject with the client's own name; `NAMES` is a verb of the API.
fn filled_subject(subject: &str, name: &str) -> String {
    let part = |part: &str| match part.strip_prefix("NAME") {
        Some(rest) if rest.is_empty() || rest.starts_with('-') => format!("{name}{rest}"),
        _ => part.to_owned(),
    };
    subject.split('.').map(part).collect::<Vec<_>>().join(".")
}

async fn refused(
    client: &Client,
    events: &mut UnboundedReceiver<String>,
    what: &str,
    subject: String,
    payload: String,
) {
    let request = Request::new().payload(payload.into()).timeout(Some(REFUSED_TIMEOUT));
    let answer = client.send_request(subject.clone(), request).await;
    assert!(answer.is_err(), "{what}: {answer:?}");
    let refusal = soon(what, events.recv()).await.unwrap();
    assert!(refusal.to_lowercase().contains(&subject.to_lowercase()), "{what}: {refusal}");
}
