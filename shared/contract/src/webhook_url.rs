//! The address of a webhook: https, without user, password and fragment. Its path may be a secret, so errors and lists name the
//! host alone.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

/// An https address without user and password.
#[derive(Clone, PartialEq, Eq)]
pub struct WebhookUrl {
    text: String,
    host: String,
    port: u16,
}

/// Why a text is no address of a webhook.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is not the address of a webhook: https://HOST[:PORT]/PATH, without user, password and fragment"
)]
pub struct WebhookUrlError(String);

/// Bytes of an address.
const WEBHOOK_URL_BYTES_MAX: usize = 512;
/// Characters of a bad text that an error repeats.
const REPEATED_CHARS_MAX: usize = 80;

impl FromStr for WebhookUrl {
    type Err = WebhookUrlError;

    fn from_str(text: &str) -> Result<Self, WebhookUrlError> {
        let is_plain = text.len() <= WEBHOOK_URL_BYTES_MAX
            && text.bytes().all(|b| b.is_ascii_graphic() && !br#"#\"<>^`{|}"#.contains(&b));
        let of_authority = |rest: &str| {
            let authority = rest.split(['/', '?']).next().unwrap_or_default();
            let (host, port) = split_authority(authority)?;
            Some(Self { text: text.to_owned(), host: host.to_ascii_lowercase(), port })
        };
        let url = text.strip_prefix("https://").filter(|_| is_plain).and_then(of_authority);
        // A bad address may hold a password, so only its beginning is repeated, up to the user's name.
        let shown = || text.split('@').next().unwrap_or_default().chars().take(REPEATED_CHARS_MAX).collect();
        url.ok_or_else(|| {
            WebhookUrlError(if text.contains('@') { "https://…".to_owned() } else { shown() })
        })
    }
}

/// Host and port of the part of an address between scheme and path.
fn split_authority(authority: &str) -> Option<(&str, u16)> {
    let port_of = |text: &str| text.parse().ok().filter(|port| *port > 0);
    if let Some(rest) = authority.strip_prefix('[') {
        let (host, rest) = rest.split_once(']')?;
        host.parse::<std::net::Ipv6Addr>().ok()?;
        let port = if rest.is_empty() { Some(443) } else { rest.strip_prefix(':').and_then(port_of) };
        return Some((host, port?));
    }
    let (host, port) = match authority.split_once(':') {
        Some((host, port)) => (host, port_of(port)?),
        None => (authority, 443),
    };
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b))
    };
    (host.len() <= 253 && host.split('.').all(is_label)).then_some((host, port))
}

impl WebhookUrl {
    /// The host of an authority, without its port.
    pub fn host_of(authority: &str) -> &str {
        match authority.rsplit_once(':') {
            // The port of an address of IPv6 is behind its bracket.
            Some((host, port)) if !port.ends_with(']') => host,
            _ => authority,
        }
    }

    /// Its host: a name or an address.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Its port.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Its host and, unless it is 443, its port, as in the header `Host`.
    pub fn authority(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        if self.port == 443 { host } else { format!("{host}:{}", self.port) }
    }

    /// Its path and query.
    pub fn path(&self) -> Cow<'_, str> {
        let rest = self.text.strip_prefix("https://").unwrap_or_default();
        match rest.find(['/', '?']) {
            Some(at) if rest[at..].starts_with('/') => Cow::Borrowed(&rest[at..]),
            Some(at) => Cow::Owned(format!("/{}", &rest[at..])),
            None => Cow::Borrowed("/"),
        }
    }
}

impl fmt::Display for WebhookUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Without path and query.
impl fmt::Debug for WebhookUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WebhookUrl").field(&self.authority()).finish()
    }
}

crate::text::text_type!(WebhookUrl, {
    "type": "string",
    "pattern": "^https://[^/@#]+([/?][^#]*)?$",
    "maxLength": WEBHOOK_URL_BYTES_MAX,
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_webhook_has_an_https_address_without_a_password() {
        for (text, host, port, path) in [
            ("https://Checks.example", "checks.example", 443, "/"),
            ("https://10.0.0.7:8443/a/b?c=d", "10.0.0.7", 8443, "/a/b?c=d"),
            ("https://[fd00::1]:1?x", "fd00::1", 1, "/?x"),
        ] {
            let url: WebhookUrl = text.parse().unwrap();
            assert_eq!((url.host(), url.port(), &*url.path()), (host, port, path), "{text}");
            assert_eq!(WebhookUrl::host_of(&url.authority()).trim_matches(['[', ']']), host);
        }
        assert_eq!(WebhookUrl::host_of("[::1]"), "[::1]");
        for bad in [
            "http://a",
            "https://",
            "https:///x",
            "https://a:0",
            "https://a:70000",
            "https://u:p@a/",
            "https://a/#x",
            "https://a b/",
            "https://[::1",
            "https://a\r\nX: y/",
            "ftp://a",
            "https://ä.example",
        ] {
            assert!(bad.parse::<WebhookUrl>().is_err(), "{bad}");
        }
        let secret = "https://user:secret@a/".parse::<WebhookUrl>().unwrap_err().to_string();
        assert!(!secret.contains("secret"), "{secret}");
    }
}
