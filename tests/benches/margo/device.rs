//! One device of the bench: a connection with its client certificate that stays open, its poll, and its statuses of two states in
//! turn, so that each differs from the last one and becomes a report. It measures nothing.

use std::io;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::client::{Answer, Client};
use crate::fleet::{status, status_path};

/// Bytes of an answer for which a connection has room from its start.
const ANSWER_BYTES: usize = 4096;
/// The end of an answer's head.
const HEAD_END: &[u8] = b"\r\n\r\n";
/// The status code of an answer without a body to a device that has the manifest.
const NOT_MODIFIED: u16 = 304;
/// Status codes after which a device sends its request again.
const REPEATABLE: [u16; 2] = [429, 503];

/// A kind of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestKind {
    /// For the manifest that the device has.
    Poll,
    /// Posts a status.
    Status,
}

/// A device with its requests.
pub(crate) struct Device {
    connection: Connection,
    poll: Vec<u8>,
    statuses: [Vec<u8>; 2],
    /// Statuses that the gateway has answered with success.
    reported: usize,
}

impl Device {
    /// Connects, and gets the manifest, which has one deployment.
    pub(crate) async fn connect(client: &Client) -> Self {
        let stream = client.connect().await.unwrap();
        let mut connection = Connection { stream, bytes: Vec::with_capacity(ANSWER_BYTES) };
        let answer = connection.ask(&request("GET /api/v1/deployments", "", "")).await.unwrap();
        assert_eq!(answer.status, 200, "{answer:?}");
        let manifest = answer.json();
        let id = manifest["deployments"][0]["deploymentId"].as_str().expect("a deployment");
        let tag = answer.header("etag").expect("an entity tag");
        let statuses = ["installing", "installed"].map(|state| {
            let body = status(id, &manifest["manifestVersion"], state).to_string();
            let headers = format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len());
            request(&format!("POST {}", status_path(id)), &headers, &body)
        });
        let poll = request("GET /api/v1/deployments", &format!("If-None-Match: {tag}\r\n"), "");
        Self { connection, poll, statuses, reported: 0 }
    }

    /// Sends a request, and waits for its answer. False if the device must send it again.
    ///
    /// # Panics
    /// The answer is neither a success nor asks for a repetition.
    pub(crate) async fn send(&mut self, kind: RequestKind) -> bool {
        let request = match kind {
            RequestKind::Poll => &self.poll,
            RequestKind::Status => &self.statuses[self.reported % 2],
        };
        let answer = self.connection.ask(request).await.unwrap();
        let is_done = match kind {
            RequestKind::Poll => answer.status == NOT_MODIFIED,
            RequestKind::Status => matches!(answer.status, 200 | 201),
        };
        assert!(is_done || REPEATABLE.contains(&answer.status), "{kind:?}: {answer:?}");
        self.reported += usize::from(is_done && kind == RequestKind::Status);
        is_done
    }
}

/// The bytes of a request.
fn request(line: &str, headers: &str, body: &str) -> Vec<u8> {
    format!("{line} HTTP/1.1\r\nHost: wfm\r\n{headers}\r\n{body}").into_bytes()
}

/// A connection that stays open.
struct Connection {
    stream: TlsStream<TcpStream>,
    bytes: Vec<u8>,
}

impl Connection {
    /// Sends a request and reads its whole answer.
    async fn ask(&mut self, request: &[u8]) -> io::Result<Answer> {
        self.stream.write_all(request).await?;
        self.stream.flush().await?;
        self.bytes.clear();
        loop {
            if self.stream.read_buf(&mut self.bytes).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if let Some(answer) = whole(&self.bytes)? {
                return Ok(answer);
            }
        }
    }
}

/// The answer, if these bytes are all of it. The gateway gives the length of every body here.
fn whole(bytes: &[u8]) -> io::Result<Option<Answer>> {
    if !bytes.windows(HEAD_END.len()).any(|window| window == HEAD_END) {
        return Ok(None);
    }
    let answer = Answer::parse(bytes)?;
    let length = answer.header("content-length").filter(|_| answer.status != NOT_MODIFIED);
    let length = length.map_or(Ok(0), str::parse::<usize>).map_err(io::Error::other)?;
    Ok((answer.body.len() >= length).then_some(answer))
}
