//! Connects to a hub: `--url`, `--creds` and `--tls-ca`, or `--context NAME`, a context of the nats CLI.
//!
//! A hub with accounts sends answers to the inbox of the user's own key alone; the key is in the credentials file. Each
//! refusal of the server is printed with its subject. Copy this file beside the example that you copy.

#![allow(clippy::print_stderr, reason = "its programs are for a terminal")]

use std::error::Error;
use std::path::PathBuf;

use async_nats::{Client, ConnectOptions, Event};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use clap::Parser;
use serde_json::{Value, json};

/// The result of a program that ends with its first error.
pub type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// The options that every example takes.
#[derive(Debug, Parser)]
pub struct HubArgs {
    /// Address of the hub [default: nats://127.0.0.1:4222]
    #[arg(long)]
    pub url: Option<String>,
    /// Credentials file; without one the hub must be open
    #[arg(long)]
    pub creds: Option<PathBuf>,
    /// Certificates (PEM) of the authority that signed the hub's certificate
    #[arg(long)]
    pub tls_ca: Option<PathBuf>,
    /// Context of the nats CLI; the other options override it
    #[arg(long)]
    pub context: Option<String>,
}

impl HubArgs {
    /// A connection that is made again after every break. A device has an inbox of its name.
    ///
    /// # Errors
    /// A file cannot be read, or the hub cannot be reached.
    pub async fn connect(&self, inbox: Option<String>) -> Result<Client> {
        let context = self.context.as_deref().map(read_context).transpose()?.unwrap_or_default();
        let named = |name: &str| context[name].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        let url =
            self.url.clone().or_else(|| named("url")).unwrap_or_else(|| "nats://127.0.0.1:4222".to_owned());
        let creds = self.creds.clone().or_else(|| named("creds").map(PathBuf::from));
        let mut options = ConnectOptions::new().event_callback(async |event| {
            if let Event::ServerError(error) = event {
                eprintln!("{error}");
            }
        });
        let mut own_inbox = inbox.or_else(|| named("inbox_prefix"));
        if let Some(file) = &creds {
            own_inbox = Some(own_inbox.map_or_else(|| inbox_of(&std::fs::read_to_string(file)?), Ok)?);
            options = options.credentials_file(file).await?;
        }
        if let Some(prefix) = own_inbox {
            options = options.custom_inbox_prefix(prefix);
        }
        if let Some(authority) = self.tls_ca.clone().or_else(|| named("ca").map(PathBuf::from)) {
            options = options.add_root_certificates(authority).require_tls(true);
        }
        Ok(options.connect(url).await?)
    }
}

/// Reads a context of the nats CLI: `$XDG_CONFIG_HOME/nats/context/NAME.json`.
fn read_context(name: &str) -> Result<Value> {
    let home = std::env::var_os("XDG_CONFIG_HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
    let home = home.or_else(|| Some(std::env::home_dir()?.join(".config"))).ok_or("no home directory")?;
    let file = home.join("nats/context").join(format!("{name}.json"));
    Ok(serde_json::from_slice(&std::fs::read(file)?)?)
}

/// The inbox of the user's public key, which is the subject of the token in the credentials file.
fn inbox_of(creds: &str) -> Result<String> {
    let token = creds.split("JWT-----").nth(1).and_then(|rest| rest.split_whitespace().next());
    let claims =
        token.and_then(|token| token.split('.').nth(1)).ok_or("the credentials file has no token")?;
    let claims: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims)?)?;
    Ok(format!("_INBOX.{}", claims["sub"].as_str().ok_or("the token has no subject")?))
}

/// The newest document of a subject, by direct get; none before the first.
///
/// # Errors
/// The hub cannot be reached, or the document is no JSON.
pub async fn newest(client: &Client, stream: &str, subject: &str) -> Result<Option<Value>> {
    let reply = client.request(format!("$JS.API.DIRECT.GET.{stream}.{subject}"), "".into()).await?;
    Ok(if reply.status.is_some() { None } else { Some(serde_json::from_slice(&reply.payload)?) })
}

/// The answer of a service to a question.
///
/// # Errors
/// The hub cannot be reached, or the service refuses the question.
pub async fn ask(client: &Client, subject: &str, question: &Value) -> Result<Value> {
    let reply = client.request(subject.to_owned(), question.to_string().into()).await?;
    let answer: Value = serde_json::from_slice(&reply.payload)?;
    match answer["error"]["message"].as_str() {
        Some(error) => Err(format!("{subject}: {error}").into()),
        None => Ok(answer),
    }
}

/// Every change of a subscription after its last confirmed notice up to this one: `missed`, or a range that is `gone`.
///
/// # Errors
/// The hub cannot be reached, or refuses.
pub async fn missed(client: &Client, name: &str, notice: &Value) -> Result<Vec<Value>> {
    let mut question = json!({ "name": name, "to": notice["asOf"]["ledgerSeq"] });
    if notice["hubs"].is_array() {
        question["hubs"] = notice["hubs"].clone();
    }
    let mut all = Vec::new();
    loop {
        let page = match ask(client, "muster.notify.missed", &question).await {
            Err(error) if error.to_string().contains("ask again") => {
                tokio::time::sleep(std::time::Duration::from_secs(1)).await;
                continue;
            }
            page => page?,
        };
        let listed = |list: &Value| list.as_array().cloned().unwrap_or_default();
        all.extend(listed(&page["gone"]).into_iter().map(|range| json!({ "gone": range })));
        all.extend(listed(&page["changes"]).into_iter().map(|change| json!({ "missed": change })));
        if page["next"].is_null() {
            return Ok(all);
        }
        question["next"] = page["next"].clone();
    }
}

/// The digests of all views at a sequence, by key.
///
/// # Errors
/// The hub cannot be reached, or has not read so far.
pub async fn digests(client: &Client, seq: u64) -> Result<Value> {
    let mut page = ask(client, "muster.query.digests", &json!({ "atSeq": seq })).await?;
    let mut all = page["views"].as_object().cloned().unwrap_or_default();
    while let Some(after) = page["next"].as_str() {
        page = ask(client, "muster.query.digests", &json!({ "atSeq": seq, "after": after })).await?;
        all.extend(page["views"].as_object().cloned().unwrap_or_default());
    }
    Ok(Value::Object(all))
}
