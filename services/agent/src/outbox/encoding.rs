//! Encodes messages in the encoding that the hub reads: plain, zstd, or zstd with the dictionary of reports. Knows neither rows
//! nor documents.

use std::sync::LazyLock;

use muster_contract::dictionary::REPORTS_1;
use muster_contract::headers::{ZSTD, ZSTD_REPORTS_1};
use zstd::bulk::Compressor;
use zstd::dict::EncoderDictionary;

/// The level of compression: higher ones cost a small device more than they save.
const LEVEL: i32 = 3;
/// Bytes of the longest text that is compressed with the dictionary: a longer text repeats itself, and larger tables help more.
const DICTIONARY_TEXT_BYTES_MAX: usize = 16 * 1024;

static DICTIONARY: LazyLock<EncoderDictionary<'static>> =
    LazyLock::new(|| EncoderDictionary::copy(REPORTS_1, LEVEL));

/// An encoding of a message with reports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Encoding {
    /// The document itself.
    #[default]
    Plain,
    /// A frame of zstd.
    Zstd,
    /// A frame of zstd, made with dictionary 1 of reports.
    Reports1,
}

/// A payload and its encoding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encoded {
    /// The payload.
    pub bytes: Vec<u8>,
    /// Its encoding.
    pub encoding: Encoding,
}

impl Encoding {
    /// Its name in the header; none for the document itself.
    pub const fn name(self) -> Option<&'static str> {
        match self {
            Self::Plain => None,
            Self::Zstd => Some(ZSTD),
            Self::Reports1 => Some(ZSTD_REPORTS_1),
        }
    }

    /// Encodes a text in this encoding, or in a better one for its length that such a hub reads as well. `None` if the compressor
    /// cannot get memory.
    pub(super) fn encode(self, text: Vec<u8>) -> Option<Encoded> {
        let encoding = match self {
            Self::Reports1 if text.len() > DICTIONARY_TEXT_BYTES_MAX => Self::Zstd,
            other => other,
        };
        let bytes = match encoding {
            Self::Plain => text,
            Self::Zstd => zstd::bulk::compress(&text, LEVEL).ok()?,
            Self::Reports1 => Compressor::with_prepared_dictionary(&DICTIONARY)
                .and_then(|mut it| it.compress(&text))
                .ok()?,
        };
        Some(Encoded { bytes, encoding })
    }
}
