//! Asks a process whether it is ready, over plain HTTP, and says what it answered: for health checks of containers in
//! which there is no shell and no other program. One question, one answer; it never waits for readiness.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

use crate::error::chain;

/// Time that connecting, asking and answering may take, each.
const PATIENCE: Duration = Duration::from_secs(3);
/// Most bytes of an answer that are read: readiness is told in a few lines.
const ANSWER_BYTES_MAX: u64 = 64 * 1024;

/// Says whether a process that serves /ready is ready: 0 if it is, 1 if not or if it does not answer
#[derive(Debug, Parser)]
#[command(name = "muster-probe", version = crate::VERSION)]
#[command(after_help = "\
Examples:
  muster-probe                            the process that MUSTER_HTTP_ADDR is the address of
  muster-probe 127.0.0.1:8222 /healthz    a nats-server with monitoring")]
pub struct Args {
    /// Where it serves; 0.0.0.0 is asked on the loopback interface
    #[arg(env = "MUSTER_HTTP_ADDR", value_name = "IP:PORT")]
    pub address: SocketAddr,
    /// What to ask for
    #[arg(default_value = "/ready", value_parser = path)]
    pub path: String,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// Nobody listens, or nobody answers in time.
    #[error("{address} does not answer {path}: is the process up, and is this its --http-addr?")]
    Silent {
        /// Where it was asked.
        address: SocketAddr,
        /// What was asked.
        path: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// What it answered is no HTTP.
    #[error("{address} answers something that is no HTTP: is this the --http-addr of the process?")]
    Garbled {
        /// Where it was asked.
        address: SocketAddr,
    },
}

/// What was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Whether the status is 200.
    pub is_ready: bool,
    /// The body.
    pub body: String,
}

/// The whole of the program: asks, prints the answer, and gives it as exit code.
pub fn main(args: &Args) -> ExitCode {
    let (said, is_ready) = match ask(args.address, &args.path) {
        Ok(answer) => (answer.body, answer.is_ready),
        Err(error) => (format!("muster-probe: {}\n", chain(&error)), false),
    };
    // The exit code tells, also where nobody reads.
    let _ = io::stdout().write_all(said.as_bytes());
    if is_ready { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Asks once.
///
/// # Errors
/// Nobody answers, or not in HTTP.
pub fn ask(address: SocketAddr, path: &str) -> Result<Answer, ProbeError> {
    let address = reachable(address);
    let silent = |source| ProbeError::Silent { address, path: path.to_owned(), source };
    let text = exchange(address, path).map_err(silent)?;
    parse(&text).ok_or(ProbeError::Garbled { address })
}

/// An address that can be connected to: a process that listens everywhere is asked on the loopback interface.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

fn exchange(address: SocketAddr, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    // HTTP/1.0: the connection ends with the answer, and that is never in chunks.
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
    fn whoever_is_not_there_or_speaks_otherwise_is_named() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let silent = ask(free, "/ready").unwrap_err();
        assert!(matches!(silent, ProbeError::Silent { .. }), "{silent}");
        let garbled = ask(answering("INFO {}\r\n\r\n"), "/ready").unwrap_err();
        assert!(matches!(garbled, ProbeError::Garbled { .. }), "{garbled}");
    }

    #[test]
    fn who_listens_everywhere_is_asked_on_loopback() {
        let asked = |text: &str| reachable(text.parse().unwrap()).to_string();
        assert_eq!(asked("0.0.0.0:9100"), "127.0.0.1:9100");
        assert_eq!(asked("[::]:9100"), "[::1]:9100");
        assert_eq!(asked("10.0.0.7:9100"), "10.0.0.7:9100");
    }

    #[test]
    fn the_command_line_is_sound() {
        Args::command().debug_assert();
    }
}
