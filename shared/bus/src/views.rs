//! The bucket `views`.

use bytes::Bytes;

use crate::bus::Bus;
use crate::publish::PublishError;
use crate::read::ReadError;

/// A value of the bucket, or its absence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ViewEntry {
    /// The key.
    pub key: String,
    /// The value; `None` when the key was deleted.
    pub value: Option<Bytes>,
    /// Rises with every write to the bucket.
    pub revision: u64,
}

/// The bucket followed: the present first, then every change.
#[derive(Debug)]
pub struct ViewWatch {}

impl ViewWatch {
    /// The next entries, at least one and at most `max`. Cancel-safe.
    pub async fn next_batch(&mut self, max: usize) -> Result<Vec<ViewEntry>, ReadError> {
        let _ = max;
        std::future::pending().await
    }
}

impl Bus {
    /// Writes a value; its revision.
    pub async fn view_put(&self, key: &str, value: Bytes) -> Result<u64, PublishError> {
        let _ = (key, value);
        std::future::pending().await
    }

    /// Deletes a key.
    pub async fn view_delete(&self, key: &str) -> Result<(), PublishError> {
        let _ = key;
        std::future::pending().await
    }

    /// Reads a value; `None` where there is none.
    pub async fn view_get(&self, key: &str) -> Result<Option<ViewEntry>, ReadError> {
        let _ = key;
        std::future::pending().await
    }

    /// Follows keys (`>` for all, `deployment.*`).
    pub async fn view_watch(&self, keys: &str) -> Result<ViewWatch, ReadError> {
        let _ = keys;
        std::future::pending().await
    }
}
