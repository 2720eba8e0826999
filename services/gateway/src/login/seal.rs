//! Seals the texts that a browser or program keeps for the gateway: encrypted and authenticated (AES-256-GCM), so that only a
//! gateway with the same key file can read or make one. A sealed text has one purpose: a cookie is no token, a code no session.

use std::fmt;
use std::path::{Path, PathBuf};

use data_encoding::{BASE64, BASE64URL_NOPAD};
use muster_contract::notify::{WEBHOOK_KEY_DIGITS, WEBHOOK_KEYS_MAX};
use muster_webhook::signature::hex_hmac;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom as _, SystemRandom};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::file::{ReadFileError, read_file};

/// Bytes of a key.
const KEY_BYTES: usize = 32;
/// Most keys of a file: the one in use, and older ones.
const KEYS_MAX: usize = WEBHOOK_KEYS_MAX;
/// The text whose HMAC by a key is the id of that key.
const ID_LABEL: &[u8] = b"muster key id";
/// Longest sealed text in bytes.
const SEALED_BYTES_MAX: usize = 4096;

/// The use of a sealed text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The cookie of a session.
    Session,
    /// The token of a program.
    Token,
    /// The code that a person carries from `muster login` to the page.
    Code,
    /// The cookie of a login page.
    Attempt,
    /// The nonce of a program's login.
    Nonce,
    /// The cookie of a login at a provider.
    Oidc,
    /// Address and secret of a webhook, which the hub keeps.
    Webhook,
}

impl Purpose {
    const fn label(self) -> &'static [u8] {
        match self {
            Self::Session => b"muster session",
            Self::Token => b"muster token",
            Self::Code => b"muster login code",
            Self::Attempt => b"muster login page",
            Self::Nonce => b"muster login nonce",
            Self::Oidc => b"muster login at a provider",
            Self::Webhook => b"muster webhook",
        }
    }
}

/// Why a key file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// It cannot be read.
    #[error(transparent)]
    Read(#[from] ReadFileError),
    /// It holds no keys, or too many.
    #[error(
        "{} must hold 1 to {KEYS_MAX} lines with {KEY_BYTES} random bytes in base64 each, as `openssl rand -base64 {KEY_BYTES}` \
         prints them", .0.display()
    )]
    Malformed(PathBuf),
}

/// The keys of a file.
pub(crate) struct Sealer {
    /// The first key seals, all open.
    keys: Vec<LessSafeKey>,
    /// The id of each key, by which others name it without knowing it.
    ids: Vec<String>,
    random: SystemRandom,
}

/// Shows no keys.
impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealer").field("keys", &self.keys.len()).finish_non_exhaustive()
    }
}

impl Sealer {
    /// Reads a key file.
    ///
    /// # Errors
    /// It cannot be read, or holds no keys.
    pub(crate) fn read(path: &Path) -> Result<Self, KeyFileError> {
        Self::of(&read_file(path)?).ok_or_else(|| KeyFileError::Malformed(path.to_owned()))
    }

    fn of(text: &str) -> Option<Self> {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let key = |line: &str| {
            let bytes = BASE64.decode(line.as_bytes()).ok().filter(|bytes| bytes.len() == KEY_BYTES)?;
            let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &bytes).ok()?);
            Some((key, hex_hmac(&bytes, &[ID_LABEL]).chars().take(WEBHOOK_KEY_DIGITS).collect()))
        };
        let (keys, ids): (Vec<_>, _) = lines.map(key).collect::<Option<Vec<_>>>()?.into_iter().unzip();
        let is_usable = (1..=KEYS_MAX).contains(&keys.len());
        is_usable.then(|| Self { keys, ids, random: SystemRandom::new() })
    }

    /// The ids of the keys, in the order of the file.
    pub(crate) fn key_ids(&self) -> &[String] {
        &self.ids
    }

    /// Seals a value; `None` if the system gives no random numbers.
    pub(crate) fn seal<T: Serialize>(&self, purpose: Purpose, value: &T) -> Option<String> {
        let nonce: [u8; NONCE_LEN] = self.random_bytes()?;
        let mut sealed = serde_json::to_vec(value).ok()?;
        let key = self.keys.first()?;
        let unique = Nonce::assume_unique_for_key(nonce);
        key.seal_in_place_append_tag(unique, Aad::from(purpose.label()), &mut sealed).ok()?;
        Some(BASE64URL_NOPAD.encode(&[&nonce[..], &sealed].concat()))
    }

    /// Opens a sealed value; `None` if no key of the file sealed it for this purpose.
    pub(crate) fn open<T: DeserializeOwned>(&self, purpose: Purpose, text: &str) -> Option<T> {
        self.open_with(purpose, text).map(|(value, _)| value)
    }

    /// The same with the place of the key in the file.
    pub(crate) fn open_with<T: DeserializeOwned>(&self, purpose: Purpose, text: &str) -> Option<(T, usize)> {
        if text.len() > SEALED_BYTES_MAX {
            return None;
        }
        let bytes = BASE64URL_NOPAD.decode(text.as_bytes()).ok()?;
        let (nonce, sealed) = bytes.split_first_chunk::<NONCE_LEN>()?;
        self.keys.iter().enumerate().find_map(|(place, key)| {
            let mut sealed = sealed.to_vec();
            let nonce = Nonce::assume_unique_for_key(*nonce);
            let opened = key.open_in_place(nonce, Aad::from(purpose.label()), &mut sealed).ok()?;
            serde_json::from_slice(opened).ok().map(|value| (value, place))
        })
    }

    /// Random bytes of the system.
    pub(crate) fn random_bytes<const N: usize>(&self) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.random.fill(&mut bytes).ok()?;
        Some(bytes)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn key(byte: u8) -> String {
        BASE64.encode(&[byte; KEY_BYTES])
    }

    pub(crate) fn sealer(byte: u8) -> Sealer {
        sealer_of(&[byte])
    }

    /// A sealer with a key of each byte.
    pub(crate) fn sealer_of(bytes: &[u8]) -> Sealer {
        Sealer::of(&bytes.iter().map(|byte| key(*byte) + "\n").collect::<String>()).unwrap()
    }

    #[test]
    fn a_sealed_text_is_opened_for_its_purpose_alone_and_by_its_key_alone() {
        let sealer = sealer(1);
        let sealed = sealer.seal(Purpose::Session, &"anna").unwrap();
        assert_eq!(sealer.open::<String>(Purpose::Session, &sealed).as_deref(), Some("anna"));
        assert!(!sealed.contains("anna") && sealed != sealer.seal(Purpose::Session, &"anna").unwrap());
        for purpose in
            [Purpose::Token, Purpose::Code, Purpose::Attempt, Purpose::Nonce, Purpose::Oidc, Purpose::Webhook]
        {
            assert_eq!(sealer.open::<String>(purpose, &sealed), None, "{purpose:?}");
        }
        assert_eq!(super::tests::sealer(2).open::<String>(Purpose::Session, &sealed), None);
        for at in 0..sealed.len() {
            let mut bytes = sealed.clone().into_bytes();
            bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
            let altered = String::from_utf8(bytes).unwrap();
            assert_eq!(sealer.open::<String>(Purpose::Session, &altered), None, "byte {at}");
        }
        for bad in ["", "AAAA", "ü", &"A".repeat(SEALED_BYTES_MAX + 4)] {
            assert_eq!(sealer.open::<String>(Purpose::Session, bad), None, "{bad:.10}");
        }
    }

    #[test]
    fn a_new_key_seals_and_those_before_it_still_open() {
        let sealed = sealer(1).seal(Purpose::Session, &7).unwrap();
        let both = Sealer::of(&format!("{}\n{}\n", key(2), key(1))).unwrap();
        assert_eq!(both.open::<u8>(Purpose::Session, &sealed), Some(7));
        let newer = both.seal(Purpose::Session, &8).unwrap();
        assert_eq!(sealer(1).open::<u8>(Purpose::Session, &newer), None);
        let places = [&sealed, &newer].map(|text| both.open_with::<u8>(Purpose::Session, text).unwrap().1);
        assert_eq!(places, [1, 0]);
        let (old, new) = (sealer(1).key_ids()[0].clone(), sealer(2).key_ids()[0].clone());
        assert_eq!(both.key_ids(), [new, old], "a key has the same id in every file");
        for bad in ["", "\n", "AAAA", "not base64", &key(1).repeat(2)] {
            assert!(Sealer::of(bad).is_none(), "{bad}");
        }
    }
}
