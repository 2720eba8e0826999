//! The reports that a message of UPLINK carries: one, or those of a batch. It decompresses and unpacks within bounds, and
//! evaluates nothing.
//!
//! A message whose reports cannot be told apart (an unknown encoding, a broken frame or envelope) is refused as a whole: nobody
//! knows their numbers. Its device is then asked for single reports.

use std::borrow::Cow;
use std::cell::RefCell;
use std::io;

use muster_contract::Refusal;
use muster_contract::decode::{Document, Violation};
use muster_contract::dictionary::REPORTS_1;
use muster_contract::headers::{CONTENT_ENCODING, REPORTS, ZSTD, ZSTD_REPORTS_1};
use muster_contract::limits::{BATCH_BYTES_MAX, BATCH_REPORTS_MAX, BATCH_TEXT_BYTES_MAX, REPORT_BYTES_MAX};
use muster_contract::packed::{ReportBatch, unpack};
use zstd::bulk::Decompressor;

use super::io::ReportDelivery;

/// The reports of one message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum MessageContent<'a> {
    /// A report that goes alone.
    Single(Cow<'a, [u8]>),
    /// The reports of a batch, in the order of their numbers.
    Batch(Vec<Vec<u8>>),
    /// A message that nobody can tell the reports of, as far as it could be decoded.
    Refused(Cow<'a, [u8]>, Refusal),
}

impl<'a> MessageContent<'a> {
    pub(super) fn of<D: ReportDelivery>(delivery: &'a D) -> Self {
        let (payload, count) = (delivery.payload(), delivery.header(REPORTS));
        let is_batch = count.is_some();
        let bytes_max = if is_batch { BATCH_TEXT_BYTES_MAX } else { REPORT_BYTES_MAX };
        if is_batch && payload.len() > BATCH_BYTES_MAX {
            let words = format!("a batch of {} bytes; {BATCH_BYTES_MAX} are allowed", payload.len());
            return Self::Refused(Cow::Borrowed(payload), refusal(".", words));
        }
        let text = match decoded(delivery.header(CONTENT_ENCODING), payload, bytes_max) {
            Ok(text) => text,
            Err(words) => return Self::Refused(Cow::Borrowed(payload), refusal(CONTENT_ENCODING, words)),
        };
        let Some(count) = count else { return Self::Single(text) };
        match unpack(&text).and_then(|reports| check_count(count, reports)) {
            Ok(reports) => Self::Batch(reports),
            // QUARANTINE has no room for the larger text.
            Err(refusal) if text.len() > REPORT_BYTES_MAX => Self::Refused(Cow::Borrowed(payload), refusal),
            Err(refusal) => Self::Refused(text, refusal),
        }
    }

    /// Its reports, of which a refused message counts as one.
    pub(super) fn len(&self) -> usize {
        if let Self::Batch(reports) = self { reports.len() } else { 1 }
    }

    /// Bytes of its reports.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Single(text) | Self::Refused(text, _) => text.len(),
            Self::Batch(reports) => reports.iter().map(Vec::len).sum(),
        }
    }

    /// The payload of one of its reports.
    pub(super) fn report(&self, at: usize) -> &[u8] {
        match self {
            Self::Single(text) | Self::Refused(text, _) => text,
            Self::Batch(reports) => reports.get(at).map_or(&[], Vec::as_slice),
        }
    }
}

/// The number of reports that a message says it has. A message that says nothing, or nothing readable, has one.
pub(crate) fn reports_declared(count: Option<&str>) -> usize {
    count.and_then(|count| count.parse().ok()).unwrap_or(1).clamp(1, BATCH_REPORTS_MAX)
}

/// Bytes that the reports of a message have at most, without decoding them.
pub(crate) fn report_bytes_max(delivery: &impl ReportDelivery) -> usize {
    let payload = delivery.payload();
    let text = match delivery.header(CONTENT_ENCODING) {
        None => payload.len(),
        Some(_) => frame_content_bytes(payload).unwrap_or(0).clamp(payload.len(), BATCH_TEXT_BYTES_MAX),
    };
    // Common fields count for each.
    (text * reports_declared(delivery.header(REPORTS))).min(BATCH_TEXT_BYTES_MAX.max(text))
}

/// The payload without its encoding.
fn decoded<'a>(encoding: Option<&str>, payload: &'a [u8], bytes_max: usize) -> Result<Cow<'a, [u8]>, String> {
    match encoding {
        None => Ok(Cow::Borrowed(payload)),
        Some(ZSTD) => DECODERS.with_borrow_mut(|decoders| {
            let decoder = get_or_create(&mut decoders.plain, Decompressor::new)?;
            decompressed(decoder, payload, bytes_max)
        }),
        Some(ZSTD_REPORTS_1) => DECODERS.with_borrow_mut(|decoders| {
            let decoder =
                get_or_create(&mut decoders.reports_1, || Decompressor::with_dictionary(REPORTS_1))?;
            decompressed(decoder, payload, bytes_max)
        }),
        Some(other) => Err(format!(
            "this hub does not know the encoding '{other}'; it knows {ZSTD} and {ZSTD_REPORTS_1}"
        )),
    }
}

thread_local! {
    static DECODERS: RefCell<Decoders> = RefCell::default();
}

/// The decoders of a thread, one for each encoding: creating one costs more than decoding a report. Each is created at its first
/// use, or at a later one if memory was short.
#[derive(Default)]
struct Decoders {
    plain: Option<Decompressor<'static>>,
    reports_1: Option<Decompressor<'static>>,
}

/// The decoder, created if there is none yet.
fn get_or_create<'a>(
    decoder: &'a mut Option<Decompressor<'static>>,
    create: impl FnOnce() -> io::Result<Decompressor<'static>>,
) -> Result<&'a mut Decompressor<'static>, String> {
    match decoder {
        Some(decoder) => Ok(decoder),
        None => {
            let created = create().map_err(|error| format!("this hub cannot create a decoder: {error}"))?;
            Ok(decoder.insert(created))
        }
    }
}

/// The content of a frame. The frame must name the size of its content, which bounds the memory that is allocated.
fn decompressed<'a>(
    decoder: &mut Decompressor<'static>,
    payload: &[u8],
    bytes_max: usize,
) -> Result<Cow<'a, [u8]>, String> {
    let bytes = frame_content_bytes(payload).ok_or("no frame of zstd that names the size of its content")?;
    if bytes > bytes_max {
        return Err(format!("decompressed it has {bytes} bytes; {bytes_max} are allowed"));
    }
    let text = decoder.decompress(payload, bytes).map_err(|error| error.to_string())?;
    if text.len() == bytes {
        Ok(Cow::Owned(text))
    } else {
        Err("a frame of another size than it names".to_owned())
    }
}

/// The size of the content that a frame names.
fn frame_content_bytes(payload: &[u8]) -> Option<usize> {
    let bytes = zstd::zstd_safe::get_frame_content_size(payload).ok()??;
    usize::try_from(bytes).ok()
}

fn check_count(declared: &str, reports: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, Refusal> {
    if declared == reports.len().to_string() {
        return Ok(reports);
    }
    Err(refusal(REPORTS, format!("'{declared}', and the batch has {} reports", reports.len())))
}

fn refusal(path: &str, words: String) -> Refusal {
    Refusal::Rule { kind: ReportBatch::KIND, violation: Violation::at(path, words) }
}
