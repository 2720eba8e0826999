//! Reads the account of people: its key and the signing keys of its roles from the gateway's own token, revocations from the
//! file that `muster auth` writes. It reads the files again every few seconds.
//!
//! Without that file the gateway knows no revocation: the hub closes a revoked person's own connections, and a session at the
//! gateway lasts until its end. A role's new signing key (`muster auth rotate`) ends the role's sessions once the gateway has
//! its new credentials.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use muster_contract::Timestamp;
use muster_identity::login::PeopleAccount;
use muster_identity::on_behalf::NoteSigner;
use muster_identity::requester::Signers;
use muster_identity::{KeyPair, Role, TokenClaims, creds, jwt};
use muster_service::error::chain;

use super::file::{ReadFileError, read_file};

/// Time after which the files are read again, in seconds.
const READ_INTERVAL: i64 = 5;

/// Why the account cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum AccountError {
    /// A file cannot be read.
    #[error(transparent)]
    Read(#[from] ReadFileError),
    /// The file has no credentials of the role gateway.
    #[error(
        "{} has no credentials of the role gateway; `muster auth creds gateway` makes them: {why}", .path.display()
    )]
    Creds {
        /// The file.
        path: PathBuf,
        /// The defect.
        why: &'static str,
    },
    /// The file with accounts does not have the account of people.
    #[error("{} does not have the account of {}: give --revocations the nats-server.conf of the same directory of keys", .path.display(), .creds.display())]
    Revocations {
        /// The file.
        path: PathBuf,
        /// The credentials.
        creds: PathBuf,
    },
}

/// The account of people, by files.
#[derive(Debug)]
pub(crate) struct Account {
    creds: PathBuf,
    revocations: Option<PathBuf>,
    /// The time of the last read in Unix seconds, and the account as it was read.
    known: Mutex<(i64, Arc<PeopleAccount>)>,
}

impl Account {
    /// Reads the files; also returns the key that signs notes.
    ///
    /// # Errors
    /// The credentials are not those of a gateway, or the file does not have their account.
    pub(crate) fn open(
        creds: PathBuf,
        revocations: Option<PathBuf>,
    ) -> Result<(Self, NoteSigner), AccountError> {
        let text = read_file(&creds)?;
        let wrong = |why| AccountError::Creds { path: creds.clone(), why };
        let key = creds::seed(&text).and_then(|seed| KeyPair::from_seed(seed).ok());
        let key = key.ok_or_else(|| wrong("it has no seed"))?;
        let known = Arc::new(account(&creds, revocations.as_deref())?);
        let known = Mutex::new((i64::MIN, known));
        Ok((Self { creds, revocations, known }, NoteSigner::new(key)))
    }

    /// The account as the files had it at most a few seconds ago. The last account stays if they cannot be read.
    pub(crate) fn known(&self, now: Timestamp) -> Arc<PeopleAccount> {
        // The held value is replaced as a whole.
        let mut held = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let now = now.as_second();
        if now.saturating_sub(held.0).unsigned_abs() < READ_INTERVAL.unsigned_abs() {
            return Arc::clone(&held.1);
        }
        held.0 = now;
        match account(&self.creds, self.revocations.as_deref()) {
            Ok(known) => held.1 = Arc::new(known),
            Err(error) => {
                tracing::warn!(error = chain(&error), "cannot read the account of people; kept the last one");
            }
        }
        Arc::clone(&held.1)
    }
}

#[cfg(test)]
impl Account {
    /// An account that was read at a time, without files.
    pub(crate) fn known_at(now: Timestamp, account: PeopleAccount) -> Self {
        let known = Mutex::new((now.as_second(), Arc::new(account)));
        Self { creds: PathBuf::new(), revocations: None, known }
    }
}

fn account(creds: &Path, revocations: Option<&Path>) -> Result<PeopleAccount, AccountError> {
    let wrong = |why| AccountError::Creds { path: creds.to_owned(), why };
    let text = read_file(creds)?;
    let claims = creds::token(&text).and_then(|token| jwt::read(token).ok());
    let claims: TokenClaims = claims.ok_or_else(|| wrong("it has no JWT"))?;
    if claims.tag("role") != Some(Role::Gateway.as_str()) {
        return Err(wrong("its JWT is of another role"));
    }
    let (key, signers) = (claims.nats.issuer_account.clone(), Signers::of(&claims));
    let revocations = match revocations {
        None => BTreeMap::new(),
        Some(path) => revoked(&read_file(path)?, &key)
            .ok_or_else(|| AccountError::Revocations { path: path.to_owned(), creds: creds.to_owned() })?,
    };
    Ok(PeopleAccount { key, signers, revocations })
}

/// The revocations of an account, by its token in the text of a nats-server.conf.
fn revoked(config: &str, account: &str) -> Option<BTreeMap<String, u64>> {
    let token = config.lines().find_map(|line| line.trim().strip_prefix(account)?.strip_prefix(": "))?;
    let claims = jwt::read(token).ok()?;
    (claims.sub == account && claims.nats.kind == "account").then_some(claims.nats.revocations)
}

#[cfg(test)]
mod tests {
    use muster_identity::claims::{self, Fleet, User};
    use muster_identity::exchange;

    use super::*;

    fn key() -> String {
        KeyPair::new_account().public_key()
    }

    #[test]
    fn the_account_is_that_of_the_credentials_with_the_files_revocations() {
        let folder = tempfile::tempdir().unwrap();
        let (creds, config) = (folder.path().join("gateway.creds"), folder.path().join("nats-server.conf"));
        let (signer, own, people) = (KeyPair::new_account(), KeyPair::new_user(), key());
        let signers = BTreeMap::from([(Role::Viewer, key()), (Role::Operator, key())]);
        let write = |role| {
            let user = User { account: &people, key: &own.public_key(), issued: 1, expires: None };
            let token = claims::service(&signer, &user, role, "gateway-1", &signers).unwrap();
            std::fs::write(&creds, creds::to_text(&token, &own.seed().unwrap())).unwrap();
        };
        write(Role::Operator);
        assert!(matches!(Account::open(creds.clone(), None), Err(AccountError::Creds { .. })));
        write(Role::Gateway);
        let (account, _) = Account::open(creds.clone(), None).unwrap();
        let known = account.known(Timestamp::UNIX_EPOCH);
        assert_eq!(
            (&known.key, known.signers.role_of(&signers[&Role::Operator])),
            (&people, Some(Role::Operator))
        );
        assert!(known.revocations.is_empty());

        let accounts = exchange::Account::ALL.into_iter().map(|of| match of {
            exchange::Account::People => (of, people.clone()),
            _ => (of, key()),
        });
        let (accounts, revocations) = (accounts.collect(), BTreeMap::from([("UANNA".to_owned(), 7)]));
        let fleet =
            Fleet { name: "fleet", accounts: &accounts, signers: &signers, revocations: &revocations };
        let tokens = claims::fleet(&KeyPair::new_operator(), &fleet, 2).unwrap();
        let text: String = exchange::Account::ALL
            .into_iter()
            .zip(tokens)
            .map(|(of, token)| format!("  {}: {token}\n", accounts[&of]))
            .collect();
        std::fs::write(&config, "").unwrap();
        let missing = Account::open(creds.clone(), Some(config.clone()));
        assert!(matches!(missing, Err(AccountError::Revocations { .. })));
        std::fs::write(&config, text).unwrap();
        let (account, _) = Account::open(creds, Some(config.clone())).unwrap();
        let second = |second| account.known(Timestamp::from_second(second).unwrap());
        assert_eq!(second(0).revocations, revocations);
        std::fs::write(&config, "").unwrap();
        assert_eq!(second(READ_INTERVAL).revocations, revocations, "the last account stays");
    }
}
