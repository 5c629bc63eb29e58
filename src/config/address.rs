//! Addresses as people and launchers write them: hosts, with a port or without.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// The longest name that DNS knows, and the longest part of it (RFC 1035, section 2.3.4).
const MAX_NAME: usize = 253;
const MAX_LABEL: usize = 63;

/// A host and a port: `node1:61400`, `10.0.0.1:61400`, `[2001:db8::1]:61400`. Is written with one
/// pair of brackets around an IPv6 address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    /// A name or an address, without brackets.
    host: String,
    port: u16,
}

/// A text that is no host with a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not HOST:PORT, such as node1:61400 or [2001:db8::1]:61400")]
pub struct NotHostPort;

impl HostPort {
    /// `text` is a name, or an IP address with or without brackets. `None` for anything else, and
    /// for port 0.
    pub fn new(text: &str, port: u16) -> Option<Self> {
        let host = host(text)?.to_owned();
        (port > 0).then_some(Self { host, port })
    }

    /// The host in a text with or without a port: `node1`, `node1:80`, `[fd00::1]:80`, `fd00::1`.
    pub fn host_of(text: &str) -> Option<&str> {
        host(text).or_else(|| Some(split(text)?.0))
    }

    /// The host, without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port, not 0.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        match host.contains(':') {
            true => write!(f, "[{host}]:{port}"),
            false => write!(f, "{host}:{port}"),
        }
    }
}

impl FromStr for HostPort {
    type Err = NotHostPort;

    fn from_str(text: &str) -> Result<Self, NotHostPort> {
        let (host, port) = split(text).ok_or(NotHostPort)?;
        Self::new(host, port).ok_or(NotHostPort)
    }
}

/// Host and port of `HOST:PORT`. An IPv6 address must be in brackets, or its last group could be
/// the port.
fn split(text: &str) -> Option<(&str, u16)> {
    let (host_text, port) = text.rsplit_once(':')?;
    let is_plain = port.bytes().all(|byte| byte.is_ascii_digit());
    let is_clear = host_text.starts_with('[') || !host_text.contains(':');
    Some((host(host_text)?, port.parse().ok().filter(|_| is_plain && is_clear)?))
}

/// The host that a text without a port names, without brackets.
fn host(text: &str) -> Option<&str> {
    if let Some(inner) = text.strip_prefix('[') {
        let inner = inner.strip_suffix(']')?;
        return inner.parse::<Ipv6Addr>().is_ok().then_some(inner);
    }
    if text.contains(':') {
        return text.parse::<Ipv6Addr>().is_ok().then_some(text);
    }
    is_name(text).then_some(text)
}

/// `true` for names of hosts, and for IPv4 addresses.
fn is_name(text: &str) -> bool {
    let name = text.strip_suffix('.').unwrap_or(text);
    let is_label = |label: &str| {
        let is_known = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        (1..=MAX_LABEL).contains(&label.len())
            && label.bytes().all(is_known)
            && !label.starts_with('-')
    };
    let labels: Vec<&str> = name.split('.').collect();
    // A text of dots and numbers only is meant to be an address.
    let is_number = |label: &&str| label.bytes().all(|byte| byte.is_ascii_digit());
    let is_address = labels.len() > 1 && labels.iter().all(is_number);
    name.len() <= MAX_NAME
        && labels.iter().all(|label| is_label(label))
        && (!is_address || text.parse::<Ipv4Addr>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_with_ports_have_one_pair_of_brackets() {
        for (text, host, port, shown) in [
            ("node-1.rack_2:61400", "node-1.rack_2", 61_400, "node-1.rack_2:61400"),
            ("10.0.0.1:80", "10.0.0.1", 80, "10.0.0.1:80"),
            ("[fd00::1]:80", "fd00::1", 80, "[fd00::1]:80"),
            ("a.example.org.:1", "a.example.org.", 1, "a.example.org.:1"),
            ("3f2:65535", "3f2", 65_535, "3f2:65535"),
        ] {
            let parsed: HostPort = text.parse().unwrap();
            assert_eq!((parsed.host(), parsed.port()), (host, port), "{text}");
            assert_eq!(parsed.to_string(), shown);
        }
        for host in ["fd00::1", "[fd00::1]"] {
            assert_eq!(HostPort::new(host, 80).unwrap().to_string(), "[fd00::1]:80");
        }
        assert_eq!(HostPort::new("host", 0), None);
    }

    #[test]
    fn what_is_no_address_is_refused() {
        let hosts = [
            "",
            ".",
            "a..b",
            "-a",
            "a b",
            "a/b",
            "http://a",
            "a@b",
            "[a]",
            "[10.0.0.1]",
            "[fd00::1",
            "fd00::1]",
            "[[fd00::1]]",
            "fd00:::1",
            "fd00::1%eth0",
            "10.0.0.300",
            "10.0.0",
            "ä",
        ];
        for host in hosts {
            assert_eq!(HostPort::new(host, 80), None, "{host}");
            assert!(format!("{host}:80").parse::<HostPort>().is_err(), "{host}");
        }
        for text in ["a", "a:", "a:0", "a:x", "a:+1", "a:65536", ":1", "fd00::1:80", "[fd00::1]80"]
        {
            assert_eq!(text.parse::<HostPort>(), Err(NotHostPort), "{text}");
        }
    }

    #[test]
    fn a_port_may_be_there_or_not() {
        let rows = [
            ("host", "host"),
            ("host:80", "host"),
            ("10.0.0.1:80", "10.0.0.1"),
            ("[fd00::1]:80", "fd00::1"),
            ("[fd00::1]", "fd00::1"),
            ("fd00::1", "fd00::1"),
        ];
        for (text, host) in rows {
            assert_eq!(HostPort::host_of(text), Some(host));
        }
        assert_eq!(HostPort::host_of("a:b"), None);
    }
}
