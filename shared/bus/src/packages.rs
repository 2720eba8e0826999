//! Reads the bucket `packages` message by message, with no right but to `$JS.API.DIRECT.GET.OBJ_packages`: the record of an object
//! by its subject, and chunks by sequence. [`muster_contract::packages`] has the format; this module writes nothing.

use std::time::Duration;

use bytes::Bytes;
use muster_contract::packages::STREAM;
use serde_json::{Value, json};

use crate::bus::Bus;
use crate::message::Delivery;
use crate::read_error::ReadError;
use crate::wire::ANSWER_TIMEOUT;

/// Time limit of the answer with a chunk, which may take long on a thin link.
pub(crate) const CHUNK_TIMEOUT: Duration = Duration::from_secs(60);

impl Bus {
    /// The newest record of an object, by its subject.
    ///
    /// # Errors
    /// The server does not answer, or refuses.
    pub async fn package_record(&self, subject: &str) -> Result<Option<Delivery>, ReadError> {
        self.package(ANSWER_TIMEOUT, &json!({ "last_by_subj": subject }), subject).await
    }

    /// The first message of a subject of the bucket, or of a pattern, at a sequence or after it.
    ///
    /// # Errors
    /// The server does not answer, or refuses.
    pub async fn package_message(&self, subject: &str, from: u64) -> Result<Option<Delivery>, ReadError> {
        self.package(CHUNK_TIMEOUT, &json!({ "seq": from, "next_by_subj": subject }), subject).await
    }

    async fn package(
        &self,
        timeout: Duration,
        request: &Value,
        what: &str,
    ) -> Result<Option<Delivery>, ReadError> {
        let subject = format!("$JS.API.DIRECT.GET.{STREAM}");
        self.direct_within(timeout, subject, Bytes::from(request.to_string()), what).await
    }
}
