//! A [`Member`]: one incarnation of a node, with its [`Status`], address, roles and hosted entity
//! types.
//!
//! [`Member::join`] computes the least upper bound of two nodes' knowledge about the same
//! incarnation. Every field changes in one direction only, so merges commute. The transitions of a
//! status follow Akka's cluster specification (docs/protocol/membership.md#status-order).

use std::cmp::Ordering;
use std::fmt;

use ostraca_ddata::id::{NodeId, PeerKey, ReplicaId};
use serde::{Deserialize, Serialize, Serializer};

use super::gossip::wire::COUNTER_MAX;
use super::name_set::NameSet;

/// Maximum length of an [`Address`] in bytes.
pub const ADDRESS_BYTES_MAX: usize = 256;

/// Maximum number of roles of a member.
pub const ROLES_MAX: usize = 64;

/// Maximum number of entity types that a member hosts.
pub const ENTITY_TYPES_MAX: usize = 1_024;

/// Maximum length, in bytes, of the name of a role or an entity type and of an app version. A name
/// has at least 1 byte.
pub const NAME_BYTES_MAX: usize = 128;

/// Life cycle state of a member, in chronological order. A merge of two states of one incarnation
/// keeps the later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Status {
    /// Admitted, but not yet in a configuration: receives data, is not counted in quorums.
    #[serde(rename = "j")]
    Joining,
    /// No configuration has included it within `allow-weakly-up-members`: visible and able to
    /// route, but hosts nothing and is not counted in quorums.
    #[serde(rename = "w")]
    WeaklyUp,
    /// Included in the configuration.
    #[serde(rename = "u")]
    Up,
    /// Asked to leave; moves its shards away.
    #[serde(rename = "l")]
    Leaving,
    /// Has moved everything away; waits for a configuration that removes it.
    #[serde(rename = "x")]
    Exiting,
    /// Declared dead; waits for a configuration that removes it.
    #[serde(rename = "d")]
    Down,
    /// Removed for ever. Gossip never contains this status: it keeps a tombstone instead.
    #[serde(rename = "r")]
    Removed,
}

impl Status {
    /// Every status, in chronological order.
    pub const ALL: [Self; 7] = [
        Self::Joining,
        Self::WeaklyUp,
        Self::Up,
        Self::Leaving,
        Self::Exiting,
        Self::Down,
        Self::Removed,
    ];

    /// Whether a member may change from this status to `next` in one step; `false` for the same
    /// status. Joining may become WeaklyUp, Up or Leaving; WeaklyUp may become Up or Leaving; Up
    /// only Leaving, and Leaving only Exiting. All of them may become Down, and every status but
    /// Removed may become Removed. A merge may skip steps, but never goes back.
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

    /// Whether the member departs irrevocably: Exiting or later. A Leaving member does not yet. No
    /// protocol step waits for an answer of such a member.
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

/// Address at which a node is dialled: a multiaddr of 1 to [`ADDRESS_BYTES_MAX`] bytes.
///
/// Addresses are ordered by host (as text), then by port (as a number), then by the whole text.
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
    // Byte range of the host, and the port. Parsed once because sorting compares addresses often.
    host: (u16, u16),
    port: u16,
}

const _: () = assert!(ADDRESS_BYTES_MAX <= u16::MAX as usize, "offsets are short");

/// The text has the wrong length for an [`Address`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an address has 1 to {ADDRESS_BYTES_MAX} bytes, this one has {len}")]
pub struct InvalidAddress {
    /// Length of the rejected text in bytes.
    pub len: usize,
}

impl Address {
    /// Creates an address from its text. The text need not be a multiaddr: then all of it counts as
    /// the host, and the port is 0.
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

    /// The text of the address.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether the address begins with a DNS name (`/dns…/`). Such a name may resolve to several
    /// nodes, including this one.
    #[must_use]
    pub fn is_name(&self) -> bool {
        self.text.split('/').nth(1).is_some_and(|protocol| protocol.starts_with("dns"))
    }

    fn host(&self) -> &str {
        &self.text[usize::from(self.host.0)..usize::from(self.host.1)]
    }
}

/// Byte range of the host (`ip4`, `ip6`, `dns`, `dns4`, `dns6` or `dnsaddr`), and the port (`tcp`
/// or `udp`): the first of each. Reads pairs of protocol and value, so a protocol without a value
/// shifts the pairs after it; text before the first `/` is skipped. Without a host the whole text
/// is the host; without a port that is a number up to 65,535 the port is 0. `text` has at most
/// [`ADDRESS_BYTES_MAX`] bytes.
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
    /// Compares host, port and text; equal only if the texts are equal.
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

/// Hosted entity types of a member, as announced by itself. A merge keeps the announcement with the
/// higher revision as a whole; of equal revisions, which only a faulty node makes, the greater one.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HostedTypes {
    /// The member increments it with each change. It is the first field because the derived order
    /// compares it first.
    #[serde(rename = "n", default)]
    pub revision: u64,
    /// The member was asked to move everything away: it is not a target of allocations.
    #[serde(rename = "d", default, skip_serializing_if = "std::ops::Not::not")]
    pub draining: bool,
    /// Names of the hosted entity types.
    #[serde(rename = "t", default, skip_serializing_if = "NameSet::is_empty")]
    pub entity_types: NameSet, // ≤ ENTITY_TYPES_MAX
}

/// One incarnation of a node, as recorded in the gossip state. Decoding refuses a member that
/// [`Member::check`] refuses.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "RawMember")]
pub struct Member {
    /// Peer key and incarnation of the node.
    #[serde(rename = "n")]
    pub node: NodeId,
    /// Where other nodes dial it. Constant within an incarnation.
    #[serde(rename = "a")]
    pub address: Address,
    /// Life cycle state of the member.
    #[serde(rename = "s")]
    pub status: Status,
    /// Roles of the node. Constant within an incarnation.
    #[serde(rename = "r", skip_serializing_if = "NameSet::is_empty")]
    pub roles: NameSet, // ≤ ROLES_MAX
    /// Age of the member: a lower number means an older member. Assigned when it becomes Up.
    #[serde(rename = "u", skip_serializing_if = "Option::is_none")]
    pub up_number: Option<u64>,
    /// Version of the application. Constant within an incarnation.
    #[serde(rename = "v", skip_serializing_if = "String::is_empty")]
    pub app_version: String,
    /// Time of the join request in ticks of the gossip's counter (`Gossip::next_stamp`), assigned
    /// by the node that answered the request. Every node that learns of this member adds it with
    /// the same stamp. If two members let the same incarnation in, a merge keeps the higher stamp.
    #[serde(rename = "b")]
    pub since: u64,
    /// Hosted entity types, and whether the member drains.
    #[serde(rename = "h")]
    pub hosting: HostedTypes,
}

/// [`Member`] on the wire, not checked yet.
#[derive(Deserialize)]
struct RawMember {
    #[serde(rename = "n")]
    node: NodeId,
    #[serde(rename = "a")]
    address: Address,
    #[serde(rename = "s")]
    status: Status,
    #[serde(rename = "r", default)]
    roles: NameSet,
    #[serde(rename = "u", default)]
    up_number: Option<u64>,
    #[serde(rename = "v", default)]
    app_version: String,
    #[serde(rename = "b")]
    since: u64,
    #[serde(rename = "h", default)]
    hosting: HostedTypes,
}

impl TryFrom<RawMember> for Member {
    type Error = InvalidMember;

    fn try_from(raw: RawMember) -> Result<Self, InvalidMember> {
        let RawMember { node, address, status, roles, up_number, app_version, since, hosting } =
            raw;
        let member = Self { node, address, status, roles, up_number, app_version, since, hosting };
        member.check()?;
        Ok(member)
    }
}

/// Reason why a member is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidMember {
    /// The member has too many roles or entity types.
    #[error("{len} names where at most {limit} are allowed; give the node fewer")]
    TooMany {
        /// Number of names in the member.
        len: usize,
        /// Maximum number of names.
        limit: usize,
    },
    /// The name of a role or an entity type, or an app version, has an invalid length. Only an app
    /// version may be empty.
    #[error("a name has 1 to {NAME_BYTES_MAX} bytes, this one has {len}; choose another")]
    Name {
        /// Length of the name in bytes.
        len: usize,
    },
    /// A stamp, an age or a revision exceeds the maximum counter on the wire.
    #[error("counter {0} is out of range, at most {COUNTER_MAX} is allowed")]
    Counter(u64),
    /// The member has status Removed; removed incarnations are recorded as tombstones only.
    #[error("replica {0} is removed and listed as a member")]
    Removed(ReplicaId),
}

impl Member {
    /// A node that asks to join, without roles and without hosted entity types.
    ///
    /// `since` is the stamp assigned by the node that answers the join request.
    #[must_use]
    pub fn joining(node: NodeId, address: Address, since: u64) -> Self {
        Self {
            node,
            address,
            status: Status::Joining,
            roles: NameSet::new(),
            up_number: None,
            app_version: String::new(),
            since,
            hosting: HostedTypes::default(),
        }
    }

    /// The incarnation of the node.
    #[must_use]
    pub const fn incarnation(&self) -> ReplicaId {
        self.node.incarnation
    }

    /// The identity of the node across its incarnations.
    #[must_use]
    pub const fn peer(&self) -> PeerKey {
        self.node.peer
    }

    /// Whether the member has `role`; `true` for `None`.
    #[must_use]
    pub fn has_role(&self, role: Option<&str>) -> bool {
        role.is_none_or(|role| self.roles.contains(role))
    }

    /// Whether the member is Up and has not been asked to move everything away.
    #[must_use]
    pub fn stays(&self) -> bool {
        self.status == Status::Up && !self.hosting.draining
    }

    /// Compares by address. Members with equal addresses are ordered by node id.
    #[must_use]
    pub fn by_address(&self, other: &Self) -> Ordering {
        self.address.cmp(&other.address).then_with(|| self.node.cmp(&other.node))
    }

    /// Compares by age, oldest first, whatever the status; members without an age come last. Ties
    /// are broken by address, then by node id.
    #[must_use]
    pub fn by_age(&self, other: &Self) -> Ordering {
        let age = |member: &Self| member.up_number.unwrap_or(u64::MAX);
        age(self).cmp(&age(other)).then_with(|| self.by_address(other))
    }

    /// Whether the member is Up or Leaving. Such a member is in a configuration and has not
    /// finished leaving it, except for one that was asked to leave before it was Up.
    #[must_use]
    pub const fn counts(&self) -> bool {
        matches!(self.status, Status::Up | Status::Leaving)
    }

    /// Checks the names, their number and the counters against the limits. A decoded member has
    /// passed it.
    ///
    /// # Errors
    /// [`InvalidMember`] with the first fault found, in this order: roles, hosted entity types (of
    /// each first the number, then the lengths), app version, stamp, age, revision, status Removed.
    pub fn check(&self) -> Result<(), InvalidMember> {
        let names = [(&self.roles, ROLES_MAX), (&self.hosting.entity_types, ENTITY_TYPES_MAX)];
        for (names, limit) in names {
            if names.len() > limit {
                return Err(InvalidMember::TooMany { len: names.len(), limit });
            }
            let mut lengths = names.iter().map(str::len);
            if let Some(len) = lengths.find(|len| !(1..=NAME_BYTES_MAX).contains(len)) {
                return Err(InvalidMember::Name { len });
            }
        }
        if self.app_version.len() > NAME_BYTES_MAX {
            return Err(InvalidMember::Name { len: self.app_version.len() });
        }
        let counters = [self.since, self.up_number.unwrap_or(0), self.hosting.revision];
        if let Some(counter) = counters.into_iter().find(|counter| *counter > COUNTER_MAX) {
            return Err(InvalidMember::Counter(counter));
        }
        if self.status == Status::Removed {
            return Err(InvalidMember::Removed(self.incarnation()));
        }
        Ok(())
    }

    /// Merges the knowledge of `other` about the same incarnation; returns whether this member
    /// changed. Commutative, associative, idempotent.
    ///
    /// Keeps the later status, the lower age (a known one beats none), the hosting with the higher
    /// revision and the higher `since`. If a faulty node lets the constant fields differ, the
    /// greater tuple of node, address, roles and app version is kept as a whole. The caller must
    /// pass the same incarnation: it is not checked.
    pub fn join(&mut self, other: &Self) -> bool {
        let before = self.clone();
        let fixed = |member: &Self| {
            (member.node, member.address.clone(), member.roles.clone(), member.app_version.clone())
        };
        // Constant fields differ only if a node is faulty. Keeping the greater value makes all
        // nodes agree even then.
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
    fn only_dns_hosts_are_names() {
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
    fn text_that_is_no_multiaddr_is_its_own_host() {
        assert!(at("A") < at("B"));
        assert!(at("A") < at("A/x/y/z"));
        let parts = |text: &str| (at(text).host().to_owned(), at(text).port);
        assert_eq!(parts("/dns4/a/tcp/many"), ("a".to_owned(), 0));
        assert_eq!(parts("/"), ("/".to_owned(), 0));
    }

    #[test]
    fn address_length_is_bounded() {
        assert_eq!(Address::new(""), Err(InvalidAddress { len: 0 }));
        assert_eq!(Address::new("x".repeat(257)), Err(InvalidAddress { len: 257 }));
        assert!(Address::new("x".repeat(256)).is_ok());
    }

    #[test]
    fn status_never_goes_back() {
        for from in Status::ALL {
            for to in Status::ALL {
                assert!(!from.may_become(to) || from < to, "{from} to {to}");
            }
            assert_eq!(from.may_become(Status::Removed), from != Status::Removed);
            assert!(!Status::Removed.may_become(from));
        }
        assert!(!Status::Up.may_become(Status::Exiting), "Leaving comes before Exiting");
        assert!(!Status::Joining.may_become(Status::Exiting));
    }
}
