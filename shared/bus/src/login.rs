//! The login of a client without credentials of Muster: one that a context of the nats CLI may name. It is never printed.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use async_nats::{Auth, AuthError, ConnectOptions};
use nkeys::KeyPair;

/// How the client authenticates.
#[derive(Clone, PartialEq, Eq)]
pub enum Login {
    /// A user of the server's configuration.
    Password {
        /// Its name.
        user: String,
        /// Its password.
        password: String,
    },
    /// A token that all clients share.
    Token(String),
    /// A file with the seed of an nkey that the server's configuration lists; read again at every connect.
    Nkey(PathBuf),
}

/// A certificate for a server that verifies its clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCertificate {
    /// The certificate's file (PEM).
    pub certificate: PathBuf,
    /// The file of its key (PEM).
    pub key: PathBuf,
}

/// Without the secrets.
impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Password { user, .. } => write!(f, "Password {{ user: {user:?}, .. }}"),
            Self::Token(_) => f.write_str("Token(..)"),
            Self::Nkey(path) => write!(f, "Nkey({path:?})"),
        }
    }
}

impl Login {
    /// Options that log in with it.
    pub(crate) fn options(&self) -> ConnectOptions {
        match self {
            Self::Password { user, password } => {
                ConnectOptions::with_user_and_password(user.clone(), password.clone())
            }
            Self::Token(token) => ConnectOptions::with_token(token.clone()),
            Self::Nkey(path) => {
                let path = path.clone();
                ConnectOptions::with_auth_callback(move |nonce| {
                    let signed = sign(&path, &nonce);
                    async move { signed.map_err(AuthError::new) }
                })
            }
        }
    }

    /// Checks that a file of the login can be read.
    ///
    /// # Errors
    /// The file, and what is wrong with it.
    pub(crate) fn check(&self) -> Result<(), (String, io::Error)> {
        match self {
            Self::Nkey(path) => {
                seed(path).map(drop).map_err(|error| (format!("the nkey {}", path.display()), error))
            }
            Self::Password { .. } | Self::Token(_) => Ok(()),
        }
    }
}

/// Signs the server's nonce with the current content of the file.
fn sign(path: &Path, nonce: &[u8]) -> io::Result<Auth> {
    let key = seed(path)?;
    let mut auth = Auth::new();
    auth.nkey = Some(key.public_key());
    auth.signature = Some(key.sign(nonce).map_err(io::Error::other)?);
    Ok(auth)
}

/// The seed of a user in a file, which may hold comments and other lines, as the nats CLI allows.
fn seed(path: &Path) -> io::Result<KeyPair> {
    let text = std::fs::read_to_string(path)?;
    let line = text.lines().map(str::trim).find(|line| line.starts_with("SU"));
    let seed = line.ok_or_else(|| invalid("it has no seed of a user (a line that begins with SU)"))?;
    KeyPair::from_seed(seed).map_err(|_| invalid("the seed in it is not a seed"))
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nonce_is_signed_with_the_key_of_the_file() {
        let (key, file) = (KeyPair::new_user(), tempfile::NamedTempFile::new().unwrap());
        std::fs::write(file.path(), format!("# mine\n{}\n", key.seed().unwrap())).unwrap();
        let auth = sign(file.path(), b"nonce").unwrap();
        assert_eq!(auth.nkey, Some(key.public_key()));
        key.verify(b"nonce", &auth.signature.unwrap()).unwrap();
    }

    #[test]
    fn a_file_without_a_seed_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for (text, reason) in [("", "no seed of a user"), ("SUXX", "not a seed")] {
            std::fs::write(file.path(), text).unwrap();
            let (what, error) = Login::Nkey(file.path().to_owned()).check().unwrap_err();
            assert!(what.contains(&file.path().display().to_string()) && error.to_string().contains(reason));
        }
    }

    #[test]
    fn no_secret_is_shown() {
        let password = Login::Password { user: "me".to_owned(), password: "s3cret".to_owned() };
        let shown = format!("{password:?} {:?}", Login::Token("s3cret".to_owned()));
        assert!(shown.contains("me") && !shown.contains("s3cret"), "{shown}");
    }
}
