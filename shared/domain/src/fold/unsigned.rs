//! The digest of a document before it is computed. It computes none.

use muster_contract::canonical::Digest;

/// Stands in the digest's field until the digest is computed, which does not cover that field.
pub(super) fn unsigned() -> Digest {
    Digest::of_bytes(&[])
}
