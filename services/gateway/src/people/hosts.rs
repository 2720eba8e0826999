//! The hosts under which people reach the gateway, and the scheme of each for a login.
//!
//! A loopback host is accepted from the loopback alone. Otherwise a proof for another program at `localhost:8080` of the person's
//! machine would be valid here too.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// How people reach the listener.
#[derive(Debug, Clone, Copy, Default)]
pub struct Reach {
    /// The public address is `https://`.
    pub public_is_https: bool,
    /// Every peer comes from this machine's loopback, also if its address differs (a published port of a container).
    pub only_loopback: bool,
}

/// The hosts that requests may name.
#[derive(Debug)]
pub(crate) struct Hosts {
    public: Option<String>,
    reach: Reach,
}

impl Hosts {
    /// The loopback, and a public host.
    pub(crate) fn new(public: Option<String>) -> Self {
        Self { public, reach: Reach::default() }
    }

    /// The same hosts with another reach.
    pub(super) fn with_reach(&self, reach: Reach) -> Self {
        Self { public: self.public.clone(), reach }
    }

    /// The scheme of the login's address under a host that the guard has accepted; none if the login refuses that address.
    pub(super) fn login_scheme(&self, host: &str, is_secure: bool) -> Option<&'static str> {
        scheme(self.public.as_deref() == Some(host), is_secure, self.reach)
    }

    /// Whether a peer's request may name a `Host`.
    pub(super) fn has(&self, host: &str, peer: Option<IpAddr>) -> bool {
        let host = host.to_ascii_lowercase();
        let Some((name, _)) = name_and_port(&host) else { return false };
        let is_near = self.reach.only_loopback || peer.is_some_and(|addr| addr.to_canonical().is_loopback());
        self.public.as_ref() == Some(&host) || (is_near && is_loopback(name))
    }
}

/// The scheme of a login's address; none if the login refuses that address.
const fn scheme(is_public: bool, is_secure: bool, reach: Reach) -> Option<&'static str> {
    // Behind a proxy that ends TLS every peer is on the loopback, so its address proves nothing.
    let is_proxied = reach.public_is_https && !is_secure;
    match (is_public, is_secure) {
        (true, _) if reach.public_is_https => Some("https"),
        (true, _) => Some("http"),
        (false, _) if is_proxied => None,
        (false, true) => Some("https"),
        (false, false) => Some("http"),
    }
}

/// The address that people open: the public one, else the listener's, with the loopback in place of all interfaces.
pub(crate) fn people_url(public: Option<&str>, reach: Reach, addr: SocketAddr, is_secure: bool) -> String {
    let ip: IpAddr = match addr.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    let (is_https, host) = match public {
        Some(host) => (reach.public_is_https, host.to_owned()),
        None => (is_secure, SocketAddr::new(ip, addr.port()).to_string()),
    };
    format!("{}://{host}/", if is_https { "https" } else { "http" })
}

/// Splits a host into its name (a name, an IPv4 address, or an IPv6 address in brackets) and its port; `None` for any other text.
pub(crate) fn name_and_port(host: &str) -> Option<(&str, Option<u16>)> {
    let end = if host.starts_with('[') { host.find(']')? + 1 } else { host.find(':').unwrap_or(host.len()) };
    let (name, rest) = host.split_at(end);
    let is_sign = |sign: u8| sign.is_ascii_alphanumeric() || matches!(sign, b'.' | b'-' | b'_');
    let is_name = match name.strip_prefix('[') {
        Some(rest) => rest.trim_end_matches(']').parse::<Ipv6Addr>().is_ok(),
        None => !name.is_empty() && name.bytes().all(is_sign),
    };
    let port = match rest.strip_prefix(':') {
        // The parser would accept a sign.
        Some(digits) if digits.bytes().all(|digit| digit.is_ascii_digit()) => Some(digits.parse().ok()?),
        None if rest.is_empty() => None,
        _ => return None,
    };
    is_name.then_some((name, port))
}

/// Whether the name of a host is the loopback.
fn is_loopback(name: &str) -> bool {
    let addr = name.trim_start_matches('[').trim_end_matches(']');
    name == "localhost" || addr.parse::<IpAddr>().is_ok_and(|addr| addr.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn behind_a_proxy_people_log_in_at_the_public_host_alone() {
        let (http, https) = (Reach::default(), Reach { public_is_https: true, ..Reach::default() });
        assert_eq!((scheme(true, false, https), scheme(false, false, https)), (Some("https"), None));
        assert_eq!((scheme(true, true, https), scheme(false, true, https)), (Some("https"), Some("https")));
        assert_eq!((scheme(true, false, http), scheme(false, false, http)), (Some("http"), Some("http")));
    }

    #[test]
    fn the_url_of_people_is_one_that_a_browser_can_open() {
        let (http, https) = (Reach::default(), Reach { public_is_https: true, ..Reach::default() });
        let table = [
            (None, http, "0.0.0.0:8080", false, "http://127.0.0.1:8080/"),
            (None, http, "[::]:8443", true, "https://[::1]:8443/"),
            (None, http, "127.0.0.2:8080", false, "http://127.0.0.2:8080/"),
            (Some("fleet.example.com"), https, "0.0.0.0:8443", true, "https://fleet.example.com/"),
            (Some("fleet.example.com:81"), http, "127.0.0.1:8080", false, "http://fleet.example.com:81/"),
        ];
        for (public, reach, addr, is_secure, url) in table {
            assert_eq!(people_url(public, reach, addr.parse().unwrap(), is_secure), url);
        }
    }
}
