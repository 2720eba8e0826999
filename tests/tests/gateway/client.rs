//! A small HTTP client of the tests' own: one request on one connection, and nothing that a library would mend.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use muster_tests::answer;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// An answer with its body as text.
pub(crate) type Answer = answer::Answer<String>;

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
    send_bytes(addr, request.as_bytes()).await
}

/// The same for a request whose body is no text.
pub(crate) async fn send_bytes(addr: SocketAddr, request: &[u8]) -> io::Result<Answer> {
    let mut stream = TcpStream::connect(addr).await?;
    // The server may answer and close before it has read all.
    let _ = stream.write_all(request).await;
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
    let answer::Answer { status, head, body } = answer::Answer::<Vec<u8>>::parse(bytes)?;
    Ok(Answer { status, head, body: String::from_utf8_lossy(&body).into_owned() })
}
