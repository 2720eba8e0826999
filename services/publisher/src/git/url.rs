//! The settings of the Git source: an address and a branch that are safe to pass to git and to show.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// The address of the repository: anything that git can fetch from, without a password.
#[derive(Clone, PartialEq, Eq)]
pub struct GitUrl(String);

/// A branch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Branch(String);

/// Why a setting of the Git source cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GitSettingError {
    /// The text is empty, or looks like an option.
    #[error("must be a path or a URL that git can fetch from")]
    Url,
    /// The address has a password, which every user of the machine could see in the list of processes.
    #[error("must not hold a password: put it into a file and name that with --git-token-file")]
    Password,
    /// The text is no branch name.
    #[error("must be the name of a branch, such as main")]
    Branch,
}

impl GitUrl {
    /// The address for git. An existing path is made absolute.
    pub(crate) fn for_git(&self) -> String {
        let path = Path::new(&self.0);
        let absolute = if path.exists() { path.canonicalize().ok() } else { None };
        absolute.and_then(|path| path.to_str().map(str::to_owned)).unwrap_or_else(|| self.0.clone())
    }

    /// `https://host:port` of an HTTP address, the only origin that gets the token.
    pub(crate) fn http_origin(&self) -> Option<String> {
        let (scheme, rest) = self.0.split_once("://")?;
        if !["http", "https"].contains(&scheme) {
            return None;
        }
        let authority = rest.split('/').next()?;
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        Some(format!("{scheme}://{host}"))
    }

    /// True if the traffic, including a token, is sent over the network in clear text.
    pub(crate) fn is_clear_text(&self) -> bool {
        let host =
            self.0.strip_prefix("http://").map(|rest| rest.rsplit_once('@').map_or(rest, |(_, host)| host));
        host.is_some_and(|host| !["127.", "localhost", "[::1]"].iter().any(|local| host.starts_with(local)))
    }

    /// The user of an HTTP address, which may be a token: git repeats it in its errors.
    pub(crate) fn http_user(&self) -> Option<&str> {
        self.http_origin().and(userinfo(&self.0)).filter(|user| !user.is_empty())
    }

    /// True if the address names a user.
    pub(crate) fn names_user(&self) -> bool {
        userinfo(&self.0).is_some()
    }
}

/// `user` or `user:password` of a URL.
fn userinfo(url: &str) -> Option<&str> {
    let (_, rest) = url.split_once("://")?;
    rest.split('/').next()?.rsplit_once('@').map(|(user, _)| user)
}

impl FromStr for GitUrl {
    type Err = GitSettingError;

    fn from_str(text: &str) -> Result<Self, GitSettingError> {
        if text.is_empty() || text.starts_with('-') || text.chars().any(char::is_control) {
            return Err(GitSettingError::Url);
        }
        if userinfo(text).is_some_and(|user| user.contains(':')) {
            return Err(GitSettingError::Password);
        }
        Ok(Self(text.to_owned()))
    }
}

/// Without the user, which may be a token.
impl fmt::Display for GitUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.split_once("://"), userinfo(&self.0)) {
            (Some((scheme, rest)), Some(user)) => write!(f, "{scheme}://{}", &rest[user.len() + 1..]),
            _ => f.write_str(&self.0),
        }
    }
}

impl fmt::Debug for GitUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GitUrl({self})")
    }
}

impl Branch {
    /// Its name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// `refs/heads/<name>`
    pub fn reference(&self) -> String {
        format!("refs/heads/{}", self.0)
    }
}

impl FromStr for Branch {
    type Err = GitSettingError;

    fn from_str(text: &str) -> Result<Self, GitSettingError> {
        let name = text.strip_prefix("refs/heads/").unwrap_or(text);
        let forbidden = |c: char| c.is_whitespace() || c.is_control() || "~^:?*[\\".contains(c);
        let part = |part: &str| !part.is_empty() && !part.starts_with('.') && !part.ends_with(".lock");
        let sound = !name.starts_with('-')
            && !name.contains(forbidden)
            && !name.contains("..")
            && !name.contains("@{")
            && !name.ends_with('.')
            && name.split('/').all(part);
        if sound { Ok(Self(name.to_owned())) } else { Err(GitSettingError::Branch) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_shown_without_its_user_and_has_no_password() {
        for (text, shown) in [
            ("https://git.example/fleet.git", "https://git.example/fleet.git"),
            ("https://someone@git.example/fleet.git", "https://git.example/fleet.git"),
            ("ssh://git@git.example:22/fleet.git", "ssh://git.example:22/fleet.git"),
            ("git@git.example:fleet.git", "git@git.example:fleet.git"),
            ("/srv/fleet", "/srv/fleet"),
        ] {
            let url: GitUrl = text.parse().unwrap();
            assert_eq!(url.to_string(), shown);
        }
        assert_eq!("https://a:b@git.example/x".parse::<GitUrl>(), Err(GitSettingError::Password));
        for bad in ["", "--upload-pack=evil", "a\nb"] {
            assert_eq!(bad.parse::<GitUrl>(), Err(GitSettingError::Url), "{bad:?}");
        }
    }

    #[test]
    fn a_token_is_for_one_origin_only() {
        for (text, origin) in [
            ("https://git.example/fleet.git", Some("https://git.example")),
            ("http://someone@127.0.0.1:8080/x", Some("http://127.0.0.1:8080")),
            ("ssh://git@git.example/x", None),
            ("/srv/fleet", None),
        ] {
            assert_eq!(text.parse::<GitUrl>().unwrap().http_origin().as_deref(), origin);
        }
    }

    #[test]
    fn an_http_address_of_another_machine_is_clear_text() {
        for (text, clear) in [
            ("http://git.example/fleet", true),
            ("http://me@git.example/fleet", true),
            ("http://127.0.0.1:3000/fleet", false),
            ("http://me@localhost/fleet", false),
            ("https://git.example/fleet", false),
            ("/srv/fleet", false),
        ] {
            assert_eq!(text.parse::<GitUrl>().unwrap().is_clear_text(), clear, "{text}");
        }
    }

    #[test]
    fn a_branch_follows_gits_rules_of_names() {
        for good in ["main", "release/7", "refs/heads/main", "a.b-c_d"] {
            assert!(good.parse::<Branch>().unwrap().reference().starts_with("refs/heads/"), "{good}");
        }
        assert_eq!("refs/heads/main".parse::<Branch>().unwrap().as_str(), "main");
        for bad in
            ["", "-b", "a b", "a..b", "a:b", "a^", "/a", "a/", "a//b", ".a", "a.lock", "a.", "@{1}", "*"]
        {
            assert_eq!(bad.parse::<Branch>(), Err(GitSettingError::Branch), "{bad:?}");
        }
    }
}
