//! Types of single settings, which are valid by construction.

use std::fmt;
use std::str::FromStr;

const SCHEMES: [&str; 4] = ["nats", "tls", "ws", "wss"];
const UNITS: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// The rule that a text breaks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// Not a list of NATS servers.
    #[error(
        "'{0}' must be a NATS server such as nats://127.0.0.1:4222 (or tls://, ws://, wss://); several separated by commas"
    )]
    NatsUrl(String),
    /// Not a size.
    #[error("must be a size such as 4GiB, 512MiB or a number of bytes, at least {min}")]
    Size {
        /// The least size.
        min: u64,
    },
    /// Not a number of copies.
    #[error("must be 1, 3 or 5: an even number survives no more losses than one less")]
    Replicas,
    /// Not a log format.
    #[error("must be text or json")]
    LogFormat,
}

/// One or more NATS servers. Its text hides user and password.
#[derive(Clone, PartialEq, Eq)]
pub struct NatsUrl(String);

/// The format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people; coloured on a terminal.
    Text,
    /// One JSON object a line.
    Json,
}

impl NatsUrl {
    /// The servers, separated by commas, each with its scheme, user and password.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for NatsUrl {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let server = |one: &str| server(one).ok_or_else(|| ValueError::NatsUrl(mask_credentials(one)));
        let servers = text.split(',').map(server).collect::<Result<Vec<_>, _>>()?;
        Ok(Self(servers.join(",")))
    }
}

impl fmt::Display for NatsUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&mask_credentials(&self.0))
    }
}

impl fmt::Debug for NatsUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NatsUrl({self})")
    }
}

impl FromStr for LogFormat {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(ValueError::LogFormat),
        }
    }
}

/// The text without the part of a URL before the `@`, which may be a password.
pub(super) fn mask_credentials(text: &str) -> String {
    let mask = |url: &str| match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://***@{host}"),
        (None, Some((_, host))) => format!("***@{host}"),
        (_, None) => url.to_owned(),
    };
    text.split(',').map(mask).collect::<Vec<_>>().join(",")
}

/// Parses bytes as `4GiB`, `512MiB` or a number.
pub(super) fn parse_bytes(text: &str, min: u64) -> Result<u64, ValueError> {
    let unit = UNITS.iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, *bytes)));
    let (number, bytes) = unit.unwrap_or((text, 1));
    let size = number.trim().parse::<u64>().ok().and_then(|number| number.checked_mul(bytes));
    let fits = |size: &u64| *size >= min && i64::try_from(*size).is_ok();
    size.filter(fits).ok_or(ValueError::Size { min })
}

/// One server with its scheme; `nats` if it names none.
fn server(text: &str) -> Option<String> {
    let text = text.trim();
    let (scheme, rest) = text.split_once("://").unwrap_or(("nats", text));
    let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    (SCHEMES.contains(&scheme) && is_host(host)).then(|| format!("{scheme}://{rest}"))
}

/// `HOST`, `HOST:PORT`, or an IPv6 address in brackets with or without a port.
fn is_host(text: &str) -> bool {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    };
    let name = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    let plain = !host.is_empty() && host.bytes().all(name);
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let address = bracketed.is_some_and(|host| host.parse::<std::net::Ipv6Addr>().is_ok());
    (plain || address) && port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_a_host_with_an_optional_scheme_and_port() {
        let table = [
            ("localhost", "nats://localhost"),
            ("127.0.0.1:4222", "nats://127.0.0.1:4222"),
            ("tls://hub.example.com:4443", "tls://hub.example.com:4443"),
            ("nats://a, nats://b:1", "nats://a,nats://b:1"),
            ("nats://[::1]:4222", "nats://[::1]:4222"),
            ("ws://me:pass@hub", "ws://me:pass@hub"),
        ];
        for (text, url) in table {
            assert_eq!(text.parse::<NatsUrl>().unwrap().as_str(), url);
        }
        for bad in
            ["", "nats://", "http://a", "nats://a:0", "nats://a:x", "nats://a b", "a,", "::1", "nats://[x]"]
        {
            assert!(bad.parse::<NatsUrl>().is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn a_password_is_never_shown() {
        let url: NatsUrl = "nats://me:secret@a:4222,tls://token@b".parse().unwrap();
        assert_eq!(url.to_string(), "nats://***@a:4222,tls://***@b");
        assert!(!format!("{url:?}").contains("secret"));
        let refusal = "http://me:secret@a".parse::<NatsUrl>().unwrap_err().to_string();
        assert!(refusal.contains("http://***@a") && !refusal.contains("secret"), "{refusal}");
    }
}
