//! Names of message headers. NATS header names are case-sensitive.

/// The bus's own message id; recognised for the duplicate window. Random, so that nobody can guess and occupy it.
pub const MSG_ID: &str = "Nats-Msg-Id";
/// Guards against a subject captured by another stream.
pub const EXPECTED_STREAM: &str = "Nats-Expected-Stream";
/// Compare-and-set on the last sequence of the subject.
pub const EXPECTED_LAST_SUBJECT_SEQUENCE: &str = "Nats-Expected-Last-Subject-Sequence";
/// Compare-and-set on the last sequence of the whole stream.
pub const EXPECTED_LAST_SEQUENCE: &str = "Nats-Expected-Last-Sequence";
/// The subject to which the expected sequence applies, if it is not the message's own (nats-server 2.12).
pub const EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT: &str = "Nats-Expected-Last-Subject-Sequence-Subject";
/// After how many whole seconds the stream removes the message by itself.
pub const TTL: &str = "Nats-TTL";
/// Replaces all earlier messages of the subject (`sub`).
pub const ROLLUP: &str = "Nats-Rollup";
/// W3C trace context.
pub const TRACEPARENT: &str = "traceparent";
/// CloudEvents: version of the attributes.
pub const CE_SPECVERSION: &str = "ce-specversion";
/// CloudEvents: identity of the event.
pub const CE_ID: &str = "ce-id";
/// CloudEvents: who says it.
pub const CE_SOURCE: &str = "ce-source";
/// CloudEvents: what kind of event it is.
pub const CE_TYPE: &str = "ce-type";
/// The requester of an entry in the bucket `views`, as JSON; absent if no request made it.
pub const REQUESTED_BY: &str = "Muster-Requested-By";
/// The person for whom a gateway makes a request, in a note that the gateway has signed. Services refuse a request of any other
/// role with this header.
pub const ON_BEHALF_OF: &str = "Muster-On-Behalf-Of";
/// The encoding of a device's payload; absent if the payload is the document itself.
pub const CONTENT_ENCODING: &str = "Content-Encoding";
/// The encoding of a payload that is one frame of zstd, which names its content's size.
pub const ZSTD: &str = "zstd";
/// The encoding of a payload that is one frame of zstd, compressed with dictionary 1 of reports.
pub const ZSTD_REPORTS_1: &str = "zstd-r1";
/// The number of reports in a batch.
pub const REPORTS: &str = "Muster-Reports";
/// The CloudEvents version we speak.
pub const CE_SPECVERSION_VALUE: &str = "1.0";
/// The prefix of Muster's CloudEvents types; the document's kind follows.
pub const CE_TYPE_PREFIX: &str = "muster.v1.";
