//! As much of an HTTP/1.1 client as the bench needs: one connection that asks, and reads a whole answer or its events. It knows
//! answers with a length and chunked ones.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// Bytes of a frame in which its id stands: `retry` and `id` come before the data.
const ID_WITHIN: usize = 80;

/// A connection to the gateway.
pub(crate) struct Client {
    stream: BufReader<TcpStream>,
    addr: SocketAddr,
    line: String,
    body: Vec<u8>,
}

impl Client {
    pub(crate) async fn connect(addr: SocketAddr) -> io::Result<Self> {
        let stream = BufReader::new(TcpStream::connect(addr).await?);
        Ok(Self { stream, addr, line: String::new(), body: Vec::new() })
    }

    /// Asks for a path and reads the whole answer; its bytes.
    pub(crate) async fn get(&mut self, path: &str) -> io::Result<usize> {
        match self.ask(path).await? {
            Some(length) => {
                self.body.resize(length, 0);
                self.stream.read_exact(&mut self.body).await?;
                Ok(length)
            }
            None => {
                let mut bytes = 0;
                while self.chunk().await? {
                    bytes += self.body.len();
                }
                Ok(bytes)
            }
        }
    }

    /// Asks for events; [`Self::event`] reads them.
    pub(crate) async fn follow(&mut self, path: &str) -> io::Result<()> {
        match self.ask(path).await? {
            None => Ok(()),
            Some(_) => Err(io::Error::other("an answer with a length is no event stream")),
        }
    }

    /// The id of the next event that has one: the sequence of its view.
    pub(crate) async fn event(&mut self) -> io::Result<u64> {
        while self.chunk().await? {
            let head = &self.body[..self.body.len().min(ID_WITHIN)];
            let id = std::str::from_utf8(head)
                .ok()
                .and_then(|head| head.lines().find_map(|line| line.strip_prefix("id: ")));
            if let Some(id) = id.and_then(|id| id.parse().ok()) {
                return Ok(id);
            }
        }
        Err(io::ErrorKind::UnexpectedEof.into())
    }

    /// Bytes of the last event.
    pub(crate) const fn frame_bytes(&self) -> usize {
        self.body.len()
    }

    /// Sends a request and reads the head of its answer; its length, or `None` if it is chunked.
    async fn ask(&mut self, path: &str) -> io::Result<Option<usize>> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.addr);
        self.stream.write_all(request.as_bytes()).await?;
        let (mut length, mut status) = (None, String::new());
        loop {
            self.read_line().await?;
            let line = self.line.trim_end();
            if line.is_empty() {
                break;
            }
            if status.is_empty() {
                line.clone_into(&mut status);
            } else if let Some(text) = line.strip_prefix("content-length: ") {
                length = Some(text.parse().map_err(io::Error::other)?);
            }
        }
        if status.contains(" 200 ") { Ok(length) } else { Err(io::Error::other(format!("{path}: {status}"))) }
    }

    /// Reads a chunk into the body; false at the end.
    async fn chunk(&mut self) -> io::Result<bool> {
        self.read_line().await?;
        let size = usize::from_str_radix(self.line.trim_end(), 16).map_err(io::Error::other)?;
        self.body.resize(size + 2, 0);
        self.stream.read_exact(&mut self.body).await?;
        self.body.truncate(size);
        Ok(size > 0)
    }

    async fn read_line(&mut self) -> io::Result<()> {
        self.line.clear();
        match self.stream.read_line(&mut self.line).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }
}
