//! Reads the state of a server's streams over HTTP (`/jsz`), which no rights limit: by account, the settings of each stream,
//! its messages and its consumers. It reads and compares, and decides nothing.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};

use muster_identity::exchange::Account;
use serde_json::Value;

/// The state of a stream at a moment.
#[derive(Debug, Clone, PartialEq)]
pub struct StreamShape {
    /// When it was made: another moment means another stream.
    pub created: String,
    /// Its settings.
    pub settings: Value,
    /// First and last sequence, messages, bytes.
    pub holds: Value,
    /// Names of its consumers, without those of mirrors and sources, which the server keeps to itself.
    pub consumers: BTreeSet<String>,
}

/// The streams of all accounts.
pub type Streams = BTreeMap<(Account, String), StreamShape>;

/// The parts of a stream that may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Aspect {
    /// It was made, removed, or made anew.
    Existence,
    /// Its settings.
    Settings,
    /// Its messages.
    Messages,
    /// Which consumers it has.
    Consumers,
}

/// A change of a stream of an account.
pub type Change = (Account, String, Aspect);

/// The streams that the server with this monitoring port has.
pub fn streams(port: u16) -> Streams {
    let answer = get(port, "/jsz?accounts=true&streams=true&consumers=true&config=true");
    let details = answer["account_details"].as_array().unwrap();
    details.iter().flat_map(streams_of).collect()
}

fn streams_of(account: &Value) -> Vec<((Account, String), StreamShape)> {
    let name = account["name"].as_str().unwrap();
    let of = if name.ends_with("readers") { Account::Readers } else { Account::Hub };
    let streams = account["stream_detail"].as_array().into_iter().flatten();
    streams.map(|stream| ((of, stream["name"].as_str().unwrap().to_owned()), shape(stream))).collect()
}

fn shape(stream: &Value) -> StreamShape {
    let mut holds = stream["state"].clone();
    holds.as_object_mut().unwrap().remove("consumer_count");
    let consumers = stream["consumer_detail"].as_array().into_iter().flatten();
    StreamShape {
        created: stream["created"].to_string(),
        settings: stream["config"].clone(),
        holds,
        consumers: consumers.map(|consumer| consumer["name"].as_str().unwrap().to_owned()).collect(),
    }
}

/// How two looks differ.
pub fn changes(before: &Streams, after: &Streams) -> BTreeSet<Change> {
    let all: BTreeSet<_> = before.keys().chain(after.keys()).collect();
    all.into_iter().flat_map(|key| changes_of(key, before.get(key), after.get(key))).collect()
}

fn changes_of(
    (account, name): &(Account, String),
    before: Option<&StreamShape>,
    after: Option<&StreamShape>,
) -> Vec<Change> {
    let change = |aspect| (*account, name.clone(), aspect);
    let (Some(before), Some(after)) = (before, after) else { return vec![change(Aspect::Existence)] };
    if before.created != after.created {
        return vec![change(Aspect::Existence)];
    }
    let differs = [
        (before.settings != after.settings, Aspect::Settings),
        (before.holds != after.holds, Aspect::Messages),
        (before.consumers != after.consumers, Aspect::Consumers),
    ];
    differs.into_iter().filter(|(differs, _)| *differs).map(|(_, aspect)| change(aspect)).collect()
}

fn get(port: u16, path: &str) -> Value {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (_, body) = text.split_once("\r\n\r\n").unwrap();
    serde_json::from_str(body).unwrap()
}
