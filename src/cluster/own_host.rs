//! This machine as others see it: its name, and which addresses are its own.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::Path;
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

/// What to change if this machine has a network interface that is at least twice as fast as the one
/// with this address, and has an address itself. Interfaces that do not tell how fast they are do
/// not count.
pub fn slower_interface(own: IpAddr) -> Option<String> {
    let all = if_addrs::get_if_addrs().ok()?;
    let usable = all.into_iter().filter(|it| !it.is_loopback() && !it.is_link_local());
    let speeds = usable.filter_map(|interface| {
        let file = Path::new("/sys/class/net").join(&interface.name).join("speed");
        let megabits = fs::read_to_string(file).ok()?.trim().parse().ok()?;
        Some((interface.ip(), interface.name, megabits))
    });
    slower_of(own, &speeds.collect::<Vec<_>>())
}

/// As [`slower_interface`], of interfaces with these addresses, names and Mbit/s.
fn slower_of(own: IpAddr, interfaces: &[(IpAddr, String, i64)]) -> Option<String> {
    let (_, own_name, own_speed) = interfaces.iter().find(|(ip, ..)| *ip == own)?;
    let (_, name, speed) = interfaces.iter().max_by_key(|(.., speed)| *speed)?;
    // -1 says that it is not known.
    let is_slower = *own_speed > 0 && speed / 2 >= *own_speed;
    let gigabits = |speed: &i64| *speed as f64 / 1e3;
    is_slower.then(|| {
        format!(
            "{} sends state to other hosts by {own_name} ({} Gbit/s), although {name} has {} \
             Gbit/s; if it leads to them, set cluster.interface = {name:?}",
            host_name(),
            gigabits(own_speed),
            gigabits(speed),
        )
    })
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

    #[test]
    fn a_faster_interface_is_named() {
        let interface = |last: u8, name: &str, megabits| {
            (IpAddr::from([10, 0, 0, last]), name.to_owned(), megabits)
        };
        let found = |own: u8, all: &[_]| slower_of([10, 0, 0, own].into(), all);
        let all = [interface(1, "eth0", 10_000), interface(2, "ib0", 400_000)];
        let text = found(1, &all).unwrap();
        assert!(text.contains("eth0 (10 Gbit/s), although ib0 has 400 Gbit/s"), "{text}");
        assert_eq!(found(2, &all), None);
        assert_eq!(found(3, &all), None, "of another machine");
        assert_eq!(found(1, &[interface(1, "eth0", -1), interface(2, "eth1", 1000)]), None);
        assert_eq!(found(1, &[interface(1, "eth0", 1000), interface(2, "eth1", -1)]), None);
        assert_eq!(found(1, &[interface(1, "eth0", 1000), interface(2, "eth1", 1000)]), None);
    }
}
