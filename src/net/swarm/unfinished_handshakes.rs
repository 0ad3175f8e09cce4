//! Unfinished inbound handshakes: the limit, and the choice of the one to evict at the limit.
//!
//! Pure: no I/O, no clock. A connection costs an attacker only a port, so a limit that refused new
//! connections would let silent sockets exclude all other peers. This table evicts instead.
//!
//! Evict the least advanced handshake
//! (docs/protocol/transport.md#evict-the-least-advanced-handshake): of the address group with the
//! most unfinished handshakes, the handshake that has made the least progress is evicted, the
//! oldest of those first. A flood thereby evicts its own connections. This also holds if it shares
//! an address with honest peers (SNAT), because those send their first bytes at once and silent
//! sockets do not. `max / 4` entries are reserved for known addresses (members and seeds). Unknown
//! addresses hold at most the rest; at that limit a connection from an unknown address evicts among
//! unknown addresses only. If instead all `max` entries are taken, a connection from any address
//! evicts among all of them, known ones included.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use super::acceptor::Signal;

/// Maximum number of known address groups. At the limit the group that was not added again for the
/// longest time is removed.
const KNOWN_MAX: usize = 1_024;

/// Maximum number of evicted handshakes whose socket is still open, as a multiple of
/// `limits.handshakes`. The runtime closes the socket at the handshake's next poll. At the limit a
/// connection that needs an eviction is refused ([`TooManyHandshakes`]).
const EVICTED_MAX: usize = 4;

/// Addresses that are counted as one: an IPv4 address, or an IPv6 network of 64 bits, which is what
/// one host usually gets. IPv4-mapped IPv6 addresses count as IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::net) struct AddressGroup(IpAddr);

impl AddressGroup {
    pub(in crate::net) fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(address) => {
                let network = address.to_bits() & !u128::from(u64::MAX);
                Self(Ipv6Addr::from_bits(network).into())
            }
            address @ IpAddr::V4(_) => Self(address),
        }
    }

    /// The address, or the first one of the network.
    pub(in crate::net) const fn first(self) -> IpAddr {
        self.0
    }
}

/// Progress of a handshake, by the number of bytes received; their content is not checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum HandshakeProgress {
    /// No byte has arrived.
    Silent = 0,
    /// Fewer bytes than the first message of the cipher has.
    Begun = 1,
    /// At least as many bytes as the first message of the cipher has.
    Spoken = 2,
}

/// Identifies an unfinished handshake; a lower number is older.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct HandshakeId(u64);

/// The address group with the most connections at the time a limit was reached, for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BusiestGroup {
    /// Address of one connection of the group: the one selected to be closed.
    pub(super) address: Option<IpAddr>,
    /// Number of connections of the group that counted towards the limit, the selected one
    /// included.
    pub(super) places: usize,
}

impl BusiestGroup {
    /// One connection from this address.
    pub(super) const fn one(address: IpAddr) -> Self {
        Self { address: Some(address), places: 1 }
    }
}

/// The connection is refused: too many evicted handshakes are still open (`EVICTED_MAX`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooManyHandshakes;

#[derive(Debug)]
struct UnfinishedHandshake {
    address: Option<IpAddr>,
    group: Option<AddressGroup>,
    signal: Arc<Signal>,
    is_evicted: bool,
}

/// All unfinished inbound handshakes of this node.
#[derive(Debug)]
pub(super) struct UnfinishedHandshakes {
    max: usize,
    known: BTreeSet<AddressGroup>,                       // ≤ KNOWN_MAX
    known_order: VecDeque<AddressGroup>,                 // the same, the last added one last
    entries: BTreeMap<HandshakeId, UnfinishedHandshake>, // ≤ max live, ≤ max * EVICTED_MAX evicted
    next: u64,
    evicted: u64,                  // since the start, including refusals
    busiest: Option<BusiestGroup>, // at the last eviction or refusal; see `take_report`
}

impl UnfinishedHandshakes {
    pub(super) const fn new(max: usize) -> Self {
        Self {
            max,
            known: BTreeSet::new(),
            known_order: VecDeque::new(),
            entries: BTreeMap::new(),
            next: 0,
            evicted: 0,
            busiest: None,
        }
    }

    /// Handshakes that are neither finished nor evicted.
    pub(super) fn count(&self) -> usize {
        self.live().count()
    }

    /// Handshakes that were evicted or refused since the start.
    pub(super) const fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Takes the busiest group at the last eviction or refusal; `None` if already taken. One that
    /// was not taken is replaced by the next.
    pub(super) const fn take_report(&mut self) -> Option<BusiestGroup> {
        self.busiest.take()
    }

    /// Adds the group of an address of a member or a seed; adding it again makes it the last one to
    /// be removed at [`KNOWN_MAX`]. Unfinished handshakes of the group count as those of a known
    /// address from now on, and those of a removed group as those of an unknown one.
    pub(super) fn add_known(&mut self, address: IpAddr) {
        let group = AddressGroup::of(address);
        if !self.known.insert(group) {
            self.known_order.retain(|known| *known != group);
        }
        self.known_order.push_back(group);
        if self.known.len() > KNOWN_MAX
            && let Some(oldest) = self.known_order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }

    /// Registers a new handshake. At the limit another one is evicted for it, as the module
    /// describes, and signalled to end; never the new one. That is counted in
    /// [`evicted`](Self::evicted) and reported to [`take_report`](Self::take_report).
    ///
    /// Fails if an eviction is needed and `max` times [`EVICTED_MAX`] evicted handshakes have not
    /// ended. Then none is evicted, but the refusal is counted and reported with the handshake that
    /// would have been evicted. A `max` of 0, which the settings refuse, would limit nothing.
    pub(super) fn begin(
        &mut self,
        address: Option<IpAddr>,
        signal: Arc<Signal>,
    ) -> Result<HandshakeId, TooManyHandshakes> {
        let group = address.map(AddressGroup::of);
        let is_known = self.is_known(group);
        let strangers = self.live().filter(|(_, entry)| !self.is_known(entry.group)).count();
        let victim = if !is_known && strangers >= self.max - self.reserved() {
            self.victim(|entry| !self.is_known(entry.group))
        } else if self.count() >= self.max {
            self.victim(|_| true)
        } else {
            None
        };
        if let Some((victim, busiest)) = victim {
            self.evicted += 1;
            self.busiest = Some(busiest);
            if self.entries.len() - self.count() >= self.max.saturating_mul(EVICTED_MAX) {
                return Err(TooManyHandshakes);
            }
            self.evict(victim);
        }
        let number = HandshakeId(self.next);
        self.next += 1;
        self.entries
            .insert(number, UnfinishedHandshake { address, group, signal, is_evicted: false });
        Ok(number)
    }

    /// Removes a handshake that succeeded, failed, or was evicted and closed. Does nothing if it is
    /// not in the table.
    pub(super) fn end(&mut self, number: HandshakeId) {
        self.entries.remove(&number);
    }

    /// Handshakes that are not evicted, the oldest first.
    fn live(&self) -> impl Iterator<Item = (&HandshakeId, &UnfinishedHandshake)> {
        self.entries.iter().filter(|(_, entry)| !entry.is_evicted)
    }

    /// Number of entries that only known addresses may occupy.
    const fn reserved(&self) -> usize {
        self.max / 4
    }

    /// Whether slots are reserved for this group. A connection without an address is unknown.
    fn is_known(&self, group: Option<AddressGroup>) -> bool {
        group.is_some_and(|group| self.known.contains(&group))
    }

    /// Applies the eviction rule to the live handshakes that satisfy `may_be`; no other counts
    /// towards the size of a group. `None` if there are none. If several groups have the most, the
    /// handshakes of all of them are compared. Connections without an IP address are one group.
    fn victim(
        &self,
        may_be: impl Fn(&UnfinishedHandshake) -> bool,
    ) -> Option<(HandshakeId, BusiestGroup)> {
        let candidates = || self.live().filter(|(_, entry)| may_be(entry));
        let mut places = BTreeMap::<_, usize>::new(); // ≤ max
        candidates().for_each(|(_, entry)| *places.entry(entry.group).or_default() += 1);
        let most = places.values().copied().max()?;
        let of_busiest = candidates().filter(|(_, entry)| places[&entry.group] == most);
        let (number, victim) = of_busiest.min_by_key(|(_, entry)| entry.signal.progress())?;
        Some((*number, BusiestGroup { address: victim.address, places: most }))
    }

    /// Marks a handshake as evicted, and signals its task to end. Counts nothing. The entry stays
    /// until [`end`](Self::end).
    fn evict(&mut self, number: HandshakeId) {
        if let Some(entry) = self.entries.get_mut(&number) {
            entry.is_evicted = true;
            entry.signal.evict();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table, with the signals of its handshakes.
    struct Table {
        handshakes: UnfinishedHandshakes,
        signals: BTreeMap<HandshakeId, Arc<Signal>>,
    }

    impl Table {
        fn new(max: usize) -> Self {
            Self { handshakes: UnfinishedHandshakes::new(max), signals: BTreeMap::new() }
        }

        /// Begins a handshake from this address. Panics if the table refuses it.
        fn begin(&mut self, address: &str) -> HandshakeId {
            let signal = Arc::new(Signal::default());
            let address = address.parse().expect("an address");
            let number = self.handshakes.begin(Some(address), Arc::clone(&signal)).expect("room");
            self.signals.insert(number, signal);
            number
        }

        fn receive_bytes(&self, number: HandshakeId) {
            self.signals[&number].received(1_000);
        }

        fn is_evicted(&self, number: HandshakeId) -> bool {
            self.handshakes.entries.get(&number).is_none_or(|entry| entry.is_evicted)
        }

        /// Simulates a flood from these addresses whose evicted connections are dropped at once.
        fn flood(&mut self, count: usize, address: impl Fn(usize) -> String) {
            for n in 0..count {
                self.begin(&address(n));
                self.handshakes.entries.retain(|_, entry| !entry.is_evicted);
            }
        }
    }

    #[test]
    fn flood_from_one_address_evicts_only_itself() {
        let mut table = Table::new(8);
        let honest = table.begin("10.0.0.1");
        table.flood(1_000, |_| "10.0.0.2".to_owned());
        assert!(!table.is_evicted(honest));
        let late = table.begin("10.0.0.3");
        table.flood(1_000, |_| "10.0.0.2".to_owned());
        assert!(!table.is_evicted(honest) && !table.is_evicted(late));
        assert_eq!(table.handshakes.count(), 6, "two of eight places are reserved");
        let busiest = table.handshakes.take_report().expect("an eviction");
        let address = Some("10.0.0.2".parse().expect("an address"));
        assert_eq!(busiest, BusiestGroup { address, places: 4 });
    }

    #[test]
    fn flood_from_two_addresses_evicts_only_itself() {
        let mut table = Table::new(8);
        let honest = table.begin("10.0.0.1");
        table.flood(1_000, |n| format!("10.0.0.{}", 2 + n % 2));
        assert!(!table.is_evicted(honest));
    }

    #[test]
    fn flood_from_a_shared_address_spares_peers_that_send() {
        let mut table = Table::new(8);
        table.flood(100, |_| "10.0.0.1".to_owned());
        let honest = table.begin("10.0.0.1");
        table.receive_bytes(honest);
        table.flood(1_000, |_| "10.0.0.1".to_owned());
        assert!(!table.is_evicted(honest));
    }

    #[test]
    fn flood_from_an_ipv6_network_counts_as_one_address() {
        let mut table = Table::new(8);
        let honest = table.begin("2001:db8:0:1::1");
        table.flood(1_000, |n| format!("2001:db8:0:2::{n:x}"));
        assert!(!table.is_evicted(honest));
        let mapped = AddressGroup::of("::ffff:10.0.0.1".parse().expect("an address"));
        assert_eq!(mapped, AddressGroup::of("10.0.0.1".parse().expect("an address")));
    }

    #[test]
    fn flood_from_many_addresses_leaves_places_for_known_ones() {
        let mut table = Table::new(8);
        table.handshakes.add_known("10.0.0.1".parse().expect("an address"));
        table.flood(100, |n| format!("10.1.{}.1", n % 200));
        assert_eq!(table.handshakes.count(), 6);
        let members = [table.begin("10.0.0.1"), table.begin("10.0.0.1")];
        table.flood(1_000, |n| format!("10.1.{}.1", n % 200));
        assert!(members.iter().all(|member| !table.is_evicted(*member)));
        assert_eq!(table.handshakes.count(), 8);
    }

    #[test]
    fn least_progress_is_evicted_first_then_the_oldest() {
        let mut table = Table::new(4); // one is reserved
        let [first, second, third] = [(); 3].map(|()| table.begin("10.0.0.1"));
        table.receive_bytes(first);
        table.signals[&second].received(1);
        let fourth = table.begin("10.0.0.1");
        assert!(table.is_evicted(third), "it is silent");
        table.receive_bytes(fourth);
        table.begin("10.0.0.1");
        assert!(table.is_evicted(second), "it has begun only");
        assert!(!table.is_evicted(first) && !table.is_evicted(fourth));
    }

    #[test]
    fn evicted_connections_that_stay_open_are_bounded() {
        let mut table = Table::new(4);
        let address = Some(IpAddr::from([10, 0, 0, 1]));
        let refused =
            (0..100).filter(|_| table.handshakes.begin(address, Arc::default()).is_err()).count();
        assert_eq!(table.handshakes.entries.len(), 3 + 4 * EVICTED_MAX);
        assert_eq!(refused, 100 - 3 - 4 * EVICTED_MAX);
        assert_eq!(table.handshakes.evicted(), 97);
    }

    #[test]
    fn known_addresses_are_bounded() {
        let mut table = UnfinishedHandshakes::new(4);
        let address = |n: u32| IpAddr::from(n.to_be_bytes());
        (0..10_000).for_each(|n| table.add_known(address(n)));
        table.add_known(address(9_000));
        assert_eq!((table.known.len(), table.known_order.len()), (KNOWN_MAX, KNOWN_MAX));
        assert_eq!(table.known_order.back(), Some(&AddressGroup::of(address(9_000))));
    }
}
