//! Who we are to the server: a `.creds` file (a user's JWT and the seed that proves it), or what the address carries.
//! Never printed.

use std::io;
use std::path::Path;

use async_nats::{Auth, ConnectOptions, ServerAddr};
use nkeys::KeyPair;

/// The JWT and the key of a credentials file.
pub(crate) struct Creds {
    jwt: String,
    key: KeyPair,
}

/// Reads a credentials file.
pub(crate) fn read(path: &Path) -> io::Result<Creds> {
    let text = std::fs::read_to_string(path)?;
    let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let jwt = block(&text, "NATS USER JWT").ok_or_else(|| invalid("it has no NATS USER JWT block"))?;
    let seed = block(&text, "USER NKEY SEED").ok_or_else(|| invalid("it has no USER NKEY SEED block"))?;
    let key = KeyPair::from_seed(seed).map_err(|_| invalid("its USER NKEY SEED is not a seed"))?;
    Ok(Creds { jwt: jwt.to_owned(), key })
}

/// Signs the server's nonce with the file as it is now.
pub(crate) fn sign(path: &Path, nonce: &[u8]) -> io::Result<Auth> {
    let creds = read(path)?;
    let mut auth = Auth::new();
    auth.jwt = Some(creds.jwt);
    auth.signature = Some(creds.key.sign(nonce).map_err(io::Error::other)?);
    Ok(auth)
}

/// Uses the `user:password@` or `token@` of the first address that has one; the library leaves them out.
pub(crate) fn from_address(options: ConnectOptions, servers: &[ServerAddr]) -> ConnectOptions {
    let named = servers.iter().find_map(|server| Some((server.username()?, server.password())));
    match named {
        Some((user, Some(password))) => options.user_and_password(decoded(user), decoded(password)),
        Some((token, None)) => options.token(decoded(token)),
        None => options,
    }
}

/// Resolves `%40` and the like, without which an address cannot carry every character.
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

/// The line between `-----BEGIN <name>-----` and the next line of dashes.
fn block<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = text.lines().map(str::trim).skip_while(|line| !line.contains(&format!("BEGIN {name}")));
    lines.next()?;
    lines.find(|line| !line.is_empty()).filter(|line| !line.starts_with('-'))
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
        let text = format!(
            "-----BEGIN NATS USER JWT-----\nabc.def.ghi\n------END NATS USER JWT------\n\n*** IMPORTANT ***\n\n\
             -----BEGIN USER NKEY SEED-----\n{}\n------END USER NKEY SEED------\n",
            key.seed().unwrap()
        );
        let auth = sign(file(&text).path(), b"nonce").unwrap();
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
    fn a_file_that_is_none_says_what_is_missing() {
        let whole = "-----BEGIN NATS USER JWT-----\na.b.c\n------END\n-----BEGIN USER NKEY SEED-----\nSU\n------END\n";
        for (text, reason) in [("", "JWT"), (&whole[..45], "NKEY SEED"), (whole, "not a seed")] {
            let error = read(file(text).path()).err().unwrap().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}
