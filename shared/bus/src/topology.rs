//! Streams, consumers and the bucket as data.
