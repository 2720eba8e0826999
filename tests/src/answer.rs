//! An HTTP answer as the clients of the tests read it: status, headers and body, from the bytes of a connection that has ended.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::fmt::Debug;
use std::io;

use serde_json::Value;

/// An answer with its body as text or as bytes.
#[derive(Debug)]
pub struct Answer<B> {
    /// The status code.
    pub status: u16,
    /// The status line and the headers.
    pub head: String,
    /// The body.
    pub body: B,
}

impl<B> Answer<B> {
    /// A header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then_some(value.trim())
        })
    }
}

impl<B: AsRef<[u8]> + Debug> Answer<B> {
    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(self.body.as_ref()).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The type of a problem without Margo's namespace, checked by RFC 9457 and Margo's rules of repetition.
    pub fn problem(&self) -> String {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        let problem = self.json();
        assert_eq!(problem["status"], self.status, "{problem}");
        assert!(problem["title"].is_string(), "{problem}");
        let may_pass = [429, 500, 503].contains(&self.status);
        assert_eq!(problem["retryable"], may_pass, "{problem}");
        assert_eq!(problem["backoffStrategy"], if may_pass { "exponential" } else { "none" }, "{problem}");
        assert_eq!(self.header("retry-after").is_some(), may_pass, "{self:?}");
        assert!(self.status != 422 || problem["errors"][0]["field"].is_string(), "{problem}");
        let kind = problem["type"].as_str().unwrap();
        kind.strip_prefix("https://docs.margo.org/specification/problem-types#").unwrap_or(kind).to_owned()
    }
}

impl Answer<Vec<u8>> {
    /// Parses an answer.
    ///
    /// # Errors
    /// The bytes end before the head does, or have no status.
    pub fn parse(bytes: &[u8]) -> io::Result<Self> {
        let end =
            bytes.windows(4).position(|window| window == b"\r\n\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        let body = bytes[end + 4..].to_vec();
        Ok(Self { status: status.ok_or(io::ErrorKind::InvalidData)?, head, body })
    }
}
