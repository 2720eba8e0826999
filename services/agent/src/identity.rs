//! The identity of this device: a seed that is made here and never leaves, and the JWT that an operator issues for
//! it.
//!
//! Both are in `identity/` of the data directory; only this user can read the seed. The connection reads them at
//! every connect and when they change, so a renewed JWT needs no restart. A JWT from the hub ([`crate::follow`]) or
//! from a folder ([`crate::join`]) is accepted only if it renews the one in use: the same key and name, the same
//! signer and account, later issued and later expiring. A person must accept any other. This module does not speak to
//! the hub.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use muster_bus::creds::{SEED_FILE, TOKEN_FILE};
use muster_contract::Timestamp;
use muster_identity::{KeyPair, TokenClaims, TokenError, jwt};

const FOLDER: &str = "identity";
const SECRET: u32 = 0o600;
const PRIVATE_FOLDER: u32 = 0o700;
/// The file name of standard input.
const STANDARD_INPUT: &str = "-";

/// The error of reading or writing an identity.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A file cannot be read or written.
    #[error("cannot {doing} {}", .path.display())]
    File {
        /// `read`, `write`.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The file is not a seed.
    #[error(
        "{} is not a seed; move it away, run `muster-agent key` again, and enrol the new key with --replace",
        .0.display()
    )]
    InvalidSeed(PathBuf),
    /// There is no seed yet.
    #[error("this device has no key; make one with `muster-agent key --data-dir DIR`")]
    NoKey,
    /// A folder, a pipe or the like.
    #[error("{} is not a file", .0.display())]
    NotAFile(PathBuf),
    /// Larger than any JWT.
    #[error("{} is larger than any JWT ({} bytes)", .0.display(), jwt::TOKEN_BYTES_MAX)]
    TooLarge(PathBuf),
    /// Not a JWT.
    #[error("this is not a JWT of `muster enroll`")]
    InvalidToken(#[from] TokenError),
    /// There is no JWT to renew.
    #[error("this device has no JWT to renew")]
    NothingToRenew(#[source] Box<IdentityError>),
    /// It has another signer, account, kind, name or tags than the JWT in use.
    #[error("its {what} is {theirs}, and {ours} in the JWT in use")]
    NotARenewal {
        /// The field.
        what: &'static str,
        /// The value in the offered JWT.
        theirs: String,
        /// The value in the JWT in use.
        ours: String,
    },
    /// It was not issued later, or does not expire later, than the JWT in use.
    #[error("it must be issued later, and expire later, than the JWT in use")]
    NotLater,
    /// It is for another key.
    #[error("this JWT is for {name} with the key {theirs}; the key of this device is {ours}")]
    OtherKey {
        /// The name in it.
        name: String,
        /// The key in it.
        theirs: String,
        /// This device's key.
        ours: String,
    },
}

/// The folder with seed and JWT, if this device has a key.
pub(crate) fn folder(data_dir: &Path) -> Option<PathBuf> {
    let folder = data_dir.join(FOLDER);
    folder.join(SEED_FILE).is_file().then_some(folder)
}

/// The public key of this device. Makes the key if there is none.
///
/// # Errors
/// The files cannot be used.
pub(crate) fn key(data_dir: &Path) -> Result<String, IdentityError> {
    let folder = data_dir.join(FOLDER);
    let seed = folder.join(SEED_FILE);
    if let Some(pair) = read_key(&seed)? {
        return Ok(pair.public_key());
    }
    DirBuilder::new()
        .recursive(true)
        .mode(PRIVATE_FOLDER)
        .create(&folder)
        .map_err(file_error("make", &folder))?;
    let pair = KeyPair::new_user();
    let text = pair.seed().map_err(|error| TokenError::Key(error.to_string()))?;
    write_private(&seed, &text)?;
    Ok(pair.public_key())
}

/// Whether this device has a JWT.
pub(crate) fn has_token(data_dir: &Path) -> bool {
    data_dir.join(FOLDER).join(TOKEN_FILE).is_file()
}

/// Stores a JWT from a file in place of the one in use, and returns a sentence for the user.
///
/// # Errors
/// It is not a JWT, is for another key, or cannot be stored.
pub(crate) fn accept(data_dir: &Path, file: &Path) -> Result<String, IdentityError> {
    let known = store_token(data_dir, &read(file)?)?;
    Ok(format!("stored the JWT of {}; a running agent uses it at once\n", known.name))
}

/// Stores a JWT in place of the one in use, and returns its claims.
///
/// # Errors
/// It is not a JWT, is for another key, or cannot be stored.
pub(crate) fn store_token(data_dir: &Path, token: &str) -> Result<TokenClaims, IdentityError> {
    let seed = data_dir.join(FOLDER).join(SEED_FILE);
    let ours = read_key(&seed)?.ok_or(IdentityError::NoKey)?.public_key();
    let known = jwt::read(token)?;
    if known.sub != ours {
        return Err(IdentityError::OtherKey { name: known.name, theirs: known.sub, ours });
    }
    write_private(&data_dir.join(FOLDER).join(TOKEN_FILE), token.trim())?;
    Ok(known)
}

/// Reads the JWT in a file that others may write; `None` if there is no file. Never blocks, and reads no more than
/// the size of a JWT.
///
/// # Errors
/// It is not a plain file, is too large, or cannot be read.
pub(crate) fn read_offered(file: &Path) -> Result<Option<String>, IdentityError> {
    let nonblocking = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or_default();
    let opened = match File::options().read(true).custom_flags(nonblocking).open(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(file_error("read", file))?,
    };
    let about = opened.metadata().map_err(file_error("read", file))?;
    if !about.is_file() {
        return Err(IdentityError::NotAFile(file.to_owned()));
    }
    if about.len() > jwt::TOKEN_BYTES_MAX as u64 {
        return Err(IdentityError::TooLarge(file.to_owned()));
    }
    let mut bytes = Vec::new();
    opened.take(jwt::TOKEN_BYTES_MAX as u64).read_to_end(&mut bytes).map_err(file_error("read", file))?;
    String::from_utf8(bytes).map(Some).map_err(|_| TokenError::Shape.into())
}

/// Stores a JWT from an unverified source if it renews the one in use, and returns its claims; `None` if it is the
/// one in use.
///
/// # Errors
/// It does not renew the one in use, or cannot be stored. Nothing has changed then.
pub(crate) fn renew(data_dir: &Path, token: &str) -> Result<Option<TokenClaims>, IdentityError> {
    let folder = data_dir.join(FOLDER);
    let ours = read_key(&folder.join(SEED_FILE))?.ok_or(IdentityError::NoKey)?.public_key();
    let path = folder.join(TOKEN_FILE);
    let in_use = read(&path).map_err(|error| IdentityError::NothingToRenew(Box::new(error)))?;
    if in_use.trim() == token.trim() {
        return Ok(None);
    }
    let (in_use, offered) = (jwt::read(&in_use)?, jwt::read(token)?);
    if offered.sub != ours {
        return Err(IdentityError::OtherKey { name: offered.name, theirs: offered.sub, ours });
    }
    renews(&in_use, &offered)?;
    write_private(&path, token.trim())?;
    Ok(Some(offered))
}

/// Checks that a JWT renews the one in use.
fn renews(in_use: &TokenClaims, offered: &TokenClaims) -> Result<(), IdentityError> {
    let same = |what, theirs: &str, ours: &str| {
        let is_same = theirs == ours;
        let error = || IdentityError::NotARenewal { what, theirs: theirs.to_owned(), ours: ours.to_owned() };
        is_same.then_some(()).ok_or_else(error)
    };
    same("signer", &offered.iss, &in_use.iss)?;
    same("account", &offered.nats.issuer_account, &in_use.nats.issuer_account)?;
    same("kind", &offered.nats.kind, &in_use.nats.kind)?;
    same("name", &offered.name, &in_use.name)?;
    same("tags", &offered.nats.tags.join(" "), &in_use.nats.tags.join(" "))?;
    let ends_later = in_use.exp.is_some_and(|end| offered.exp.is_none_or(|later| later > end));
    if offered.iat > in_use.iat && ends_later { Ok(()) } else { Err(IdentityError::NotLater) }
}

/// When a JWT expires; `None` if never.
pub(crate) fn expiry(known: &TokenClaims) -> Option<Timestamp> {
    known.exp.and_then(|end| Timestamp::from_second(i64::try_from(end).ok()?).ok())
}

fn read_key(seed: &Path) -> Result<Option<KeyPair>, IdentityError> {
    match fs::read_to_string(seed) {
        Ok(text) => {
            let pair =
                KeyPair::from_seed(text.trim()).map_err(|_| IdentityError::InvalidSeed(seed.to_owned()))?;
            Ok(Some(pair))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(file_error("read", seed)(error)),
    }
}

fn read(file: &Path) -> Result<String, IdentityError> {
    let mut bytes = Vec::new();
    let most = jwt::TOKEN_BYTES_MAX as u64;
    let read = if file == Path::new(STANDARD_INPUT) {
        io::stdin().take(most).read_to_end(&mut bytes)
    } else {
        File::open(file).and_then(|file| file.take(most).read_to_end(&mut bytes))
    };
    read.map_err(file_error("read", file))?;
    String::from_utf8(bytes).map_err(|_| TokenError::Shape.into())
}

/// Writes a file as a whole, readable by this user only.
fn write_private(path: &Path, text: &str) -> Result<(), IdentityError> {
    let beside = path.with_extension("new");
    let write = || {
        // A file left by a killed process would keep its mode.
        let _ = fs::remove_file(&beside);
        let mut file = File::options().write(true).create_new(true).mode(SECRET).open(&beside)?;
        file.write_all(text.as_bytes())?;
        file.write_all(b"\n")?;
        file.sync_all()?;
        fs::rename(&beside, path)?;
        path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
    };
    write().map_err(file_error("write", path))
}

/// An [`IdentityError::File`] of this operation and path.
pub(crate) fn file_error(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> IdentityError {
    let path = path.to_owned();
    move |source| IdentityError::File { doing, path, source }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use muster_identity::claims;

    use super::*;

    #[test]
    fn a_key_is_made_once_and_only_this_user_reads_it() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(folder(dir.path()), None);
        let first = key(dir.path()).unwrap();
        assert_eq!(key(dir.path()).unwrap(), first);
        let folder = folder(dir.path()).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&folder), mode(&folder.join(SEED_FILE))), (PRIVATE_FOLDER, SECRET));
        assert!(!first.contains(fs::read_to_string(folder.join(SEED_FILE)).unwrap().trim()));
    }

    #[test]
    fn only_a_token_for_this_key_is_kept() {
        let (dir, signer) = (tempfile::tempdir().unwrap(), KeyPair::new_account());
        let file = dir.path().join("jwt");
        let write = |key: &str| {
            let user = claims::User { account: "A", key, issued: 1, expires: None };
            let token = claims::device(&signer, &user, &"plant7/press-4".parse().unwrap()).unwrap();
            fs::write(&file, token).unwrap();
        };
        write(&KeyPair::new_user().public_key());
        assert!(matches!(accept(dir.path(), &file), Err(IdentityError::NoKey)));
        let ours = key(dir.path()).unwrap();
        let foreign = accept(dir.path(), &file).unwrap_err().to_string();
        assert!(foreign.contains(&ours) && foreign.contains("plant7/press-4"), "{foreign}");
        fs::write(&file, "nonsense").unwrap();
        assert!(matches!(accept(dir.path(), &file), Err(IdentityError::InvalidToken(_))));
        assert!(!folder(dir.path()).unwrap().join(TOKEN_FILE).exists());
        write(&ours);
        assert!(accept(dir.path(), &file).unwrap().contains("plant7/press-4"));
        assert!(folder(dir.path()).unwrap().join(TOKEN_FILE).exists());
    }

    #[test]
    fn a_token_over_the_hub_is_taken_only_where_it_renews_the_one_in_use() {
        let (dir, signer, thief) =
            (tempfile::tempdir().unwrap(), KeyPair::new_account(), KeyPair::new_account());
        let ours = key(dir.path()).unwrap();
        let others = KeyPair::new_user().public_key();
        let token = |signer: &KeyPair, account, key: &str, device: &str, issued, expires| {
            let user = claims::User { account, key, issued, expires };
            claims::device(signer, &user, &device.parse().unwrap()).unwrap()
        };
        let good = |issued, expires| token(&signer, "A", &ours, "plant7/press-4", issued, expires);
        let path = folder(dir.path()).unwrap().join(TOKEN_FILE);
        let first = good(100, Some(200));
        assert!(matches!(renew(dir.path(), &first), Err(IdentityError::NothingToRenew(_))));
        write_private(&path, &first).unwrap();
        for (what, bad) in [
            ("key", token(&signer, "A", &others, "plant7/press-4", 150, Some(300))),
            ("signer", token(&thief, "A", &ours, "plant7/press-4", 150, Some(300))),
            ("account", token(&signer, "B", &ours, "plant7/press-4", 150, Some(300))),
            ("name", token(&signer, "A", &ours, "plant7/press-5", 150, Some(300))),
            ("later", good(150, Some(200))),
            ("later", good(100, Some(300))),
            ("JWT", "a.b.c".to_owned()),
        ] {
            let refused = renew(dir.path(), &bad).unwrap_err();
            assert!(muster_service::error::chain(&refused).contains(what), "{what}: {refused}");
            assert_eq!(fs::read_to_string(&path).unwrap().trim(), first, "{what}");
        }
        assert_eq!(renew(dir.path(), &first).unwrap(), None);
        for next in [good(150, Some(300)), good(151, None)] {
            assert!(renew(dir.path(), &next).unwrap().is_some());
            assert_eq!(fs::read_to_string(&path).unwrap().trim(), next);
        }
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, SECRET);
    }
}
