//! What a node that searches believes of whom.

use ostraca_ddata::id::ReplicaId;

use super::*;

fn node(number: u8) -> NodeId {
    let peer = PeerKey::new([number; 32]);
    NodeId { peer, incarnation: ReplicaId::new(u64::from(number)) }
}

fn address(number: u8) -> Address {
    Address::new(format!("/ip4/10.0.0.{number}/tcp/1")).expect("short")
}

#[test]
fn only_who_was_up_once_can_tell_a_searching_node_that_it_was_removed() {
    let config = Cluster { seeds: vec![address(2), address(3)], ..Cluster::default() };
    let mut machine = Membership::new(Setup {
        me: node(1),
        address: address(1),
        config,
        settings: Settings::default(),
        memory: Memory::default(),
        seed: 1,
        canary: Canary::none(),
    });
    let mut out = Outbox::new();
    let mut tell = |input| {
        machine.handle(Now::default(), input, &mut out);
        machine.stopped()
    };
    assert_eq!(tell(Input::Tick), None);
    let stranger = Input::Quarantined(node(2).peer);
    assert_eq!(tell(stranger.clone()), None, "it shares no secret with anybody, for all we know");
    let (node, addresses) = (node(2), vec![address(2)]);
    assert_eq!(tell(Input::Up { node, addresses, cluster: None }), None);
    assert_eq!(tell(Input::Closed(node)), None);
    assert_eq!(tell(stranger), Some(StopReason::Removed), "it was up, however long ago");
}
