//! A small OpenID Connect provider of the tests: description, keys, authorization with PKCE, and a token endpoint that accepts a
//! code once. It logs every browser in without a question, with the claims that the test sets.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use data_encoding::{BASE32_NOPAD, BASE64, BASE64URL_NOPAD, HEXLOWER};
use muster_contract::Timestamp;
use muster_contract::canonical::Digest;
use nkeys::KeyPair;
use serde_json::{Value, json};

/// The name of the client.
pub const CLIENT: &str = "muster";
/// The client's secret.
pub const SECRET: &str = "client secret of the tests";

/// A provider that runs until the test ends.
#[derive(Clone)]
pub struct Provider {
    addr: SocketAddr,
    state: Arc<Mutex<State>>,
}

struct State {
    /// Signs tokens.
    key: KeyPair,
    /// The published key; another one than `key` while a test wants tokens with an unknown key.
    published: String,
    /// Claims that add to the usual ones or replace them.
    claims: Value,
    /// Unused codes, each with challenge, nonce and redirect address.
    codes: BTreeMap<String, [String; 3]>,
    /// Requests to the token endpoint that were refused.
    refused: usize,
}

impl Provider {
    /// Starts it.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let key = KeyPair::new_user();
        let published = key.public_key();
        let state = State { key, published, claims: json!({}), codes: BTreeMap::new(), refused: 0 };
        let provider = Self { addr, state: Arc::new(Mutex::new(state)) };
        let serving = provider.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A client may close its connection early.
                let _ = serving.serve(&stream);
            }
        });
        provider
    }

    /// Its address.
    pub fn issuer(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Sets the claims of tokens from now on.
    pub fn set_claims(&self, claims: Value) {
        self.state.lock().unwrap().claims = claims;
    }

    /// Publishes the key that signs, or another one, from now on.
    pub fn set_published(&self, is_published: bool) {
        let mut state = self.state.lock().unwrap();
        let other = KeyPair::new_user();
        state.published = if is_published { state.key.public_key() } else { other.public_key() };
    }

    /// Requests to the token endpoint that were refused.
    pub fn refused(&self) -> usize {
        self.state.lock().unwrap().refused
    }

    fn serve(&self, stream: &TcpStream) -> std::io::Result<()> {
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let target = line.split(' ').nth(1).unwrap_or_default().to_owned();
        let mut headers = BTreeMap::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            let Some((name, value)) = line.split_once(':') else { break };
            headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
        let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        let answer = match path {
            "/.well-known/openid-configuration" => ok(&self.description()),
            "/jwks" => ok(&self.keys()),
            "/authorize" => self.authorize(&pairs(query.as_bytes())),
            "/token" => self.token(&pairs(&body), headers.get("authorization").map(String::as_str)),
            _ => "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n".to_owned() + "Connection: close\r\n\r\n",
        };
        (&*stream).write_all(answer.as_bytes())
    }

    fn description(&self) -> Value {
        let issuer = self.issuer();
        json!({
            "issuer": issuer, "authorization_endpoint": format!("{issuer}/authorize"),
            "token_endpoint": format!("{issuer}/token"), "jwks_uri": format!("{issuer}/jwks"),
        })
    }

    fn keys(&self) -> Value {
        let state = self.state.lock().unwrap();
        // A public key of NATS is a kind, the key and a checksum.
        let raw = BASE32_NOPAD.decode(state.published.as_bytes()).unwrap();
        let x = BASE64URL_NOPAD.encode(&raw[1..33]);
        json!({ "keys": [{ "kty": "OKP", "crv": "Ed25519", "use": "sig", "kid": state.published, "x": x }] })
    }

    /// Sends the browser back with a code.
    fn authorize(&self, query: &BTreeMap<String, String>) -> String {
        let of = |name: &str| query.get(name).cloned().unwrap_or_default();
        let is_good = of("response_type") == "code"
            && of("client_id") == CLIENT
            && of("code_challenge_method") == "S256";
        assert!(is_good && of("scope").contains("openid"), "{query:?}");
        let code = KeyPair::new_user().public_key();
        let waiting = [of("code_challenge"), of("nonce"), of("redirect_uri")];
        self.state.lock().unwrap().codes.insert(code.clone(), waiting);
        let (back, state) = (of("redirect_uri"), of("state"));
        format!(
            "HTTP/1.1 302 Found\r\nLocation: {back}?code={code}&state={state}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        )
    }

    fn token(&self, form: &BTreeMap<String, String>, authorization: Option<&str>) -> String {
        let mut state = self.state.lock().unwrap();
        let of = |name: &str| form.get(name).cloned().unwrap_or_default();
        let waiting = state.codes.remove(&of("code"));
        let client = format!("{CLIENT}:{}", SECRET.replace(' ', "+"));
        let is_client = authorization == Some(&*format!("Basic {}", BASE64.encode(client.as_bytes())));
        let found = waiting.filter(|[challenge, _, redirect]| {
            is_client && *challenge == challenge_of(&of("code_verifier")) && *redirect == of("redirect_uri")
        });
        let Some([_, nonce, _]) = found else {
            state.refused += 1;
            return "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_owned();
        };
        let now = Timestamp::now().as_second();
        let mut claims = json!({
            "iss": self.issuer(), "sub": "4711", "aud": CLIENT, "iat": now, "exp": now + 300, "nonce": nonce,
            "preferred_username": "bea",
        });
        for (name, value) in state.claims.as_object().unwrap() {
            claims[name] = value.clone();
        }
        let header = json!({ "alg": "EdDSA", "kid": state.published });
        let part = |value: &Value| BASE64URL_NOPAD.encode(value.to_string().as_bytes());
        let signed = format!("{}.{}", part(&header), part(&claims));
        let signature = BASE64URL_NOPAD.encode(&state.key.sign(signed.as_bytes()).unwrap());
        ok(
            &json!({ "token_type": "Bearer", "access_token": "a", "id_token": format!("{signed}.{signature}") }),
        )
    }
}

fn challenge_of(verifier: &str) -> String {
    let digest = Digest::of_bytes(verifier.as_bytes()).to_string();
    let hex = digest.rsplit(':').next().unwrap();
    BASE64URL_NOPAD.encode(&HEXLOWER.decode(hex.as_bytes()).unwrap())
}

fn pairs(text: &[u8]) -> BTreeMap<String, String> {
    form_urlencoded::parse(text).into_owned().collect()
}

fn ok(value: &Value) -> String {
    let body = value.to_string();
    let length = body.len();
    format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
}
