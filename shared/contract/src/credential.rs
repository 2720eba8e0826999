//! Credential: a device's renewed JWT on its way over the hub. It is signed and public: without the device's seed, which
//! never leaves the device, nobody can use it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::decode::{Document, Violation};
use crate::version::{ApiVersion, kind};

/// `muster.credential.<site>.<device>`: the newest JWT that an operator signed for a device that is in already.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Credential {
    /// `muster/v1`
    pub api_version: ApiVersion,
    /// `Credential`
    pub kind: kind::Credential,
    /// The NATS user JWT. A device takes it only if it is for its own key and name, by the signer and account of the one
    /// in use, and later than that in issue and in end.
    #[schemars(regex(pattern = r"^[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+$"))]
    pub jwt: String,
}

impl Document for Credential {
    const KIND: &'static str = "Credential";

    fn check(&self) -> Result<(), Violation> {
        let part = |part: &str| {
            !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
        };
        let parts: Vec<&str> = self.jwt.split('.').collect();
        if parts.len() == 3 && parts.into_iter().all(part) {
            Ok(())
        } else {
            Err(Violation::at(
                "jwt",
                "must be the three parts of a JWT, in base64 for URLs, with dots between them",
            ))
        }
    }
}
