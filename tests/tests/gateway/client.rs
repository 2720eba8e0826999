//! A small HTTP client of the tests' own: one request on one connection, and nothing that a library would mend.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    /// A header's value.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then_some(value.trim())
        })
    }

    /// The body as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// Gets an address with the host that it has.
pub(crate) async fn get(addr: SocketAddr, path: &str) -> io::Result<Answer> {
    send(addr, &format!("GET {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\r\n")).await
}

/// Posts a form as a page of the same origin does.
pub(crate) async fn post(addr: SocketAddr, path: &str, form: &str) -> io::Result<Answer> {
    let origin = format!("http://{addr}");
    post_from(addr, path, &[("Origin", &origin)], form).await
}

/// Posts a form with these headers.
pub(crate) async fn post_from(
    addr: SocketAddr,
    path: &str,
    headers: &[(&str, &str)],
    form: &str,
) -> io::Result<Answer> {
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let length = form.len();
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n{headers}\
         Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {length}\r\n\r\n{form}"
    );
    send(addr, &request).await
}

/// Sends a request as it is, and reads the answer until the connection ends.
pub(crate) async fn send(addr: SocketAddr, request: &str) -> io::Result<Answer> {
    let mut stream = TcpStream::connect(addr).await?;
    // The server may answer and close before it has read all.
    let _ = stream.write_all(request.as_bytes()).await;
    let mut bytes = Vec::new();
    match timeout(PATIENCE, stream.read_to_end(&mut bytes)).await {
        Ok(read) => _ = read.or_else(|error| if bytes.is_empty() { Err(error) } else { Ok(0) })?,
        Err(_) => return Err(io::ErrorKind::TimedOut.into()),
    }
    parse(&bytes)
}

/// The same for a server that keeps the connection: reads as much as the answer says that it has.
pub(crate) async fn send_one(addr: SocketAddr, request: &str) -> io::Result<Answer> {
    let mut stream = TcpStream::connect(addr).await?;
    stream.write_all(request.as_bytes()).await?;
    let (mut bytes, mut part) = (Vec::new(), vec![0; 64 * 1024]);
    let whole = async {
        loop {
            let read = stream.read(&mut part).await?;
            bytes.extend_from_slice(&part[..read]);
            let answer = parse(&bytes);
            let length =
                answer.as_ref().ok().and_then(|answer| answer.header("content-length")?.parse().ok());
            let is_whole = length
                .is_some_and(|length: usize| answer.as_ref().is_ok_and(|answer| answer.body.len() >= length));
            if is_whole || read == 0 {
                return answer;
            }
        }
    };
    timeout(PATIENCE, whole).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

fn parse(bytes: &[u8]) -> io::Result<Answer> {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok(Answer {
        status: status.ok_or(io::ErrorKind::InvalidData)?,
        head: head.to_owned(),
        body: body.to_owned(),
    })
}
