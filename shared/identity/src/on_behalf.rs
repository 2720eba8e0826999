//! Signs and verifies the note that names the person on whose behalf a gateway asks: a request's header with the person, the
//! subject and a digest of the payload, signed with the gateway's key.
//!
//! A service accepts a note only from a requester of role gateway that the server proves, and only if that requester's own key
//! signed it for this subject and payload. So nobody else can make or use it, and nobody can use it for another request. It does
//! not prove the person: services trust the gateway, which has checked the person's login.

use std::fmt;

use data_encoding::{BASE64URL_NOPAD, HEXLOWER};
use muster_contract::OnBehalfOf;
use nkeys::KeyPair;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::jwt::TokenError;
use crate::roles::Role;

/// Prefix of the signed bytes, so that no other signature of the key is a note.
const PURPOSE: &[u8] = b"muster-on-behalf-of\n";
/// Longest note in bytes.
const NOTE_BYTES_MAX: usize = 4096;

/// The signed part of a note.
#[derive(Debug, Serialize, Deserialize)]
struct Note {
    person: OnBehalfOf,
    subject: String,
    payload: String,
}

/// Why a note is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoteError {
    /// It is malformed.
    #[error("not a valid note of a gateway")]
    Shape,
    /// Another key signed it.
    #[error("the requester's key did not sign it")]
    Signature,
    /// It was made for another request.
    #[error("it was made for another request")]
    OtherRequest,
    /// The person's role is not one of people.
    #[error("it names no role of people")]
    Role,
}

/// Makes the note of a request.
///
/// # Errors
/// The key has no seed.
pub fn sign(
    gateway: &KeyPair,
    person: &OnBehalfOf,
    subject: &str,
    payload: &[u8],
) -> Result<String, TokenError> {
    let note = Note { person: person.clone(), subject: subject.to_owned(), payload: digest(payload) };
    let json = serde_json::to_vec(&note).map_err(|error| TokenError::Claims(error.to_string()))?;
    let signature = gateway.sign(&signed(&json)).map_err(|error| TokenError::Key(error.to_string()))?;
    Ok(format!("{}.{}", BASE64URL_NOPAD.encode(&json), BASE64URL_NOPAD.encode(&signature)))
}

/// The person of a note that the gateway with this public key made for this request.
///
/// # Errors
/// The note is refused.
pub fn verify(note: &str, gateway: &str, subject: &str, payload: &[u8]) -> Result<OnBehalfOf, NoteError> {
    if note.len() > NOTE_BYTES_MAX {
        return Err(NoteError::Shape);
    }
    let (json, signature) = note.split_once('.').ok_or(NoteError::Shape)?;
    let decoded = |part: &str| BASE64URL_NOPAD.decode(part.as_bytes()).map_err(|_| NoteError::Shape);
    let (json, signature) = (decoded(json)?, decoded(signature)?);
    let key = KeyPair::from_public_key(gateway).map_err(|_| NoteError::Signature)?;
    key.verify(&signed(&json), &signature).map_err(|_| NoteError::Signature)?;
    let note: Note = serde_json::from_slice(&json).map_err(|_| NoteError::Shape)?;
    if note.subject != subject || note.payload != digest(payload) {
        return Err(NoteError::OtherRequest);
    }
    let is_of_people = Role::of(&note.person.role).is_some_and(Role::is_of_people);
    if !is_of_people {
        return Err(NoteError::Role);
    }
    if note.person.is_bounded() { Ok(note.person) } else { Err(NoteError::Shape) }
}

fn signed(json: &[u8]) -> Vec<u8> {
    [PURPOSE, json].concat()
}

fn digest(payload: &[u8]) -> String {
    HEXLOWER.encode(&Sha256::digest(payload))
}

/// A gateway's key, which signs notes. It is never printed.
pub struct NoteSigner(KeyPair);

impl NoteSigner {
    /// The signer with a gateway's key.
    pub const fn new(key: KeyPair) -> Self {
        Self(key)
    }

    /// As [`sign`].
    ///
    /// # Errors
    /// The key has no seed.
    pub fn sign(&self, person: &OnBehalfOf, subject: &str, payload: &[u8]) -> Result<String, TokenError> {
        sign(&self.0, person, subject, payload)
    }
}

impl fmt::Debug for NoteSigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("NoteSigner").field(&self.0.public_key()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUBJECT: &str = "muster.publisher.decide";

    fn anna(role: &str) -> OnBehalfOf {
        OnBehalfOf::new("UANNA", "anna", role)
    }

    #[test]
    fn a_note_holds_for_its_gateway_its_subject_and_its_payload_alone() {
        let (gateway, other) = (KeyPair::new_user(), KeyPair::new_user());
        let note = sign(&gateway, &anna("operator"), SUBJECT, b"{}").unwrap();
        let key = gateway.public_key();
        assert_eq!(verify(&note, &key, SUBJECT, b"{}"), Ok(anna("operator")));
        assert_eq!(verify(&note, &other.public_key(), SUBJECT, b"{}"), Err(NoteError::Signature));
        assert_eq!(verify(&note, &key, "muster.publisher.release", b"{}"), Err(NoteError::OtherRequest));
        assert_eq!(verify(&note, &key, SUBJECT, b"{ }"), Err(NoteError::OtherRequest));
        for at in 0..note.len() {
            let mut bytes = note.clone().into_bytes();
            bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
            let altered = String::from_utf8(bytes).unwrap();
            assert!(verify(&altered, &key, SUBJECT, b"{}").is_err(), "byte {at}");
        }
        for bad in ["", ".", "a.b", "UANNA", &"a".repeat(NOTE_BYTES_MAX + 1)] {
            assert!(verify(bad, &key, SUBJECT, b"{}").is_err(), "{bad:.20}");
        }
    }

    #[test]
    fn a_note_names_a_role_of_people_and_a_bounded_person() {
        let gateway = KeyPair::new_user();
        let verified = |person: &OnBehalfOf| {
            let note = sign(&gateway, person, SUBJECT, b"").unwrap();
            verify(&note, &gateway.public_key(), SUBJECT, b"")
        };
        for role in ["viewer", "approver", "subscriber", "operator"] {
            assert_eq!(verified(&anna(role)), Ok(anna(role)));
        }
        for role in ["planner", "gateway", "ingest", "device", "king", ""] {
            assert_eq!(verified(&anna(role)), Err(NoteError::Role), "{role}");
        }
        let long = OnBehalfOf { name: Some("a\nb".to_owned()), ..anna("operator") };
        assert_eq!(verified(&long), Err(NoteError::Shape));
    }
}
