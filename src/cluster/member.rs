//! A member: one incarnation of a node, its [`Status`], and what it says about itself.
//!
//! [`Member::join`] is the least upper bound of what two nodes believe of the same incarnation:
//! every field only ever grows, so beliefs merge in any order. Knows nothing of other members.
//! Spec: spec/membership.md, *State*; transitions as in Akka's cluster specification.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::fmt;

use ostraca_ddata::id::{NodeId, PeerKey, ReplicaId};
use serde::{Deserialize, Serialize, Serializer};

/// Bytes of an [`Address`], at most.
pub const ADDRESS_BYTES_MAX: usize = 256;

/// Roles of a member, at most.
pub const ROLES_MAX: usize = 64;

/// Entity types that a member hosts, at most.
pub const ENTITY_TYPES_MAX: usize = 1_024;

/// Bytes of a role's or an entity type's name, or of an app version, at most; at least 1.
pub const NAME_BYTES_MAX: usize = 128;

/// Where a member stands, in the order of its life. Of two beliefs about one incarnation the
/// later wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Status {
    /// Let in, but in no configuration yet: receives data, does not count.
    #[serde(rename = "j")]
    Joining,
    /// Waited long for a configuration: is seen and routes, hosts nothing, counts in no quorum.
    #[serde(rename = "w")]
    WeaklyUp,
    /// In the configuration.
    #[serde(rename = "u")]
    Up,
    /// Asked to go; drains.
    #[serde(rename = "l")]
    Leaving,
    /// Has drained; waits to be removed.
    #[serde(rename = "x")]
    Exiting,
    /// Declared dead; waits to be removed.
    #[serde(rename = "d")]
    Down,
    /// Gone for ever. Never stands in gossip: what remains there is a tombstone.
    #[serde(rename = "r")]
    Removed,
}

impl Status {
    /// All of them, in the order of a life.
    pub const ALL: [Self; 7] = [
        Self::Joining,
        Self::WeaklyUp,
        Self::Up,
        Self::Leaving,
        Self::Exiting,
        Self::Down,
        Self::Removed,
    ];

    /// Whether a member may be taken from here to `next` in one step. Beliefs that merge may skip
    /// steps, always forwards.
    #[must_use]
    pub const fn may_become(self, next: Self) -> bool {
        use Status::{Down, Exiting, Joining, Leaving, Removed, Up, WeaklyUp};
        match self {
            Joining => matches!(next, WeaklyUp | Up | Leaving | Down | Removed),
            WeaklyUp => matches!(next, Up | Leaving | Down | Removed),
            Up => matches!(next, Leaving | Down | Removed),
            Leaving => matches!(next, Exiting | Down | Removed),
            Exiting => matches!(next, Down | Removed),
            Down => matches!(next, Removed),
            Removed => false,
        }
    }

    /// Whether it is on its way out for good: nobody waits for its word any more.
    #[must_use]
    pub const fn is_going(self) -> bool {
        matches!(self, Self::Exiting | Self::Down | Self::Removed)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Joining => "Joining",
            Self::WeaklyUp => "WeaklyUp",
            Self::Up => "Up",
            Self::Leaving => "Leaving",
            Self::Exiting => "Exiting",
            Self::Down => "Down",
            Self::Removed => "Removed",
        })
    }
}

/// Where a node is reached: a multiaddr, 1 to [`ADDRESS_BYTES_MAX`] bytes.
///
/// Ordered by host (as text), then by port (as a number), then by the rest.
/// # Example
/// ```
/// use ostraca::cluster::member::Address;
/// let at = |text: &str| Address::new(text).unwrap();
/// assert!(at("/dns4/a/tcp/9000") < at("/dns4/b/tcp/80"));
/// assert!(at("/dns4/a/tcp/80") < at("/dns4/a/tcp/9000"));
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct Address {
    text: String,
    // Sorting members compares addresses again and again: where the host stands, and the port.
    host: (u16, u16),
    port: u16,
}

const _: () = assert!(ADDRESS_BYTES_MAX <= u16::MAX as usize, "offsets are short");

/// A text that is no [`Address`]. Nothing was taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an address has 1 to {ADDRESS_BYTES_MAX} bytes, this one has {len}")]
pub struct InvalidAddress {
    /// Bytes given.
    pub len: usize,
}

impl Address {
    /// The address with this text.
    ///
    /// # Errors
    /// [`InvalidAddress`] if it is empty or longer than [`ADDRESS_BYTES_MAX`].
    pub fn new(text: impl Into<String>) -> Result<Self, InvalidAddress> {
        let text = text.into();
        match text.len() {
            1..=ADDRESS_BYTES_MAX => {
                let (host, port) = host_and_port(&text);
                Ok(Self { text, host, port })
            }
            len => Err(InvalidAddress { len }),
        }
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether it is a name, which may stand for several nodes, this one among them.
    #[must_use]
    pub fn is_name(&self) -> bool {
        self.text.split('/').nth(1).is_some_and(|protocol| protocol.starts_with("dns"))
    }

    fn host(&self) -> &str {
        &self.text[usize::from(self.host.0)..usize::from(self.host.1)]
    }
}

/// Where the host stands, and the port; the whole text and 0 if it is no multiaddr.
fn host_and_port(text: &str) -> ((u16, u16), u16) {
    let mut at = 0;
    let mut parts = text.split('/').map(|part| {
        let from = at;
        at = from + part.len() + 1;
        (from, part)
    });
    parts.next();
    let (mut host, mut port) = (None, None);
    while let (Some((_, protocol)), Some((from, value))) = (parts.next(), parts.next()) {
        match protocol {
            "ip4" | "ip6" | "dns" | "dns4" | "dns6" | "dnsaddr" if host.is_none() => {
                host = Some((from, from + value.len()));
            }
            "tcp" | "udp" if port.is_none() => port = value.parse().ok(),
            _ => {}
        }
    }
    let (from, to) = host.unwrap_or((0, text.len()));
    let short = |at: usize| u16::try_from(at).expect("no longer than an address");
    ((short(from), short(to)), port.unwrap_or(0))
}

impl Serialize for Address {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl TryFrom<String> for Address {
    type Error = InvalidAddress;

    fn try_from(text: String) -> Result<Self, InvalidAddress> {
        Self::new(text)
    }
}

impl Ord for Address {
    fn cmp(&self, other: &Self) -> Ordering {
        self.host()
            .cmp(other.host())
            .then_with(|| self.port.cmp(&other.port))
            .then_with(|| self.text.cmp(&other.text))
    }
}

impl PartialOrd for Address {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// What a member hosts, by its own word. Of two words the one with the higher revision holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Hosting {
    /// Raised by the member with each change. First, so that it decides the order.
    #[serde(rename = "n", default)]
    pub revision: u64,
    /// Asked to give everything away: no target of allocations.
    #[serde(rename = "d", default, skip_serializing_if = "std::ops::Not::not")]
    pub draining: bool,
    /// Names of the entity types that it hosts.
    #[serde(rename = "t", default, skip_serializing_if = "BTreeSet::is_empty")]
    pub entity_types: BTreeSet<String>, // ≤ ENTITY_TYPES_MAX
}

/// One incarnation of a node, as the cluster sees it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Member {
    /// Who it is.
    #[serde(rename = "n")]
    pub node: NodeId,
    /// Where others dial it. Fixed for this incarnation.
    #[serde(rename = "a")]
    pub address: Address,
    /// Where it stands.
    #[serde(rename = "s")]
    pub status: Status,
    /// What it is for. Fixed for this incarnation.
    #[serde(rename = "r", default, skip_serializing_if = "BTreeSet::is_empty")]
    pub roles: BTreeSet<String>, // ≤ ROLES_MAX
    /// Its age: the lower, the older. Assigned with Up.
    #[serde(rename = "u", default, skip_serializing_if = "Option::is_none")]
    pub up_number: Option<u64>,
    /// The version of the application. Fixed for this incarnation.
    #[serde(rename = "v", default, skip_serializing_if = "String::is_empty")]
    pub app_version: String,
    /// When it asked to join, in ticks of the gossip's own counter
    /// (`Gossip::next_stamp`), as told by the node that it
    /// asked. Fixed for this incarnation: whoever adds it adds it with the same stamp.
    #[serde(rename = "b")]
    pub since: u64,
    /// What it hosts.
    #[serde(rename = "h", default)]
    pub hosting: Hosting,
}

/// Why these fields are no member. Nothing was taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidMember {
    /// Too many roles or entity types.
    #[error("{len} names where at most {limit} are allowed; give the node fewer")]
    TooMany {
        /// Names given.
        len: usize,
        /// Names allowed.
        limit: usize,
    },
    /// The name of a role or an entity type, or an app version, has a wrong length.
    #[error("a name has 1 to {NAME_BYTES_MAX} bytes, this one has {len}; choose another")]
    Name {
        /// Bytes given.
        len: usize,
    },
    /// A removed incarnation is no member.
    #[error("replica {0} is removed and listed as a member")]
    Removed(ReplicaId),
}

impl Member {
    /// A node that asks to join, with no roles, hosting nothing.
    ///
    /// `since` is the stamp that the node it asked first has told it.
    #[must_use]
    pub fn joining(node: NodeId, address: Address, since: u64) -> Self {
        Self {
            node,
            address,
            status: Status::Joining,
            roles: BTreeSet::new(),
            up_number: None,
            app_version: String::new(),
            since,
            hosting: Hosting::default(),
        }
    }

    /// This life of it.
    #[must_use]
    pub const fn incarnation(&self) -> ReplicaId {
        self.node.incarnation
    }

    /// Who it is, whatever its incarnation.
    #[must_use]
    pub const fn peer(&self) -> PeerKey {
        self.node.peer
    }

    /// Whether it has `role`; every member has none.
    #[must_use]
    pub fn has_role(&self, role: Option<&str>) -> bool {
        role.is_none_or(|role| self.roles.contains(role))
    }

    /// Whether it is Up, and nobody has asked it to leave.
    #[must_use]
    pub fn stays(&self) -> bool {
        self.status == Status::Up && !self.hosting.draining
    }

    /// The order of addresses; two nodes at one address are ordered by who they are.
    #[must_use]
    pub fn by_address(&self, other: &Self) -> Ordering {
        self.address.cmp(&other.address).then_with(|| self.node.cmp(&other.node))
    }

    /// Oldest first; who has no age yet comes last. Ties by address.
    #[must_use]
    pub fn by_age(&self, other: &Self) -> Ordering {
        let age = |member: &Self| member.up_number.unwrap_or(u64::MAX);
        age(self).cmp(&age(other)).then_with(|| self.by_address(other))
    }

    /// Whether it has been taken up into the configuration and not yet left it by its own word.
    #[must_use]
    pub const fn counts(&self) -> bool {
        matches!(self.status, Status::Up | Status::Leaving)
    }

    /// Checks names and numbers against their bounds.
    ///
    /// # Errors
    /// [`InvalidMember`] says which bound is broken.
    pub fn check(&self) -> Result<(), InvalidMember> {
        let names = [(&self.roles, ROLES_MAX), (&self.hosting.entity_types, ENTITY_TYPES_MAX)];
        for (names, limit) in names {
            if names.len() > limit {
                return Err(InvalidMember::TooMany { len: names.len(), limit });
            }
            let lengths = names.iter().map(String::len);
            if let Some(len) = lengths.into_iter().find(|len| !(1..=NAME_BYTES_MAX).contains(len)) {
                return Err(InvalidMember::Name { len });
            }
        }
        if self.app_version.len() > NAME_BYTES_MAX {
            return Err(InvalidMember::Name { len: self.app_version.len() });
        }
        if self.status == Status::Removed {
            return Err(InvalidMember::Removed(self.incarnation()));
        }
        Ok(())
    }

    /// Takes over what `other` knows later of the same incarnation; says whether that was
    /// anything. Commutative, associative, idempotent.
    pub fn join(&mut self, other: &Self) -> bool {
        let before = self.clone();
        let fixed = |member: &Self| {
            (member.node, member.address.clone(), member.roles.clone(), member.app_version.clone())
        };
        // Fixed fields never differ but by a fault; the greater ones keep the nodes equal then.
        if fixed(other) > fixed(self) {
            (self.node, self.address, self.roles, self.app_version) = fixed(other);
        }
        self.since = self.since.max(other.since);
        self.status = self.status.max(other.status);
        self.up_number = match (self.up_number, other.up_number) {
            (Some(one), Some(another)) => Some(one.min(another)),
            (one, another) => one.or(another),
        };
        if other.hosting > self.hosting {
            self.hosting = other.hosting.clone();
        }
        *self != before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Address {
        Address::new(text).unwrap()
    }

    #[test]
    fn names_are_told_from_addresses_of_one_host() {
        let is_name = |text: &str| Address::new(text).unwrap().is_name();
        assert!(["/dns/a/tcp/1", "/dns4/a/tcp/1", "/dns6/a/tcp/1"].into_iter().all(is_name));
        assert!(!["/ip4/10.0.0.1/tcp/1", "/ip6/::1/tcp/1", "dns"].into_iter().any(is_name));
    }

    #[test]
    fn addresses_order_by_host_then_by_port_as_a_number() {
        let ordered = [
            "/dns4/a/tcp/80",
            "/dns4/a/tcp/9000",
            "/dns4/a/tcp/10000",
            "/ip4/10.0.0.1/udp/1/quic-v1",
            "/ip4/10.0.0.1/tcp/2",
        ];
        let mut sorted = ordered.map(at).to_vec();
        sorted.reverse();
        sorted.sort();
        let expected: Vec<_> = ["/ip4/10.0.0.1/udp/1/quic-v1", "/ip4/10.0.0.1/tcp/2"]
            .into_iter()
            .chain(["/dns4/a/tcp/80", "/dns4/a/tcp/9000", "/dns4/a/tcp/10000"])
            .map(at)
            .collect();
        assert_eq!(sorted, expected);
    }

    #[test]
    fn an_address_that_is_no_multiaddr_is_its_own_host() {
        assert!(at("A") < at("B"));
        assert!(at("A") < at("A/x/y/z"));
        let parts = |text: &str| (at(text).host().to_owned(), at(text).port);
        assert_eq!(parts("/dns4/a/tcp/many"), ("a".to_owned(), 0));
        assert_eq!(parts("/"), ("/".to_owned(), 0));
    }

    #[test]
    fn an_address_has_a_length() {
        assert_eq!(Address::new(""), Err(InvalidAddress { len: 0 }));
        assert_eq!(Address::new("x".repeat(257)), Err(InvalidAddress { len: 257 }));
        assert!(Address::new("x".repeat(256)).is_ok());
    }

    #[test]
    fn a_status_only_moves_forwards_and_removed_is_the_end() {
        for from in Status::ALL {
            for to in Status::ALL {
                assert!(!from.may_become(to) || from < to, "{from} to {to}");
            }
            assert_eq!(from.may_become(Status::Removed), from != Status::Removed);
            assert!(!Status::Removed.may_become(from));
        }
        assert!(!Status::Up.may_become(Status::Exiting), "what exits has left first");
        assert!(!Status::Joining.may_become(Status::Exiting));
    }
}
