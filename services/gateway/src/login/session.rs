//! A session: a person with role and end, as a sealed cookie of a browser or as a sealed token of a program.
//!
//! Both seal the same content for different purposes, so neither passes for the other. A request with several cookies or headers
//! of the name has no session.

use std::fmt;

use axum::http::header::{AUTHORIZATION, COOKIE};
use axum::http::{HeaderMap, HeaderName};
use muster_contract::OnBehalfOf;
use muster_identity::Role;
use muster_identity::login::ProvenPerson;
use serde::{Deserialize, Serialize};

use super::seal::{Purpose, Sealer};

/// The cookie of a session. By its prefix browsers accept it only over TLS or on localhost, and for this host alone.
pub(crate) const SESSION_COOKIE: &str = "__Host-muster";
/// The cookie of a login page.
pub(crate) const ATTEMPT_COOKIE: &str = "__Host-muster-login";

/// The cookie of a login at a provider.
pub(crate) const OIDC_COOKIE: &str = "__Host-muster-oidc";

/// The session of a person who has logged in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Session {
    /// The person.
    pub person: OnBehalfOf,
    /// The key or provider that vouches for the person.
    pub voucher: Voucher,
    /// The key of the account of people at the login.
    pub account: String,
    /// When the person's token was issued: Unix seconds.
    pub issued: u64,
    /// When the session ends: Unix seconds.
    pub expires: i64,
}

/// The key or provider that vouches for a person.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Voucher {
    /// The key that signed the person's token of the hub.
    Key(String),
    /// An OpenID Connect provider, by its issuer.
    Provider(String),
}

/// How a request proves its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// A browser's cookie, which other sites may have it send.
    Cookie,
    /// A program's token.
    Token,
}

/// Why a request has no session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refused {
    /// It has neither cookie nor token.
    Missing,
    /// Its cookie or token is not sealed by a gateway with this key, or is ambiguous.
    Unreadable,
    /// It has expired.
    Expired,
    /// The account of people, or the provider, no longer admits the person.
    Account(String),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => {
                f.write_str("log in: a browser at /login, a program with `muster login URL --token FILE`")
            }
            Self::Unreadable => f.write_str("this gateway cannot read the session or token: log in again"),
            Self::Expired => f.write_str("the session has expired: log in again"),
            Self::Account(why) => write!(f, "{why}; log in again"),
        }
    }
}

impl Session {
    /// Its role.
    pub(crate) fn role(&self) -> Option<Role> {
        Role::of(&self.person.role)
    }

    /// Whether it may change something.
    pub(crate) fn may_change(&self) -> bool {
        self.role() == Some(Role::Operator)
    }

    /// Whether it may approve and reject waves and operations.
    pub(crate) fn may_approve(&self) -> bool {
        self.role().is_some_and(Role::may_approve)
    }

    /// The name of the person, or the key of a person without a name.
    pub(crate) fn label(&self) -> &str {
        self.person.name.as_deref().unwrap_or(&self.person.key)
    }

    /// The proof behind it, if the person has a token of the hub.
    pub(super) fn proven(&self) -> Option<ProvenPerson> {
        let Voucher::Key(issuer) = &self.voucher else { return None };
        let issuer = issuer.clone();
        Some(ProvenPerson { person: self.person.clone(), issuer, issued: self.issued, expires: None })
    }
}

/// The session of a request, which may have expired.
///
/// # Errors
/// The request has no readable session.
pub(crate) fn read(sealer: &Sealer, headers: &HeaderMap) -> Result<(Session, Access), Refused> {
    if headers.contains_key(AUTHORIZATION) {
        let token = one(headers, &AUTHORIZATION).and_then(|value| {
            let (scheme, token) = value.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
        });
        let session = token.and_then(|token| sealer.open(Purpose::Token, token));
        return session.map(|session| (session, Access::Token)).ok_or(Refused::Unreadable);
    }
    match cookie(headers, SESSION_COOKIE) {
        Cookie::None => Err(Refused::Missing),
        Cookie::One(text) => {
            let session = sealer.open(Purpose::Session, text).ok_or(Refused::Unreadable)?;
            Ok((session, Access::Cookie))
        }
        Cookie::Several => Err(Refused::Unreadable),
    }
}

fn one<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(value)
}

/// The cookies of one name in a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Cookie<'a> {
    /// None.
    None,
    /// One, with its value.
    One(&'a str),
    /// More than one; this gateway sets only one.
    Several,
}

/// The cookie of a name.
pub(super) fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Cookie<'a> {
    let lines = headers.get_all(COOKIE).iter().filter_map(|line| line.to_str().ok());
    let pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    let mut values = pairs.filter(|(found, _)| *found == name).map(|(_, value)| value);
    match (values.next(), values.next()) {
        (None, _) => Cookie::None,
        (Some(value), None) => Cookie::One(value),
        (Some(_), Some(_)) => Cookie::Several,
    }
}

/// The header that sets a cookie for `seconds`; 0 removes it. No script can read the cookie. A browser does not send it with
/// requests of other sites, except for links; a strict cookie not even for links.
pub(super) fn set_cookie(name: &str, value: &str, seconds: i64, is_strict: bool) -> String {
    let same_site = if is_strict { "Strict" } else { "Lax" };
    format!("{name}={value}; Path=/; Max-Age={}; Secure; HttpOnly; SameSite={same_site}", seconds.max(0))
}

#[cfg(test)]
mod tests {
    use super::super::seal::tests::sealer;
    use super::*;

    fn session() -> Session {
        let person = OnBehalfOf::new("UANNA", "anna", "operator");
        let (voucher, account) = (Voucher::Key("AKEY".to_owned()), "APEOPLE".to_owned());
        Session { person, voucher, account, issued: 1, expires: 9 }
    }

    fn headers(lines: &[(HeaderName, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn a_cookie_is_no_token_and_a_token_no_cookie() {
        let sealer = sealer(1);
        let (cookie, token) = (
            sealer.seal(Purpose::Session, &session()).unwrap(),
            sealer.seal(Purpose::Token, &session()).unwrap(),
        );
        let ask = |lines: &[(HeaderName, &str)]| read(&sealer, &headers(lines)).map(|(_, access)| access);
        let as_cookie = |text: &str| ask(&[(COOKIE, &format!("a=b; {SESSION_COOKIE}={text}"))]);
        let as_token = |text: &str| ask(&[(AUTHORIZATION, &format!("Bearer {text}"))]);
        assert_eq!((as_cookie(&cookie), as_token(&token)), (Ok(Access::Cookie), Ok(Access::Token)));
        assert_eq!(
            (as_cookie(&token), as_token(&cookie)),
            (Err(Refused::Unreadable), Err(Refused::Unreadable))
        );
        assert_eq!(ask(&[]), Err(Refused::Missing));
        let own = format!("{SESSION_COOKIE}={cookie}");
        assert_eq!(ask(&[(COOKIE, &own), (COOKIE, &own)]), Err(Refused::Unreadable), "two cookies");
        let basic = [(COOKIE, own.as_str()), (AUTHORIZATION, "Basic YTpi")];
        assert_eq!(ask(&basic), Err(Refused::Unreadable), "a refused header is not passed over");
    }

    #[test]
    fn a_cookie_is_of_this_host_and_not_for_scripts() {
        let set = set_cookie(SESSION_COOKIE, "abc", 60, false);
        assert_eq!(set, "__Host-muster=abc; Path=/; Max-Age=60; Secure; HttpOnly; SameSite=Lax");
        assert!(
            set_cookie(ATTEMPT_COOKIE, "", -5, true).contains("Max-Age=0; Secure; HttpOnly; SameSite=Strict")
        );
    }
}
