//! The bounds of gRPC calls that the middleware and the listener share.

use std::time::Duration;

/// Most calls under way at once.
pub(super) const CALLS_MAX: usize = 256;
/// Time for the answer of a call, and for the first message of a stream.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(30);
