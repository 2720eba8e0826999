//! Credentials of package hosts, from a file in the format of Docker's `config.json` (`auths`). Read for each fetch, so that a
//! changed file needs no restart. Credential helpers of Docker are not run.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use super::error::PackageError;

/// The credentials of each host.
#[derive(Default, Deserialize)]
pub(super) struct Credentials {
    #[serde(default)]
    auths: BTreeMap<String, Login>,
}

#[derive(Default, Deserialize)]
struct Login {
    /// Base64 of `user:password`.
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
}

impl Credentials {
    /// The credentials of a file; none without one.
    pub(super) fn read(path: Option<&Path>) -> Result<Self, PackageError> {
        let Some(path) = path else { return Ok(Self::default()) };
        let failed = |source| PackageError::Credentials { path: path.to_owned(), source };
        let bytes = fs::read(path).map_err(failed)?;
        // The cause would quote the file, which holds passwords.
        serde_json::from_slice(&bytes).map_err(|error| {
            let at = format!("it is no file with `auths`, see line {}", error.line());
            failed(io::Error::new(io::ErrorKind::InvalidData, at))
        })
    }

    /// The value of a host's `Authorization` header.
    pub(super) fn basic(&self, host: &str) -> Option<String> {
        let login = self.auths.get(host).or_else(|| self.auths.get(&format!("https://{host}")))?;
        let pair = match login {
            Login { auth: Some(auth), .. } => auth.clone(),
            Login { username: Some(user), password: Some(password), .. } => {
                STANDARD.encode(format!("{user}:{password}"))
            }
            _ => return None,
        };
        Some(format!("Basic {pair}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_its_own_credentials_and_an_error_quotes_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.json");
        fs::write(
            &path,
            r#"{"auths":{"a.example":{"auth":"dTpw"},"b.example":{"username":"u","password":"p"}}}"#,
        )
        .unwrap();
        let read = Credentials::read(Some(&path)).unwrap();
        assert_eq!(read.basic("a.example").as_deref(), Some("Basic dTpw"));
        assert_eq!(read.basic("b.example").as_deref(), Some("Basic dTpw"));
        assert_eq!(read.basic("c.example"), None);
        fs::write(&path, r#"{"auths":"s3cret"}"#).unwrap();
        let said = muster_service::error::chain(&Credentials::read(Some(&path)).err().unwrap());
        assert!(said.contains("--package-auth") && !said.contains("s3cret"), "{said}");
    }
}
