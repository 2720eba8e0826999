//! Who this device is to the hub: a seed that is made here and never leaves, and the JWT that an operator gives for it.
//!
//! Both are in `identity/` of the data directory, the seed for this user's eyes alone. They are read at every connect and
//! when they change, so that a renewed JWT needs no restart. One that comes over the hub ([`crate::follow`]) or by way of a
//! folder ([`crate::join`]) is taken only if it renews the one in use: for the same key and name, by the same signer and
//! account, later in issue and in end. Any other is for a person to accept. Nothing here speaks to the hub.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use muster_bus::creds::{SEED_FILE, TOKEN_FILE};
use muster_contract::Timestamp;
use muster_identity::{KeyPair, Known, TokenError, jwt};
use muster_service::error::chain;

use crate::config::IdentityCommand;

const FOLDER: &str = "identity";
const SECRET: u32 = 0o600;
const PRIVATE_FOLDER: u32 = 0o700;
/// The file name that stands for standard input.
const STANDARD_INPUT: &str = "-";

/// Why this device has no identity.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A file cannot be read or written.
    #[error("cannot {doing} {}", .path.display())]
    File {
        /// `read`, `write`.
        doing: &'static str,
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The seed is none.
    #[error(
        "{} is not a seed; move it away and run `muster-agent key` again, then have the new key enrolled with --replace",
        .0.display()
    )]
    Broken(PathBuf),
    /// There is no seed yet.
    #[error("this device has no key yet; `muster-agent key --data-dir …` makes one")]
    NoKey,
    /// It is a folder, a pipe or the like.
    #[error("{} is no file", .0.display())]
    NoFile(PathBuf),
    /// There is more of it than of any token.
    #[error("{} is larger than any JWT ({} bytes)", .0.display(), jwt::TOKEN_BYTES_MAX)]
    TooLarge(PathBuf),
    /// What should be a token is none.
    #[error("this is not what `muster enroll` wrote")]
    NoToken(#[from] TokenError),
    /// There is no token that this one could renew.
    #[error("there is no JWT here that it could renew")]
    NoTokenYet(#[source] Box<IdentityError>),
    /// Somebody else signed it, or for somebody else.
    #[error("its {what} is {theirs}, and {ours} in the JWT in use")]
    OfOthers {
        /// What of it.
        what: &'static str,
        /// What it says.
        theirs: String,
        /// What the one in use says.
        ours: String,
    },
    /// It does not count for longer than the one in use.
    #[error("it is not later than the JWT in use, in issue and in end")]
    NotLater,
    /// The token is for another key.
    #[error("this JWT is for {name} with the key {theirs}; the key of this device is {ours}")]
    Foreign {
        /// Whose it is.
        name: String,
        /// Its key.
        theirs: String,
        /// Our key.
        ours: String,
    },
}

/// Does what the command says, and prints what came of it.
pub fn main(command: &IdentityCommand) -> ExitCode {
    let done = match command {
        IdentityCommand::Key { data_dir } => key(data_dir).map(|key| format!("{key}\n")),
        IdentityCommand::Accept { data_dir, file } => accept(data_dir, file),
    };
    let (said, code) = match done {
        Ok(text) => (io::stdout().write_all(text.as_bytes()), ExitCode::SUCCESS),
        Err(error) => (writeln!(io::stderr(), "muster-agent: {}", chain(&error)), ExitCode::FAILURE),
    };
    // Nobody who listens learns otherwise that the answer did not get through.
    if said.is_ok() { code } else { ExitCode::FAILURE }
}

/// The folder with seed and JWT, if this device has a key.
pub fn folder(data_dir: &Path) -> Option<PathBuf> {
    let folder = data_dir.join(FOLDER);
    folder.join(SEED_FILE).is_file().then_some(folder)
}

/// The public key of this device, which makes its key if it has none.
///
/// # Errors
/// The files cannot be used.
pub fn key(data_dir: &Path) -> Result<String, IdentityError> {
    let folder = data_dir.join(FOLDER);
    let seed = folder.join(SEED_FILE);
    if let Some(pair) = known(&seed)? {
        return Ok(pair.public_key());
    }
    DirBuilder::new()
        .recursive(true)
        .mode(PRIVATE_FOLDER)
        .create(&folder)
        .map_err(failed("make", &folder))?;
    let pair = KeyPair::new_user();
    let text = pair.seed().map_err(|error| TokenError::Key(error.to_string()))?;
    keep(&seed, &text)?;
    Ok(pair.public_key())
}

/// True where the hub has given this device a JWT.
pub fn is_let_in(data_dir: &Path) -> bool {
    data_dir.join(FOLDER).join(TOKEN_FILE).is_file()
}

/// Keeps a JWT in the place of an older one; says for whom it is.
///
/// # Errors
/// It is none, or for another key, or cannot be kept.
pub fn accept(data_dir: &Path, file: &Path) -> Result<String, IdentityError> {
    let known = take(data_dir, &read(file)?)?;
    Ok(format!("this device is {} to the hub; an agent that runs takes it up by itself\n", known.name))
}

/// Keeps a JWT, whatever there was before; gives what it says.
///
/// # Errors
/// It is none, or for another key, or cannot be kept.
pub(crate) fn take(data_dir: &Path, token: &str) -> Result<Known, IdentityError> {
    let seed = data_dir.join(FOLDER).join(SEED_FILE);
    let ours = known(&seed)?.ok_or(IdentityError::NoKey)?.public_key();
    let known = jwt::read(token)?;
    if known.sub != ours {
        return Err(IdentityError::Foreign { name: known.name, theirs: known.sub, ours });
    }
    keep(&data_dir.join(FOLDER).join(TOKEN_FILE), token.trim())?;
    Ok(known)
}

/// The JWT in a file that others may write; none where there is no such file. Waits for nobody and reads no more than a
/// JWT can have.
///
/// # Errors
/// It is no plain file, or too large, or cannot be read.
pub(crate) fn offered(file: &Path) -> Result<Option<String>, IdentityError> {
    let nonblocking = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or_default();
    let opened = match File::options().read(true).custom_flags(nonblocking).open(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(failed("read", file))?,
    };
    let about = opened.metadata().map_err(failed("read", file))?;
    if !about.is_file() {
        return Err(IdentityError::NoFile(file.to_owned()));
    }
    if about.len() > jwt::TOKEN_BYTES_MAX as u64 {
        return Err(IdentityError::TooLarge(file.to_owned()));
    }
    let mut bytes = Vec::new();
    opened.take(jwt::TOKEN_BYTES_MAX as u64).read_to_end(&mut bytes).map_err(failed("read", file))?;
    String::from_utf8(bytes).map(Some).map_err(|_| TokenError::Shape.into())
}

/// Keeps a JWT that nobody has vouched for here, if it renews the one in use; nothing where it is that one.
///
/// # Errors
/// It renews nothing of ours, or cannot be kept. Nothing has changed then.
pub fn renew(data_dir: &Path, token: &str) -> Result<Option<Known>, IdentityError> {
    let folder = data_dir.join(FOLDER);
    let ours = known(&folder.join(SEED_FILE))?.ok_or(IdentityError::NoKey)?.public_key();
    let path = folder.join(TOKEN_FILE);
    let in_use = read(&path).map_err(|error| IdentityError::NoTokenYet(Box::new(error)))?;
    if in_use.trim() == token.trim() {
        return Ok(None);
    }
    let (in_use, offered) = (jwt::read(&in_use)?, jwt::read(token)?);
    if offered.sub != ours {
        return Err(IdentityError::Foreign { name: offered.name, theirs: offered.sub, ours });
    }
    renews(&in_use, &offered)?;
    keep(&path, token.trim())?;
    Ok(Some(offered))
}

/// Whether a JWT stands where one in use stood, for longer.
fn renews(in_use: &Known, offered: &Known) -> Result<(), IdentityError> {
    let same = |what, theirs: &str, ours: &str| match theirs == ours {
        true => Ok(()),
        false => Err(IdentityError::OfOthers { what, theirs: theirs.to_owned(), ours: ours.to_owned() }),
    };
    same("signer", &offered.iss, &in_use.iss)?;
    same("account", &offered.nats.issuer_account, &in_use.nats.issuer_account)?;
    same("kind", &offered.nats.kind, &in_use.nats.kind)?;
    same("name", &offered.name, &in_use.name)?;
    same("tags", &offered.nats.tags.join(" "), &in_use.nats.tags.join(" "))?;
    let ends_later = in_use.exp.is_some_and(|end| offered.exp.is_none_or(|later| later > end));
    if offered.iat > in_use.iat && ends_later { Ok(()) } else { Err(IdentityError::NotLater) }
}

/// When a JWT ends, for people.
pub fn end(known: &Known) -> Option<Timestamp> {
    known.exp.and_then(|end| Timestamp::from_second(i64::try_from(end).ok()?).ok())
}

fn known(seed: &Path) -> Result<Option<KeyPair>, IdentityError> {
    match fs::read_to_string(seed) {
        Ok(text) => {
            let pair = KeyPair::from_seed(text.trim()).map_err(|_| IdentityError::Broken(seed.to_owned()))?;
            Ok(Some(pair))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed("read", seed)(error)),
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
    read.map_err(failed("read", file))?;
    String::from_utf8(bytes).map_err(|_| TokenError::Shape.into())
}

/// Writes a file as a whole, for this user's eyes alone.
fn keep(path: &Path, text: &str) -> Result<(), IdentityError> {
    let beside = path.with_extension("new");
    let write = || {
        // One that a killed process left behind would keep its own mode.
        let _ = fs::remove_file(&beside);
        let mut file = File::options().write(true).create_new(true).mode(SECRET).open(&beside)?;
        file.write_all(text.as_bytes())?;
        file.write_all(b"\n")?;
        file.sync_all()?;
        fs::rename(&beside, path)?;
        path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
    };
    write().map_err(failed("write", path))
}

/// An error of doing something to a file.
pub(crate) fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> IdentityError {
    let path = path.to_owned();
    move |source| IdentityError::File { doing, path, source }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use muster_identity::claims;

    use super::*;

    #[test]
    fn a_key_is_made_once_and_is_nobody_elses_to_read() {
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
        assert!(matches!(accept(dir.path(), &file), Err(IdentityError::NoToken(_))));
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
        assert!(matches!(renew(dir.path(), &first), Err(IdentityError::NoTokenYet(_))));
        keep(&path, &first).unwrap();
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
