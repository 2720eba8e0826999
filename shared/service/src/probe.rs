//! `muster-probe`: asks a process over plain HTTP whether it is ready, and prints the answer. It is for health checks of
//! containers without a shell. It sends one request and does not wait for readiness.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

use crate::error::chain;

/// Timeout of the connection, of the request and of the answer.
const TIMEOUT: Duration = Duration::from_secs(3);
/// The most bytes that are read of an answer; readiness has a few lines.
const ANSWER_BYTES_MAX: u64 = 64 * 1024;

/// Checks whether a process that serves /ready is ready: exits with 0 if it is, with 1 if not or without an answer
#[derive(Debug, Parser)]
#[command(name = "muster-probe", version = crate::VERSION)]
#[command(after_help = "\
Examples:
  muster-probe                            the process whose address is in MUSTER_HTTP_ADDR
  muster-probe 127.0.0.1:8222 /healthz    a nats-server with monitoring")]
pub struct Args {
    /// Address that the process serves on; for 0.0.0.0 the loopback interface is used
    #[arg(env = "MUSTER_HTTP_ADDR", value_name = "IP:PORT")]
    pub address: SocketAddr,
    /// Path to request
    #[arg(default_value = "/ready", value_parser = path)]
    pub path: String,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// No process listens, or it does not answer in time.
    #[error("{address} does not answer {path}: is the process up, and is this its --http-addr?")]
    NoAnswer {
        /// The address.
        address: SocketAddr,
        /// The requested path.
        path: String,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// The answer is not HTTP.
    #[error("{address} does not answer in HTTP: is this the --http-addr of the process?")]
    NotHttp {
        /// The address.
        address: SocketAddr,
    },
}

/// The answer of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Whether the status is 200.
    pub is_ready: bool,
    /// The body.
    pub body: String,
}

/// Runs the program: asks, prints the answer and returns the exit code.
pub fn main(args: &Args) -> ExitCode {
    let (text, is_ready) = match ask(args.address, &args.path) {
        Ok(answer) => (answer.body, answer.is_ready),
        Err(error) => (format!("muster-probe: {}\n", chain(&error)), false),
    };
    // If standard output is closed, only the exit code reports it.
    let _ = io::stdout().write_all(text.as_bytes());
    if is_ready { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Sends one request.
///
/// # Errors
/// No process answers, or the answer is not HTTP.
pub fn ask(address: SocketAddr, path: &str) -> Result<Answer, ProbeError> {
    let address = reachable(address);
    let no_answer = |source| ProbeError::NoAnswer { address, path: path.to_owned(), source };
    let text = exchange(address, path).map_err(no_answer)?;
    parse(&text).ok_or(ProbeError::NotHttp { address })
}

/// The address to connect to: the loopback address if the process listens on every interface.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

fn exchange(address: SocketAddr, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    // With HTTP/1.0 the server closes the connection after the answer, and does not send it in chunks.
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").as_bytes())?;
    let mut bytes = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn parse(text: &str) -> Option<Answer> {
    let (head, body) = text.split_once("\r\n\r\n")?;
    let mut words = head.strip_prefix("HTTP/")?.split_ascii_whitespace();
    let status: u16 = words.nth(1)?.parse().ok()?;
    Some(Answer { is_ready: status == 200, body: body.to_owned() })
}

fn path(text: &str) -> Result<String, &'static str> {
    let fits = text.starts_with('/') && text.bytes().all(|byte| byte.is_ascii_graphic());
    if fits { Ok(text.to_owned()) } else { Err("must be a path such as /ready") }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use clap::CommandFactory;

    use super::*;

    fn answering(answer: &'static str) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = [0; 64];
            let count = stream.read(&mut asked).unwrap();
            assert!(asked[..count].starts_with(b"GET /ready HTTP/1.0\r\n"));
            stream.write_all(answer.as_bytes()).unwrap();
        });
        address
    }

    #[test]
    fn only_the_status_200_is_ready() {
        let ready = ask(answering("HTTP/1.0 200 OK\r\nx: y\r\n\r\nready\n"), "/ready").unwrap();
        assert_eq!(ready, Answer { is_ready: true, body: "ready\n".to_owned() });
        let busy = ask(answering("HTTP/1.1 503 Service Unavailable\r\n\r\nnot ready:\n"), "/ready").unwrap();
        assert_eq!(busy, Answer { is_ready: false, body: "not ready:\n".to_owned() });
    }

    #[test]
    fn a_process_that_does_not_answer_in_http_is_named() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let no_answer = ask(free, "/ready").unwrap_err();
        assert!(matches!(no_answer, ProbeError::NoAnswer { .. }), "{no_answer}");
        let not_http = ask(answering("INFO {}\r\n\r\n"), "/ready").unwrap_err();
        assert!(matches!(not_http, ProbeError::NotHttp { .. }), "{not_http}");
    }

    #[test]
    fn a_process_that_listens_on_every_interface_is_asked_on_loopback() {
        let asked = |text: &str| reachable(text.parse().unwrap()).to_string();
        assert_eq!(asked("0.0.0.0:9100"), "127.0.0.1:9100");
        assert_eq!(asked("[::]:9100"), "[::1]:9100");
        assert_eq!(asked("10.0.0.7:9100"), "10.0.0.7:9100");
    }

    #[test]
    fn the_command_line_definition_is_valid() {
        Args::command().debug_assert();
    }
}
