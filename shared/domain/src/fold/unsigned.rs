//! The value of a document's digest field until the digest is computed. The module computes no digest.

use muster_contract::canonical::Digest;

/// Stands in the field of a digest until the digest is computed, which does not cover that field.
pub(super) fn unsigned() -> Digest {
    Digest::of_bytes(&[])
}
