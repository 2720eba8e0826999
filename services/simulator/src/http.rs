//! Asks a service on this machine for `/ready` and for a number from `/metrics`. Loopback and plain HTTP only.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Time one answer may take.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Most bytes of an answer: metrics of one service are far below.
const ANSWER_BYTES_MAX: u64 = 1024 * 1024;

/// An answer: the status code and the body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// The body.
    pub body: String,
}

/// Gets a path of a service.
///
/// # Errors
/// It cannot be reached, takes too long, or answers something that is no HTTP.
pub async fn get(address: SocketAddr, path: &str) -> std::io::Result<Answer> {
    let asked = tokio::time::timeout(TIMEOUT, ask(address, path)).await;
    let text = asked.map_err(|_| std::io::ErrorKind::TimedOut)??;
    parse(&text).ok_or_else(|| std::io::ErrorKind::InvalidData.into())
}

async fn ask(address: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    // HTTP/1.0: the server closes the connection after the answer and never sends it in chunks.
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").as_bytes()).await?;
    let mut text = String::new();
    stream.take(ANSWER_BYTES_MAX).read_to_string(&mut text).await?;
    Ok(text)
}

fn parse(text: &str) -> Option<Answer> {
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(Answer { status, body: body.to_owned() })
}

/// The value of a metric without labels.
pub fn metric(body: &str, name: &str) -> Option<f64> {
    body.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read() {
        let answer = parse("HTTP/1.0 503 Service Unavailable\r\nx: y\r\n\r\nwaiting for: nats\n").unwrap();
        assert_eq!((answer.status, &*answer.body), (503, "waiting for: nats\n"));
        assert_eq!(parse("nonsense"), None);
    }

    #[test]
    fn a_metric_is_found_by_its_whole_name() {
        let body = "# TYPE head gauge\nheader 3\nhead 42\n";
        assert_eq!(metric(body, "head"), Some(42.0));
        assert_eq!(metric(body, "tail"), None);
    }
}
