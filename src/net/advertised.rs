//! Default of the advertised addresses, for nodes whose settings do not name them.
//!
//! A node that listens on all addresses of its host (`0.0.0.0`, `::`) advertises only one of them,
//! that of the default route. The others may be container bridges or loopback, on which another
//! host would reach a different node or itself.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;

use super::address;

/// Documentation addresses (RFC 5737, RFC 3849), which can only lie behind the default route.
const FAR_AWAY: (Ipv4Addr, Ipv6Addr) =
    (Ipv4Addr::new(192, 0, 2, 1), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1));

/// One configured listen address.
#[derive(Clone, Debug)]
pub(super) struct Listener {
    /// The address as configured.
    pub(super) wanted: Multiaddr,
    /// The addresses that the socket was bound to, with the actual port: one for each interface if
    /// all addresses are wanted.
    pub(super) bound: Vec<Multiaddr>,
}

/// Returns the addresses to tell other nodes, in the order of the listeners, and logs a choice that
/// the settings leave open. Equal addresses of consecutive listeners occur once. Not called if
/// `net.advertise` is set.
///
/// A listener on one address advertises that one, as it is bound; a listener on all addresses
/// advertises only that of the default route, and logs it at INFO. Without a default route it
/// advertises all bound addresses except loopback, also link-local ones, or the loopback ones if
/// there are no others, and logs a warning.
pub(super) fn advertised(listeners: &[Listener]) -> Vec<Multiaddr> {
    let mut result = Vec::new(); // ≤ all that is listened on
    for listener in listeners {
        let wanted = &listener.wanted;
        match routed(listener, default_route) {
            Routed::Set => result.extend(listener.bound.iter().cloned()),
            Routed::OnDefaultRoute(address) => {
                tracing::info!(
                    %address, listen = %wanted,
                    "net.advertised: the address of the default route; set net.advertise for \
                     another"
                );
                result.push(address);
            }
            Routed::Nowhere => {
                let addresses = &listener.bound;
                tracing::warn!(
                    listen = %wanted, ?addresses,
                    "net.no_route: this host has no default route that would tell which of its \
                     addresses others reach; set net.advertise"
                );
                let is_near =
                    |at: &&Multiaddr| address::host(at).is_some_and(|at| at.is_loopback());
                let (near, far): (Vec<_>, Vec<_>) = addresses.iter().partition(is_near);
                result.extend(if far.is_empty() { near } else { far }.into_iter().cloned());
            }
        }
    }
    result.dedup();
    result
}

/// How the advertised address of a listener is found.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Routed {
    /// The settings name the address, also a loopback one. Its bound form is advertised.
    Set,
    /// The settings name all addresses; this one is on the default route.
    OnDefaultRoute(Multiaddr),
    /// The settings name all addresses, and there is no usable default route or no bound port.
    Nowhere,
}

/// Finds the address that a listener advertises. `route` returns this host's address on the default
/// route of the same family, and is called only for `0.0.0.0` and `::`. Its result gets the port
/// of the listener's first bound address; without a bound address the result is `Nowhere`. The
/// result need not be one of the bound addresses. Logs nothing.
fn routed(listener: &Listener, route: impl FnOnce(IpAddr) -> Option<IpAddr>) -> Routed {
    let Some(any) = address::host(&listener.wanted).filter(IpAddr::is_unspecified) else {
        return Routed::Set;
    };
    let port = listener.bound.iter().find_map(address::socket_address).map(|at| at.port());
    match (route(any), port) {
        (Some(host), Some(port)) => {
            Routed::OnDefaultRoute(Multiaddr::from(host).with(Protocol::Tcp(port)))
        }
        _ => Routed::Nowhere,
    }
}

/// Returns this host's address on the default route of the family of `any`, which is `0.0.0.0` or
/// `::`. Connecting a UDP socket sends nothing; the kernel only selects a route. `None` if there is
/// no route, the system gives no socket, or the address is a loopback or link-local one, which
/// other hosts cannot reach. Private addresses are returned.
fn default_route(any: IpAddr) -> Option<IpAddr> {
    let far = match any {
        IpAddr::V4(_) => IpAddr::from(FAR_AWAY.0),
        IpAddr::V6(_) => IpAddr::from(FAR_AWAY.1),
    };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0)).ok()?;
    socket.connect(SocketAddr::new(far, 9)).ok()?;
    let own = socket.local_addr().ok()?.ip();
    let reaches_this_host_only = match own {
        IpAddr::V4(own) => own.is_link_local(),
        IpAddr::V6(own) => own.is_unicast_link_local(), // would need an interface beside it
    };
    let is_useless = own.is_unspecified() || own.is_loopback() || reaches_this_host_only;
    (!is_useless).then_some(own)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listener(wanted: &str, bound: &[&str]) -> Listener {
        let parse = |text: &&str| text.parse().expect("valid");
        Listener { wanted: parse(&wanted), bound: bound.iter().map(parse).collect() }
    }

    #[test]
    fn wildcard_listener_is_advertised_on_the_default_route() {
        let all =
            listener("/ip4/0.0.0.0/tcp/0", &["/ip4/127.0.0.1/tcp/7", "/ip4/172.17.0.1/tcp/7"]);
        let by = |address: &str| Routed::OnDefaultRoute(address.parse().expect("valid"));
        let route = |any: IpAddr| {
            assert!(any.is_ipv4(), "of the same family");
            Some(IpAddr::from([10, 0, 0, 5]))
        };
        assert_eq!(routed(&all, route), by("/ip4/10.0.0.5/tcp/7"));
        let all = listener("/ip6/::/tcp/7001", &["/ip6/::1/tcp/7001"]);
        let route = |any: IpAddr| {
            assert!(any.is_ipv6(), "of the same family");
            Some("2001:db8::5".parse().expect("valid"))
        };
        assert_eq!(routed(&all, route), by("/ip6/2001:db8::5/tcp/7001"));
    }

    #[test]
    fn set_address_is_kept_and_missing_route_is_detected() {
        let all = listener("/ip4/0.0.0.0/tcp/0", &["/ip4/127.0.0.1/tcp/7"]);
        assert_eq!(routed(&all, |_| None), Routed::Nowhere);
        for one in ["/ip4/127.0.0.1/tcp/7", "/ip4/10.0.0.5/tcp/7", "/ip6/::1/tcp/7"] {
            let one = listener(one, &[one]);
            assert_eq!(routed(&one, |_| unreachable!("it is not asked")), Routed::Set);
            assert_eq!(advertised(std::slice::from_ref(&one)), one.bound);
        }
    }
}
