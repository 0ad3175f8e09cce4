//! Parsing of addresses, and resolution of the names of seeds.
//!
//! Seeds are found through the system's resolver only. Multicast and a DHT are not used, because
//! they find no peers inside containers. Every address of a name is dialled
//! (docs/protocol/transport.md#every-address-of-a-name-is-dialled), because libp2p's resolver stops
//! at the first address that connects, which may be this node itself.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;

/// Maximum number of addresses used for one name; further answers of the resolver are ignored, in
/// its order. Repeated answers count.
pub const RESOLVED_MAX: usize = 256;

/// Timeout of a name lookup. A lookup that the system has begun goes on in its thread after that.
pub const RESOLVE_WITHIN: Duration = Duration::from_secs(10);

/// Resolves a seed to the addresses to dial: an IP address resolves to itself, without a lookup;
/// `/dns/…`, `/dns4/…` and `/dns6/…` to one multiaddr per address of the name, IPv4 first, sorted
/// and without duplicates. The parts after the name are kept. The result is never empty; it may
/// contain an address of this node.
///
/// # Errors
/// [`ResolveError::Unsupported`], checked first and permanent, for every seed whose first part is
/// neither an IP address nor such a name, or whose second part is not `/tcp/PORT`. After the other
/// errors the caller should retry, because the name may be registered later.
pub async fn resolve(seed: &Multiaddr) -> Result<Vec<Multiaddr>, ResolveError> {
    let unsupported = || ResolveError::Unsupported { seed: seed.clone() };
    let mut parts = seed.iter();
    let (first, second) = (parts.next(), parts.next());
    let Some(Protocol::Tcp(port)) = second else { return Err(unsupported()) };
    let (name, wanted): (_, fn(&IpAddr) -> bool) = match first {
        Some(Protocol::Ip4(_) | Protocol::Ip6(_)) => return Ok(vec![seed.clone()]),
        Some(Protocol::Dns(name)) => (name, |_| true),
        Some(Protocol::Dns4(name)) => (name, IpAddr::is_ipv4),
        Some(Protocol::Dns6(name)) => (name, IpAddr::is_ipv6),
        _ => return Err(unsupported()),
    };
    let lookup = tokio::net::lookup_host((name.as_ref(), port));
    let found = match tokio::time::timeout(RESOLVE_WITHIN, lookup).await {
        Ok(found) => found,
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    };
    let found = found.map_err(|source| ResolveError::Failed { seed: seed.clone(), source })?;
    let hosts: BTreeSet<IpAddr> =
        found.map(|address| address.ip()).filter(wanted).take(RESOLVED_MAX).collect();
    if hosts.is_empty() {
        return Err(ResolveError::Nothing { seed: seed.clone() });
    }
    let dialled = hosts.into_iter().map(|host| {
        let rest = seed.iter().skip(1);
        std::iter::once(Protocol::from(host)).chain(rest).collect()
    });
    Ok(dialled.collect())
}

/// Error of [`parse`]: the text is neither `HOST:PORT` nor a multiaddr.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write HOST:PORT, such as 10.0.0.1:4100, [::1]:4100 or a.example:4100, or a multiaddr")]
pub struct NoAddress;

/// Parses an address: `10.0.0.1:4100`, `[::1]:4100` and `a.example:4100` become `/ip4/…`, `/ip6/…`
/// and `/dns/…/tcp/4100`; a text that begins with `/` is a multiaddr and is taken as it is, even if
/// it cannot be dialled. A name is not resolved. Port 0 is accepted.
///
/// # Errors
/// [`NoAddress`] if the text is neither `HOST:PORT` nor a multiaddr; so for an invalid host
/// name, for spaces around the text, and for IPv6 without brackets.
///
/// # Example
/// ```
/// use ostraca::net::address::parse;
/// assert_eq!(parse("a.example:4100").unwrap().to_string(), "/dns/a.example/tcp/4100");
/// assert_eq!(parse("[::1]:4100").unwrap().to_string(), "/ip6/::1/tcp/4100");
/// assert!(parse("a.example").is_err(), "it has no port");
/// ```
pub fn parse(text: &str) -> Result<Multiaddr, NoAddress> {
    if text.starts_with('/') {
        return text.parse().map_err(|_| NoAddress);
    }
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok(Multiaddr::from(address.ip()).with(Protocol::Tcp(address.port())));
    }
    let (host, port) = text.rsplit_once(':').ok_or(NoAddress)?;
    let port = port.parse().map_err(|_| NoAddress)?;
    if !is_host_name(host) {
        return Err(NoAddress);
    }
    Ok(Multiaddr::empty().with(Protocol::Dns(host.into())).with(Protocol::Tcp(port)))
}

/// Whether the text is a host name: labels of 1 to 63 letters, digits, hyphens and underscores, of
/// which the last is not a number (RFC 1123: a dotted number is an IPv4 address). At most 253
/// bytes; `false` for the empty text and for a name that ends in a dot.
fn is_host_name(text: &str) -> bool {
    let is_label = |label: &str| {
        let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        !label.is_empty() && label.len() <= 63 && label.chars().all(is_part)
    };
    let last = text.rsplit('.').next().unwrap_or_default();
    text.len() <= 253 && text.split('.').all(is_label) && last.parse::<u64>().is_err()
}

/// Returns the socket address at the start of a multiaddr of the form `/ip…/tcp/…`; `None` for any
/// other form, also for a name. Ignores the parts behind it.
#[must_use]
pub fn socket_address(address: &Multiaddr) -> Option<SocketAddr> {
    let mut parts = address.iter();
    let host = ip_of(&parts.next()?)?;
    match parts.next()? {
        Protocol::Tcp(port) => Some(SocketAddr::new(host, port)),
        _ => None,
    }
}

/// Returns the IP address at the start of a multiaddr, whatever follows; `None` if it begins with
/// anything else, such as a name, or is empty.
#[must_use]
pub fn host(address: &Multiaddr) -> Option<IpAddr> {
    ip_of(&address.iter().next()?)
}

/// Whether the address is a loopback address, which only processes of this host can reach; also an
/// IPv4 one that is mapped to IPv6. `false` for names, also for `localhost`, and for `0.0.0.0` and
/// `::`.
#[must_use]
pub fn is_loopback(address: &Multiaddr) -> bool {
    host(address).is_some_and(|ip| ip.to_canonical().is_loopback())
}

/// Returns the IP address of this part; `None` for a part of another kind.
fn ip_of(part: &Protocol<'_>) -> Option<IpAddr> {
    match *part {
        Protocol::Ip4(ip) => Some(ip.into()),
        Protocol::Ip6(ip) => Some(ip.into()),
        _ => None,
    }
}

/// Why a seed could not be resolved.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResolveError {
    /// The multiaddr has a form that cannot be dialled.
    #[error(
        "{seed} is neither /ip4|ip6/ADDRESS/tcp/PORT nor /dns|dns4|dns6/NAME/tcp/PORT: \
         write it like that"
    )]
    Unsupported {
        /// The seed as configured.
        seed: Multiaddr,
    },
    /// The lookup failed, or timed out after [`RESOLVE_WITHIN`].
    #[error("the name in {seed} does not resolve: does it exist in this network's DNS?")]
    Failed {
        /// The seed as configured.
        seed: Multiaddr,
        /// Error of the system's resolver.
        source: io::Error,
    },
    /// The name has no address of the requested family.
    #[error("the name in {seed} has no address of that family: try /dns/ for both families")]
    Nothing {
        /// The seed as configured.
        seed: Multiaddr,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Multiaddr {
        text.parse().expect(text)
    }

    #[test]
    fn host_and_port_become_a_multiaddr() {
        for (text, expected) in [
            ("10.0.0.1:4100", "/ip4/10.0.0.1/tcp/4100"),
            ("[::1]:4101", "/ip6/::1/tcp/4101"),
            ("a.example:2551", "/dns/a.example/tcp/2551"),
            ("node_1:1", "/dns/node_1/tcp/1"),
            ("/dns4/a/tcp/1", "/dns4/a/tcp/1"),
        ] {
            assert_eq!(parse(text).expect(text), address(expected));
        }
        let wrong = [
            "", "a", "a:", ":1", "a:70000", "::1:1", "a b:1", "1.2.3:4", "a..b:1", "/x/1", "a/b:1",
        ];
        for text in wrong {
            assert_eq!(parse(text), Err(NoAddress), "{text}");
        }
    }

    #[tokio::test]
    async fn dns_name_resolves_and_keeps_trailing_parts() {
        let peer = libp2p::PeerId::random();
        let seed = address(&format!("/dns4/localhost/tcp/7001/p2p/{peer}"));
        let found = resolve(&seed).await.expect("every host knows localhost");
        assert_eq!(found, [address(&format!("/ip4/127.0.0.1/tcp/7001/p2p/{peer}"))]);
    }

    #[tokio::test]
    async fn name_resolves_to_distinct_addresses() {
        let found = resolve(&address("/dns/localhost/tcp/7001")).await.expect("localhost");
        let once: BTreeSet<_> = found.iter().cloned().collect();
        assert_eq!(once.len(), found.len());
        assert!(found.contains(&address("/ip4/127.0.0.1/tcp/7001")), "{found:?}");
        assert!(found.iter().all(is_loopback), "{found:?}");
    }

    #[tokio::test]
    async fn ip_address_resolves_to_itself() {
        let seed = address("/ip6/::1/tcp/7001");
        assert_eq!(resolve(&seed).await.expect("itself"), [seed]);
    }

    #[tokio::test]
    async fn unsupported_multiaddrs_are_refused() {
        let peer = libp2p::PeerId::random();
        for text in [
            format!("/p2p/{peer}"),
            format!("/dnsaddr/bootstrap.libp2p.io/p2p/{peer}"),
            "/ip4/127.0.0.1/udp/7001/quic-v1".to_owned(),
            "/dns4/localhost".to_owned(),
            "/memory/1".to_owned(),
        ] {
            let error = resolve(&address(&text)).await.expect_err(&text);
            assert!(matches!(error, ResolveError::Unsupported { .. }), "{text}: {error}");
        }
    }

    #[tokio::test]
    async fn unknown_name_fails_without_hanging() {
        // `.invalid` never exists (RFC 2606) and no label has 64 bytes: no DNS server need be
        // asked.
        let name = format!("/dns4/{}.invalid/tcp/1", "x".repeat(64));
        let error = resolve(&address(&name)).await.expect_err("no such name");
        assert!(matches!(error, ResolveError::Failed { .. }), "{error}");
    }

    #[test]
    fn loopback_addresses_are_recognised() {
        for inside in ["/ip4/127.0.0.1/tcp/1", "/ip4/127.9.9.9/tcp/1", "/ip6/::1/tcp/1"] {
            assert!(is_loopback(&address(inside)), "{inside}");
        }
        for outside in
            ["/ip4/0.0.0.0/tcp/1", "/ip6/::/tcp/1", "/ip4/10.0.0.1/tcp/1", "/dns4/a/tcp/1"]
        {
            assert!(!is_loopback(&address(outside)), "{outside}");
        }
    }
}
