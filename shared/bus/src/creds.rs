//! Reads the credentials of a process: a file with a JWT and the seed that proves it, a folder with the two in files of
//! their own, or the user in the address. They are never printed.

use std::io;
use std::path::Path;

use async_nats::{Auth, ConnectOptions, ServerAddr};
use muster_contract::Timestamp;
use muster_contract::token::TokenTerm;
use muster_identity::requester::Signers;
use muster_identity::{Role, TokenClaims, creds, jwt, roles};
use nkeys::KeyPair;

/// The file of the seed in a folder. The seed never leaves the machine that made it.
pub const SEED_FILE: &str = "seed";
/// The file of the JWT in a folder.
pub const TOKEN_FILE: &str = "user.jwt";

/// The JWT and the key of credentials.
pub(crate) struct Creds {
    jwt: String,
    key: KeyPair,
}

/// Reads credentials: a file, or a folder with [`SEED_FILE`] and [`TOKEN_FILE`].
pub(crate) fn read(path: &Path) -> io::Result<Creds> {
    if path.is_dir() { read_folder(path) } else { read_file(path) }
}

fn read_file(path: &Path) -> io::Result<Creds> {
    let text = std::fs::read_to_string(path)?;
    let jwt = creds::token(&text).ok_or_else(|| invalid("it has no NATS USER JWT block"))?;
    let seed = creds::seed(&text).ok_or_else(|| invalid("it has no USER NKEY SEED block"))?;
    let key = KeyPair::from_seed(seed).map_err(|_| invalid("its USER NKEY SEED is not a seed"))?;
    Ok(Creds { jwt: jwt.to_owned(), key })
}

fn read_folder(path: &Path) -> io::Result<Creds> {
    let part = |name: &str| {
        let read = std::fs::read_to_string(path.join(name));
        read.map_err(|error| io::Error::new(error.kind(), format!("{name} in it: {error}")))
    };
    let seed = part(SEED_FILE)?;
    let key = KeyPair::from_seed(seed.trim()).map_err(|_| invalid("the seed in it is not a seed"))?;
    let jwt = part(TOKEN_FILE)?.trim().to_owned();
    Ok(Creds { jwt, key })
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

impl Creds {
    /// The claims of the JWT.
    ///
    /// # Errors
    /// It is no JWT, or it is for another key than the seed's.
    pub(crate) fn claims(&self) -> io::Result<TokenClaims> {
        let claims =
            jwt::read(&self.jwt).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        if claims.sub == self.key.public_key() {
            Ok(claims)
        } else {
            Err(invalid("its JWT is for another key than its seed's"))
        }
    }
}

/// Signs the server's nonce with the current content of the file.
pub(crate) fn sign(path: &Path, nonce: &[u8]) -> io::Result<Auth> {
    let creds = read(path)?;
    let mut auth = Auth::new();
    auth.signature = Some(creds.key.sign(nonce).map_err(io::Error::other)?);
    auth.jwt = Some(creds.jwt);
    Ok(auth)
}

/// The term of the JWT in credentials; `None` if it does not end.
///
/// # Errors
/// They cannot be read, or have no JWT for their seed.
pub fn term(path: &Path) -> io::Result<Option<TokenTerm>> {
    let claims = read(path)?.claims()?;
    let time = |seconds| Timestamp::from_second(i64::try_from(seconds).ok()?).ok();
    let (issued_at, ends_at) = (time(claims.iat), claims.exp.and_then(time));
    Ok(issued_at.zip(ends_at).map(|(issued_at, ends_at)| TokenTerm { issued_at, ends_at }))
}

/// The inbox that the rights of the credentials' role allow; `None` if they are of no role of Muster.
pub(crate) fn inbox(path: &Path) -> Option<String> {
    let claims = read(path).ok()?.claims().ok()?;
    match (claims.tag("role")?, claims.tag("site"), claims.tag("device")) {
        ("device", Some(site), Some(device)) => Some(format!("_INBOX_{site}_{device}")),
        _ => Some(roles::inbox(&claims.sub)),
    }
}

/// The role of the credentials; `None` if they cannot be read or are of no role of Muster.
pub(crate) fn role(path: &Path) -> Option<Role> {
    Role::of(read(path).ok()?.claims().ok()?.tag("role")?)
}

/// The signing keys of roles that a service's credentials name; empty if they cannot be read.
pub(crate) fn signers(path: &Path) -> Signers {
    let claims = read(path).and_then(|creds| creds.claims());
    claims.as_ref().map(Signers::of).unwrap_or_default()
}

/// Adds the `user:password@` or `token@` of the first address that has one; the library ignores them.
pub(crate) fn from_address(options: ConnectOptions, servers: &[ServerAddr]) -> ConnectOptions {
    let named = servers.iter().find_map(|server| Some((server.username()?, server.password())));
    match named {
        Some((user, Some(password))) => options.user_and_password(decoded(user), decoded(password)),
        Some((token, None)) => options.token(decoded(token)),
        None => options,
    }
}

/// Decodes percent-encoded characters such as `%40`.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let escaped = (first == b'%').then(|| after.get(..2)).flatten();
        let value = escaped.and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        bytes.push(value.unwrap_or(first));
        rest = if value.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        file
    }

    #[test]
    fn a_nonce_is_signed_with_the_seed_of_the_file() {
        let key = KeyPair::new_user();
        let text = creds::to_text("abc.def.ghi", &key.seed().unwrap());
        let auth = sign(file(&text).path(), b"nonce").unwrap();
        assert_eq!(auth.jwt.as_deref(), Some("abc.def.ghi"));
        key.verify(b"nonce", &auth.signature.unwrap()).unwrap();
    }

    #[test]
    fn a_folder_holds_seed_and_token_apart() {
        let (key, folder) = (KeyPair::new_user(), tempfile::tempdir().unwrap());
        std::fs::write(folder.path().join(SEED_FILE), key.seed().unwrap() + "\n").unwrap();
        let missing = read(folder.path()).err().unwrap().to_string();
        assert!(missing.contains(TOKEN_FILE), "{missing}");
        std::fs::write(folder.path().join(TOKEN_FILE), "abc.def.ghi\n").unwrap();
        let auth = sign(folder.path(), b"nonce").unwrap();
        assert_eq!(auth.jwt.as_deref(), Some("abc.def.ghi"));
        key.verify(b"nonce", &auth.signature.unwrap()).unwrap();
    }

    #[test]
    fn an_address_may_carry_any_character() {
        for (text, plain) in [("s3cr%40t", "s3cr@t"), ("100%", "100%"), ("%zz%2", "%zz%2"), ("%C3%BC", "ü")]
        {
            assert_eq!(decoded(text), plain);
        }
    }

    #[test]
    fn an_error_of_a_credentials_file_names_what_is_missing() {
        let whole = "-----BEGIN NATS USER JWT-----\na.b.c\n------END\n-----BEGIN USER NKEY SEED-----\nSU\n------END\n";
        for (text, reason) in [("", "JWT"), (&whole[..45], "NKEY SEED"), (whole, "not a seed")] {
            let error = read(file(text).path()).err().unwrap().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}
