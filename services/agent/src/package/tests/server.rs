//! An HTTP server that gives one scripted answer to each connection, and remembers what it was asked.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// An answer of the server.
#[derive(Debug, Clone)]
pub(super) enum Answer {
    /// A whole file.
    Whole(Vec<u8>),
    /// The beginning of a file, then the end of the connection.
    Cut { bytes: Vec<u8>, after: usize, etag: Option<&'static str> },
    /// The rest of a file from the byte that was asked for.
    Rest(Vec<u8>),
    /// A byte now and then.
    Drip(Vec<u8>),
    /// A file that claims this size.
    Claims(u64),
    /// A status without content.
    Status(u16),
    /// A redirect.
    Redirect(String),
    /// A demand for a token of this server.
    Challenge,
    /// The end of the connection before any answer.
    Hangup,
    /// Silence, for longer than a client may wait.
    Hang,
}

/// The server.
pub(super) struct Server {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// Starts a server that gives these answers in order and then no more.
    pub(super) fn start(script: Vec<Answer>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::<Mutex<Vec<String>>>::default();
        let asked = Arc::clone(&requests);
        thread::spawn(move || {
            for answer in script {
                let Ok((stream, _)) = listener.accept() else { return };
                let request = read_head(&stream);
                asked.lock().unwrap().push(request.clone());
                // A client that goes away in the middle is part of some scripts.
                let _ = respond(stream, &request, answer, address);
            }
        });
        Self { address, requests }
    }

    /// The URL of a path.
    pub(super) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Its host and port.
    pub(super) fn host(&self) -> String {
        self.address.to_string()
    }

    /// The heads of all requests, with header names in lower case.
    pub(super) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

fn read_head(stream: &TcpStream) -> String {
    let mut head = String::new();
    for line in BufReader::new(stream).lines().map_while(Result::ok).take_while(|line| !line.is_empty()) {
        match line.split_once(": ") {
            Some((name, value)) => head.push_str(&format!("{}: {value}\n", name.to_lowercase())),
            None => head.push_str(&format!("{line}\n")),
        }
    }
    head
}

fn respond(mut stream: TcpStream, request: &str, answer: Answer, address: SocketAddr) -> std::io::Result<()> {
    let mut head = |status: u16, headers: String| {
        write!(stream, "HTTP/1.1 {status} x\r\nconnection: close\r\n{headers}\r\n")?;
        stream.try_clone()
    };
    match answer {
        Answer::Whole(bytes) => head(200, format!("content-length: {}\r\n", bytes.len()))?.write_all(&bytes),
        Answer::Cut { bytes, after, etag } => {
            let etag = etag.map_or_else(String::new, |etag| format!("etag: {etag}\r\n"));
            head(200, format!("content-length: {}\r\n{etag}", bytes.len()))?.write_all(&bytes[..after])
        }
        Answer::Rest(bytes) => {
            let from = request.split_once("range: bytes=").map_or("0", |(_, rest)| rest);
            let from: usize = from.split('-').next().unwrap_or_default().parse().unwrap();
            let range = format!("content-range: bytes {from}-{}/{}\r\n", bytes.len() - 1, bytes.len());
            head(206, format!("content-length: {}\r\n{range}", bytes.len() - from))?.write_all(&bytes[from..])
        }
        Answer::Drip(bytes) => {
            let mut out = head(200, format!("content-length: {}\r\n", bytes.len()))?;
            for byte in bytes {
                out.write_all(&[byte])?;
                thread::sleep(Duration::from_millis(50));
            }
            Ok(())
        }
        Answer::Claims(bytes) => {
            let mut out = head(200, format!("content-length: {bytes}\r\n"))?;
            let block = vec![0; 1 << 20];
            (0..bytes >> 20).try_for_each(|_| out.write_all(&block))?;
            out.write_all(&block)
        }
        Answer::Status(status) => head(status, "content-length: 0\r\n".to_owned()).map(drop),
        Answer::Redirect(to) => head(302, format!("content-length: 0\r\nlocation: {to}\r\n")).map(drop),
        Answer::Challenge => {
            let asked =
                format!("www-authenticate: Bearer realm=\"http://{address}/token\",service=\"r\"\r\n");
            head(401, format!("content-length: 0\r\n{asked}")).map(drop)
        }
        Answer::Hangup => Ok(()),
        Answer::Hang => {
            thread::spawn(move || {
                thread::sleep(Duration::from_secs(120));
                drop(stream);
            });
            Ok(())
        }
    }
}
