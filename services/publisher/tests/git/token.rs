//! The token of a private repository, against an HTTP server that speaks git's protocol through the real
//! `git upload-pack`, asks for a password and, while git waits, looks for the token where it must not be.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use muster_publisher::git::Repository;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;

use crate::repository::Source;

/// A server for one repository that accepts requests with the password.
#[derive(Clone)]
struct Server {
    root: PathBuf,
    /// The accepted `user:password`.
    login: Arc<Mutex<String>>,
    /// Processes seen with the password in their arguments or their environment.
    leaks: Arc<Mutex<Vec<String>>>,
    /// Times that a git was seen which knows where the password is: the proof that the search sees something.
    seen: Arc<Mutex<usize>>,
}

impl Server {
    async fn start(root: &Path, login: &str) -> (Self, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/source", listener.local_addr().unwrap());
        let login = Arc::new(Mutex::new(login.to_owned()));
        let server = Self { root: root.to_owned(), login, leaks: Arc::default(), seen: Arc::default() };
        let serving = server.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serving.clone().connection(stream));
            }
        });
        (server, url)
    }

    async fn connection(self, stream: TcpStream) {
        let mut stream = BufReader::new(stream);
        while let Some(request) = Request::read(&mut stream).await {
            let login = self.login.lock().unwrap().clone();
            self.look_for_leaks(login.split_once(':').unwrap().1);
            let known = request.header("authorization").is_some_and(|said| said == basic(&login));
            let (status, kind, body) = if known {
                self.answer(&request).await
            } else {
                ("401 Unauthorized", String::new(), Vec::new())
            };
            let head = format!(
                "HTTP/1.1 {status}\r\nWWW-Authenticate: Basic realm=\"fleet\"\r\nContent-Type: {kind}\r\n\
                 Content-Length: {}\r\n\r\n",
                body.len()
            );
            if stream.write_all(head.as_bytes()).await.is_err() || stream.write_all(&body).await.is_err() {
                return;
            }
        }
    }

    async fn answer(&self, request: &Request) -> (&'static str, String, Vec<u8>) {
        let advertise = request.line.starts_with("GET ");
        let mut command = Command::new("git");
        command.args(["upload-pack", "--stateless-rpc"]);
        if advertise {
            command.arg("--http-backend-info-refs");
        }
        command.arg(&self.root).stdin(Stdio::piped()).stdout(Stdio::piped());
        if let Some(protocol) = request.header("git-protocol") {
            command.env("GIT_PROTOCOL", protocol);
        }
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(&request.body).await.unwrap();
        let said = child.wait_with_output().await.unwrap().stdout;
        let kind = if advertise { "advertisement" } else { "result" };
        let mut body = if advertise { b"001e# service=git-upload-pack\n0000".to_vec() } else { Vec::new() };
        body.extend(said);
        ("200 OK", format!("application/x-git-upload-pack-{kind}"), body)
    }

    fn look_for_leaks(&self, password: &str) {
        for process in std::fs::read_dir("/proc").unwrap().flatten() {
            for what in ["cmdline", "environ"] {
                let said = std::fs::read(process.path().join(what)).unwrap_or_default();
                let holds = |text: &str| said.windows(text.len()).any(|part| part == text.as_bytes());
                *self.seen.lock().unwrap() += usize::from(holds("TOKEN_PATH="));
                if holds(password) {
                    self.leaks.lock().unwrap().push(format!("{} of {:?}", what, process.path()));
                }
            }
        }
    }
}

struct Request {
    line: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Request {
    async fn read(stream: &mut BufReader<TcpStream>) -> Option<Self> {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line).await.ok()? == 0 {
                return None;
            }
            match line.trim_end() {
                "" => break,
                line => lines.push(line.to_owned()),
            }
        }
        let header = |line: &String| {
            let (name, value) = line.split_once(':')?;
            Some((name.to_ascii_lowercase(), value.trim().to_owned()))
        };
        let headers = lines[1..].iter().filter_map(header).collect();
        let mut request = Self { line: lines[0].clone(), headers, body: Vec::new() };
        let length = request.header("content-length").map_or(0, |length| length.parse().unwrap());
        request.body.resize(length, 0);
        stream.read_exact(&mut request.body).await.ok()?;
        Some(request)
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

fn basic(login: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = "Basic ".to_owned();
    for group in login.as_bytes().chunks(3) {
        let bits =
            group.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - group.len()));
        for place in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * place) & 63) as usize] as char;
            text.push(if place <= group.len() { digit } else { '=' });
        }
    }
    text
}

fn repository(url: &str, token: &Path, data: &Path) -> Repository {
    Repository::new(url.parse().unwrap(), "main".parse().unwrap(), Some(token.to_owned()), data)
}

#[tokio::test]
async fn a_token_is_read_for_each_fetch_and_is_stored_nowhere_else() {
    let (source, data) = (Source::new(), tempfile::tempdir().unwrap());
    source.write("fleet/a.yaml", "one");
    let first = source.commit();
    let token = data.path().join("the token's file");
    std::fs::write(&token, "secret-number-one\n").unwrap();
    let (server, url) = Server::start(source.root(), "x-access-token:secret-number-one").await;
    let repository = repository(&url, &token, data.path());
    assert_eq!(repository.poll(None).await.unwrap().unwrap().revision, first);

    "x-access-token:number-two-'; echo $x".clone_into(&mut server.login.lock().unwrap());
    let refused = repository.poll(Some(&first)).await.unwrap_err().to_string();
    assert!(refused.contains("Authentication failed") && refused.contains("--git-token-file"), "{refused}");
    assert!(!refused.contains("secret"), "{refused}");

    std::fs::write(&token, "number-two-'; echo $x").unwrap();
    source.write("fleet/a.yaml", "two");
    let second = source.commit();
    assert_eq!(repository.poll(Some(&first)).await.unwrap().unwrap().revision, second);
    assert_eq!(*server.leaks.lock().unwrap(), Vec::<String>::new());
    assert!(*server.seen.lock().unwrap() > 0, "the search for leaks saw no git at all");
}

#[tokio::test]
async fn the_user_of_the_address_is_kept() {
    let (source, data) = (Source::new(), tempfile::tempdir().unwrap());
    let head = source.commit();
    let token = data.path().join("token");
    std::fs::write(&token, "secret").unwrap();
    let (_server, url) = Server::start(source.root(), "someone:secret").await;
    let repository = repository(&url.replace("http://", "http://someone@"), &token, data.path());
    assert_eq!(repository.poll(None).await.unwrap().unwrap().revision, head);
}

#[tokio::test]
async fn a_token_that_cannot_be_read_is_named_before_git_is_asked() {
    let data = tempfile::tempdir().unwrap();
    let token = data.path().join("token");
    let repository = repository("https://git.invalid/fleet", &token, data.path());
    let refused = repository.poll(None).await.unwrap_err().to_string();
    assert!(refused.contains("--git-token-file") && refused.contains("token"), "{refused}");
    std::fs::write(&token, " \n").unwrap();
    assert!(repository.poll(None).await.is_err());
}
