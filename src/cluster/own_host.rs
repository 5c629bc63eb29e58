//! This machine as others see it: its name, and which addresses are its own.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::{fs, io, process};

/// Where a host is, seen from this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whereabouts {
    /// It is this machine, with this address.
    Here(IpAddr),
    /// It is another machine, or a service or gateway that passes on to one.
    Elsewhere(IpAddr),
}

impl Whereabouts {
    /// Where `host` is, a name or an address without brackets. May ask a name server.
    ///
    /// # Errors
    /// A name without an address.
    pub fn of(host: &str) -> io::Result<Self> {
        let mut addresses: Vec<IpAddr> =
            (host, 0).to_socket_addrs()?.map(|address| address.ip()).collect();
        addresses.sort_by_key(|ip| !is_own(*ip));
        match addresses.first() {
            Some(ip) if is_own(*ip) => Ok(Self::Here(*ip)),
            Some(ip) => Ok(Self::Elsewhere(*ip)),
            None => Err(without_address()),
        }
    }
}

/// `true` if a socket of this machine can have the address.
fn is_own(ip: IpAddr) -> bool {
    UdpSocket::bind((ip, 0)).is_ok()
}

fn without_address() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the host has no address")
}

/// The address of this machine on the way to another one, `HOST:PORT`. No packet is sent.
///
/// # Errors
/// A host without an address, or no way to it.
pub fn local_address(remote: &str) -> io::Result<IpAddr> {
    let remote = remote.to_socket_addrs()?.next().ok_or_else(without_address)?;
    let any: SocketAddr = match remote {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(remote)?;
    Ok(socket.local_addr()?.ip())
}

/// The address of a network interface of this machine: IPv4 if it has one.
///
/// # Errors
/// An interface that is not there or has no address, with those that have one.
pub fn interface_address(name: &str) -> Result<IpAddr, String> {
    let mut found = if_addrs::get_if_addrs()
        .map_err(|error| format!("the interfaces of this host cannot be listed: {error}"))?;
    found.sort_by_key(|interface| interface.ip().is_ipv6());
    // Others cannot reach an address that is valid on its own link only.
    found.retain(|interface| !interface.is_link_local());
    if let Some(interface) = found.iter().find(|interface| interface.name == name) {
        return Ok(interface.ip());
    }
    let there: Vec<_> =
        found.iter().map(|interface| format!("{} ({})", interface.name, interface.ip())).collect();
    Err(format!(
        "{} has no such interface with an address; it has {}",
        host_name(),
        there.join(", ")
    ))
}

/// The name of this machine, for messages.
pub fn host_name() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname");
    name.map_or_else(|_| format!("process {}", process::id()), |name| name.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_addresses_are_told_from_others() {
        let here = Whereabouts::Here(Ipv4Addr::LOCALHOST.into());
        assert_eq!(Whereabouts::of("127.0.0.1").unwrap(), here);
        assert!(
            matches!(Whereabouts::of("localhost"), Ok(Whereabouts::Here(ip)) if ip.is_loopback())
        );
        // TEST-NET-3, which no machine has (RFC 5737).
        let elsewhere = Ipv4Addr::new(203, 0, 113, 9);
        let found = Whereabouts::of("203.0.113.9").unwrap();
        assert_eq!(found, Whereabouts::Elsewhere(elsewhere.into()));
        assert_eq!(local_address("127.0.0.1:80").unwrap(), IpAddr::from(Ipv4Addr::LOCALHOST));
    }

    #[test]
    fn interfaces_have_addresses_and_unknown_ones_are_answered_with_those_that_are_there() {
        assert_eq!(interface_address("lo"), Ok(Ipv4Addr::LOCALHOST.into()));
        let error = interface_address("lo9").unwrap_err();
        assert!(error.contains("no such interface") && error.contains("lo (127.0.0.1)"), "{error}");
    }
}
