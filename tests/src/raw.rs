//! A client of the server's own protocol, for attempts that no library would make. What the server says comes back.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use muster_identity::{KeyPair, creds};
use serde_json::{Value, json};

/// How long the server may be silent.
const PATIENCE: Duration = Duration::from_secs(20);

/// A connection.
pub struct Raw {
    stream: BufReader<TcpStream>,
}

impl Raw {
    /// Connects with a credentials file; what the server says if it lets nobody in.
    ///
    /// # Errors
    /// The server's words.
    pub fn connect(port: u16, file: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(file).unwrap();
        Self::with(port, creds::token(&text).unwrap(), creds::seed(&text).unwrap())
    }

    /// Connects with a token and a seed.
    ///
    /// # Errors
    /// The server's words.
    pub fn with(port: u16, token: &str, seed: &str) -> Result<Self, String> {
        let (raw, info) = Self::greeted(port);
        let nonce = info["nonce"].as_str().unwrap_or_default();
        let signature = KeyPair::from_seed(seed).unwrap().sign(nonce.as_bytes()).unwrap();
        raw.enter(&json!({ "jwt": token, "sig": URL_SAFE_NO_PAD.encode(signature) }))
    }

    /// Connects without a name, to a server that lets everybody in.
    ///
    /// # Errors
    /// The server's words.
    pub fn anonymous(port: u16) -> Result<Self, String> {
        Self::greeted(port).0.enter(&json!({}))
    }

    /// A connection, and the server's greeting.
    fn greeted(port: u16) -> (Self, Value) {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut raw = Self { stream: BufReader::new(stream) };
        let info = raw.line().unwrap();
        let info = serde_json::from_str(info.trim_start_matches("INFO ")).unwrap();
        (raw, info)
    }

    fn enter(mut self, identity: &Value) -> Result<Self, String> {
        let mut options = json!({ "verbose": false, "pedantic": false, "headers": true, "no_responders": true,
            "lang": "test", "version": "1", "protocol": 1 });
        for (name, value) in identity.as_object().into_iter().flatten() {
            options[name] = value.clone();
        }
        let said = self.say(&format!("CONNECT {options}\r\n"));
        match said.iter().find(|line| line.starts_with("-ERR")) {
            Some(error) => Err(error.clone()),
            None => Ok(self),
        }
    }

    /// Publishes; what the server said until it answered a ping after it.
    pub fn publish(&mut self, subject: &str, reply: &str, payload: &str) -> Vec<String> {
        self.say(&format!("PUB {subject} {reply} {}\r\n{payload}\r\n", payload.len()))
    }

    /// Publishes many messages, each a subject, a reply and a payload; what the server said until it answered a ping after
    /// the last.
    pub fn publish_all(&mut self, messages: &[(String, String, String)]) -> Vec<String> {
        let text = |(subject, reply, payload): &(String, String, String)| {
            format!("PUB {subject} {reply} {}\r\n{payload}\r\n", payload.len())
        };
        self.say(&messages.iter().map(text).collect::<String>())
    }

    /// Publishes with a header.
    pub fn publish_with(&mut self, subject: &str, reply: &str, header: &str, payload: &str) -> Vec<String> {
        let head = format!("NATS/1.0\r\n{header}\r\n\r\n");
        let (own, all) = (head.len(), head.len() + payload.len());
        self.say(&format!("HPUB {subject} {reply} {own} {all}\r\n{head}{payload}\r\n"))
    }

    /// The answer to a request, or the server's refusal; its reply subject must be subscribed.
    pub fn ask(&mut self, subject: &str, reply: &str, payload: &str) -> String {
        let said = self.publish(subject, reply, payload);
        self.answer(said)
    }

    /// The same with a header.
    pub fn ask_with(&mut self, subject: &str, reply: &str, header: &str, payload: &str) -> String {
        let said = self.publish_with(subject, reply, header, payload);
        self.answer(said)
    }

    fn answer(&mut self, said: Vec<String>) -> String {
        let answer = said.into_iter().find(|line| is_message(line) || line.starts_with("-ERR"));
        answer.unwrap_or_else(|| self.message())
    }

    /// Subscribes.
    pub fn subscribe(&mut self, subject: &str, number: u32) -> Vec<String> {
        self.say(&format!("SUB {subject} {number}\r\n"))
    }

    /// Ends a subscription.
    pub fn unsubscribe(&mut self, number: u32) {
        self.say(&format!("UNSUB {number}\r\n"));
    }

    /// Waits for a message.
    pub fn message(&mut self) -> String {
        loop {
            let line = self.line().expect("the server hung up before a message came");
            if is_message(&line) {
                return self.whole(&line);
            }
        }
    }

    /// A message that begins with this line: what it holds may have lines of its own, and empty ones.
    fn whole(&mut self, line: &str) -> String {
        let bytes = line.rsplit(' ').next().unwrap().parse::<usize>().unwrap();
        let mut body = vec![0; bytes + 2];
        self.stream.read_exact(&mut body).unwrap();
        format!("{line}\n{}", String::from_utf8_lossy(&body).trim_end())
    }

    fn say(&mut self, text: &str) -> Vec<String> {
        // A server that has hung up is heard below.
        let _ = self.stream.get_mut().write_all(format!("{text}PING\r\n").as_bytes());
        let mut said = Vec::new();
        loop {
            let Some(line) = self.line() else {
                said.push("-ERR hung up".to_owned());
                return said;
            };
            match line.as_str() {
                "PONG" => return said,
                "PING" => {
                    let _ = self.stream.get_mut().write_all(b"PONG\r\n");
                }
                // The server may speak of itself at any time.
                _ if line.starts_with("INFO ") => {}
                // A message may come before the answer to the ping.
                _ if is_message(&line) => said.push(self.whole(&line)),
                _ => said.push(line),
            }
        }
    }

    /// The next line; none where the server has hung up, or says nothing for long.
    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let read = self.stream.read_line(&mut line).unwrap_or(0);
        (read > 0).then(|| line.trim_end().to_owned())
    }
}

fn is_message(line: &str) -> bool {
    line.starts_with("MSG ") || line.starts_with("HMSG ")
}
