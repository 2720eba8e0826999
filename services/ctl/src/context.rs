//! Contexts of the nats CLI (ADR-21): how to reach a server, by name, from the file that the nats CLI itself reads.
//!
//! Only what `muster` can honour is taken; a context that needs more is refused, never half used.

use std::path::{Path, PathBuf};

use muster_bus::{ClientCertificate, Login};
use serde_json::{Map, Value};

/// The name that stands for the context selected with `nats context select`.
pub(crate) const SELECTED: &str = "-";

/// Keys that change nothing about how a server is reached.
const DECORATION: [&str; 3] = ["description", "color_scheme", "jetstream_event_prefix"];
/// Keys that are taken.
const TAKEN: [&str; 10] =
    ["url", "creds", "ca", "inbox_prefix", "user", "password", "token", "nkey", "cert", "key"];

/// The content of a context.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Context {
    /// Servers, separated by commas.
    pub url: Option<String>,
    /// A `.creds` file.
    pub creds: Option<PathBuf>,
    /// How to log in without credentials.
    pub login: Option<Login>,
    /// A certificate of the client's own.
    pub client_certificate: Option<ClientCertificate>,
    /// Certificates to trust.
    pub tls_ca: Option<PathBuf>,
    /// The inbox for replies.
    pub inbox_prefix: Option<String>,
}

/// Why a context cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ContextError {
    /// There is no home directory to look in.
    #[error("neither XDG_CONFIG_HOME nor HOME is set, so there is no folder of nats contexts")]
    NoHome,
    /// The name is no file name.
    #[error("'{0}' is not the name of a nats context")]
    Name(String),
    /// No context is selected.
    #[error("no nats context is selected ({path}); select one with `nats context select`")]
    NoneSelected {
        /// The file that would name it.
        path: PathBuf,
        /// Why it cannot be read.
        #[source]
        source: std::io::Error,
    },
    /// The file cannot be read.
    #[error("cannot read the nats context '{name}' ({path}); `nats context ls` lists them")]
    Read {
        /// The context.
        name: String,
        /// Its file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The file is no context.
    #[error("the nats context '{name}' ({path}) is not a JSON object")]
    Shape {
        /// The context.
        name: String,
        /// Its file.
        path: PathBuf,
    },
    /// The context asks for something that is not supported.
    #[error(
        "the nats context '{name}' sets {keys}, which muster does not support; \
         use a context without them, or --nats-url and --creds"
    )]
    Unsupported {
        /// The context.
        name: String,
        /// The setting.
        keys: String,
    },
    /// The context has one half of something.
    #[error("the nats context '{name}' sets {set} without {missing}: set both or neither")]
    Half {
        /// The context.
        name: String,
        /// The setting.
        set: &'static str,
        /// The missing setting.
        missing: &'static str,
    },
}

/// The directory of the nats CLI's settings.
#[derive(Debug, Clone)]
pub(crate) struct Folders {
    /// `XDG_CONFIG_HOME`.
    pub config_home: Option<PathBuf>,
    /// `HOME`.
    pub home: Option<PathBuf>,
}

impl Folders {
    /// Reads a context by name, or the selected one by [`SELECTED`].
    ///
    /// # Errors
    /// When there is none, or it has a setting that is not supported.
    pub(crate) fn context(&self, name: &str) -> Result<Context, ContextError> {
        let nats = self.nats().ok_or(ContextError::NoHome)?;
        let name = if name == SELECTED { selected(&nats)? } else { name.to_owned() };
        let plain = !name.is_empty() && !name.contains(['/', '\\']) && !name.contains("..");
        if !plain {
            return Err(ContextError::Name(name));
        }
        let path = nats.join("context").join(format!("{name}.json"));
        let text = std::fs::read_to_string(&path).map_err(|source| ContextError::Read {
            name: name.clone(),
            path: path.clone(),
            source,
        })?;
        match serde_json::from_str(&text) {
            Ok(Value::Object(settings)) => self.understood(&name, &settings),
            _ => Err(ContextError::Shape { name, path }),
        }
    }

    fn nats(&self) -> Option<PathBuf> {
        let config = self.config_home.clone().filter(|path| path.is_absolute());
        let config = config.or_else(|| self.home.as_ref().map(|home| home.join(".config")))?;
        Some(config.join("nats"))
    }

    fn understood(&self, name: &str, settings: &Map<String, Value>) -> Result<Context, ContextError> {
        let known = |key: &str| DECORATION.contains(&key) || TAKEN.contains(&key);
        let strange: Vec<_> = settings
            .iter()
            .filter(|(key, value)| !known(key) && is_set(value))
            .map(|(key, _)| key.as_str())
            .collect();
        if !strange.is_empty() {
            return Err(ContextError::Unsupported { name: name.to_owned(), keys: strange.join(", ") });
        }
        let text = |key: &str| settings.get(key)?.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        let path = |key: &str| text(key).map(|path| self.expanded(&path));
        let both = |one: (&'static str, bool), other: (&'static str, bool)| match (one, other) {
            ((set, true), (missing, false)) | ((missing, false), (set, true)) => {
                Err(ContextError::Half { name: name.to_owned(), set, missing })
            }
            _ => Ok(()),
        };
        let (certificate, key) = (path("cert"), path("key"));
        both(("cert", certificate.is_some()), ("key", key.is_some()))?;
        both(("user", text("user").is_some()), ("password", text("password").is_some()))?;
        Ok(Context {
            url: text("url"),
            creds: path("creds").filter(|_| text("user").is_none()),
            login: login(text("user").zip(text("password")), path("nkey"), text("token")),
            client_certificate: certificate
                .zip(key)
                .map(|(certificate, key)| ClientCertificate { certificate, key }),
            tls_ca: path("ca"),
            inbox_prefix: text("inbox_prefix"),
        })
    }

    fn expanded(&self, path: &str) -> PathBuf {
        match (path.strip_prefix("~/"), &self.home) {
            (Some(rest), Some(home)) => home.join(rest),
            _ => PathBuf::from(path),
        }
    }
}

/// The order in which the nats CLI looks at them.
fn login(user: Option<(String, String)>, nkey: Option<PathBuf>, token: Option<String>) -> Option<Login> {
    let user = user.map(|(user, password)| Login::Password { user, password });
    user.or_else(|| nkey.map(Login::Nkey)).or_else(|| token.map(Login::Token))
}

fn selected(nats: &Path) -> Result<String, ContextError> {
    let path = nats.join("context.txt");
    match std::fs::read_to_string(&path) {
        Ok(name) => Ok(name.trim().to_owned()),
        Err(source) => Err(ContextError::NoneSelected { path, source }),
    }
}

/// The nats CLI writes every key, most of them empty.
fn is_set(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(set) => *set,
        Value::String(text) => !text.is_empty(),
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folders(files: &[(&str, &str)]) -> (tempfile::TempDir, Folders) {
        let home = tempfile::tempdir().unwrap();
        let nats = home.path().join(".config/nats");
        std::fs::create_dir_all(nats.join("context")).unwrap();
        for (name, text) in files {
            std::fs::write(nats.join(name), text).unwrap();
        }
        let folders = Folders { config_home: None, home: Some(home.path().to_owned()) };
        (home, folders)
    }

    #[test]
    fn a_context_is_read_as_the_nats_cli_writes_it() {
        let text = r#"{"description": "the hub", "url": "nats://hub:4222", "token": "", "user": "", "password": "",
            "creds": "~/hub.creds", "nkey": "", "cert": "", "key": "", "ca": "", "nsc": "", "jetstream_domain": "",
            "inbox_prefix": "_INBOX_me", "user_jwt": "", "color_scheme": "", "tls_first": false}"#;
        let (home, folders) = folders(&[("context/hub.json", text), ("context.txt", "hub\n")]);
        let context = folders.context("hub").unwrap();
        assert_eq!(context.url.as_deref(), Some("nats://hub:4222"));
        assert_eq!(context.creds, Some(home.path().join("hub.creds")));
        assert_eq!((context.tls_ca.as_deref(), context.inbox_prefix.as_deref()), (None, Some("_INBOX_me")));
        assert_eq!(folders.context(SELECTED).unwrap(), context);
    }

    #[test]
    fn a_context_may_log_in_in_four_ways() {
        let password = Login::Password { user: "me".to_owned(), password: "s3cret".to_owned() };
        let key = "~/me.nk".to_owned();
        let (home, folders) = folders(&[
            (
                "context/user.json",
                r#"{"user": "me", "password": "s3cret", "creds": "/a.creds", "nkey": "/a.nk"}"#,
            ),
            ("context/token.json", r#"{"token": "s3cret"}"#),
            ("context/nkey.json", &format!(r#"{{"nkey": "{key}", "token": "s3cret"}}"#)),
            ("context/cert.json", r#"{"cert": "~/me.pem", "key": "/me.key"}"#),
        ]);
        let context = |name: &str| folders.context(name).unwrap();
        assert_eq!((context("user").login, context("user").creds), (Some(password), None));
        assert_eq!(context("token").login, Some(Login::Token("s3cret".to_owned())));
        assert_eq!(context("nkey").login, Some(Login::Nkey(home.path().join("me.nk"))));
        let certificate = home.path().join("me.pem");
        let own = ClientCertificate { certificate, key: "/me.key".into() };
        assert_eq!(context("cert").client_certificate, Some(own));
    }

    #[test]
    fn xdg_config_home_goes_first() {
        let (home, _) = folders(&[("context/a.json", r#"{"url": "nats://a"}"#)]);
        let config_home = Some(home.path().join(".config"));
        let there = Folders { config_home, home: Some("/nowhere".into()) };
        assert_eq!(there.context("a").unwrap().url.as_deref(), Some("nats://a"));
    }

    #[test]
    fn what_cannot_be_honoured_is_refused_by_name() {
        let files = [
            ("context/login.json", r#"{"url": "nats://a", "user_jwt": "secret", "nsc": "nsc://a"}"#),
            ("context/half.json", r#"{"url": "nats://a", "password": "secret"}"#),
            ("context/cert.json", r#"{"url": "nats://a", "cert": "/a.pem"}"#),
            ("context/list.json", "[]"),
        ];
        let (_home, folders) = folders(&files);
        for (name, expected) in [
            ("login", "sets nsc, user_jwt, which"),
            ("half", "sets password without user"),
            ("cert", "sets cert without key"),
            ("list", "is not a JSON object"),
            ("absent", "cannot read the nats context 'absent'"),
            ("../login", "is not the name of a nats context"),
            (SELECTED, "no nats context is selected"),
        ] {
            let refusal = folders.context(name).unwrap_err().to_string();
            assert!(refusal.contains(expected) && !refusal.contains("secret"), "{refusal}");
        }
        let homeless = Folders { config_home: None, home: None };
        assert!(matches!(homeless.context("login"), Err(ContextError::NoHome)));
    }
}
