//! Entities on whole nodes over loopback sockets: they are spread over the nodes, can be reached
//! from any node, move when a node leaves and restart when a node is lost.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ostraca::net::TrafficClass;
use ostraca::node::sharding::{
    DecisionSource, ExplanationSubject, NotStarted, ShardingQueryError, TypeView,
};
use ostraca::prelude::*;
use ostraca::sharding::config::ShardingConfig as Settings;
use ostraca::sharding::extractor::Extractor;
use ostraca::sharding::ids::{EntityId, RegionId, ShardId};
use serde::{Deserialize, Serialize};

use crate::fixture::{Plan, all_up, drop_all, gone};
use crate::waits::{SOON, eventually, soon};

const ENTITIES: u64 = 60;

/// Remembers the handled numbers in order.
#[derive(Default)]
struct Journal(Vec<u64>);

#[derive(Serialize, Deserialize)]
enum Command {
    Note(u64),
    All(Reply<Vec<u64>>),
    Where(Reply<u64>),
    /// Asks another entity for its node.
    AskOf(String, Reply<Option<u64>>),
    /// Runs until the shard starts to move.
    Hold,
    /// Notes the number; the bytes only add length.
    Long(u64, Vec<u8>),
    Panic,
}

impl Entity for Journal {
    type Message = Command;

    async fn handle(&mut self, command: Command, cx: &mut Context<'_, Self>) {
        match command {
            Command::Note(number) | Command::Long(number, _) => self.0.push(number),
            Command::All(reply) => reply.send(self.0.clone()),
            Command::Where(reply) => reply.send(cx.node().replica().get()),
            Command::AskOf(other, reply) => {
                reply.send(cx.entity(&other).ask(Command::Where).await.ok());
            }
            Command::Hold => {
                while !cx.moving() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
            Command::Panic => panic!("as ordered"),
        }
    }
}

type Journals = ShardRegion<Journal>;

fn name(number: u64) -> String {
    format!("journal-{number}")
}

async fn started(node: &Node) -> Journals {
    let sharding = node.sharding();
    let region = sharding.start("journal", |_| Journal::default()).await.expect("it starts");
    soon(sharding.wait_until_registered("journal")).await.expect("it serves");
    region
}

/// This node's view of the type.
async fn view(node: &Node) -> TypeView {
    node.sharding().types().await.expect("it runs").pop().expect("started")
}

/// Waits until the node knows this home of the shard; other nodes may learn of it earlier.
async fn hears_of(node: &Node, shard: ShardId, home: u64) {
    eventually("it knows the home", async || {
        let known = node.sharding().shard_home("journal", shard).expect("it is started");
        known.map(|known| known.replica().get()) == Some(home)
    })
    .await;
}

struct Fixture {
    plan: Plan,
    nodes: Vec<Node>,
    regions: Vec<Journals>,
}

impl Fixture {
    async fn of_three() -> Self {
        Self::with_link_down(None).await
    }

    /// With this `link-down-max` instead of the default.
    async fn with_link_down(link_down_max: Option<Duration>) -> Self {
        let plan = Plan::with_seeds(3);
        let mut nodes = Vec::new();
        for seed in &plan.seeds {
            let mut config = plan.config(seed, None);
            let limits = &mut config.net.limits;
            limits.link_down_max = link_down_max.unwrap_or(limits.link_down_max);
            nodes.push(Node::start(config).await.expect("it starts"));
        }
        all_up(&nodes).await;
        let mut regions = Vec::new();
        for node in &nodes {
            regions.push(started(node).await);
        }
        Self { plan, nodes, regions }
    }

    /// The node of each entity, as the entity answers.
    async fn homes(&self) -> Vec<u64> {
        let mut homes = Vec::new();
        for number in 0..ENTITIES {
            let entity = self.regions[0].entity(&name(number));
            let mut home = None;
            eventually("it answers", async || {
                home = entity.ask(Command::Where).await.ok();
                home.is_some()
            })
            .await;
            homes.push(home.expect("it has answered"));
        }
        homes
    }

    /// Sends each of these numbers to every entity from one node.
    fn note(&self, from: usize, numbers: std::ops::Range<u64>) {
        for number in numbers {
            for entity in 0..ENTITIES {
                let told = self.regions[from].entity(&name(entity)).tell(Command::Note(number));
                told.expect("there is room");
            }
        }
    }

    /// Asserts that every entity has handled exactly these numbers in order.
    async fn all_have(&self, at: usize, expected: &[u64]) {
        for entity in 0..ENTITIES {
            let entity = self.regions[at].entity(&name(entity));
            let noted = soon(entity.ask(Command::All)).await.expect("it answers");
            assert_eq!(noted, expected, "{:?}", entity.id());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entities_spread_and_answer_every_node_in_order() {
    let it = Fixture::of_three().await;
    let homes: BTreeSet<u64> = it.homes().await.into_iter().collect();
    assert_eq!(homes.len(), 3, "every node hosts entities");
    it.note(1, 0..20);
    it.all_have(1, &(0..20).collect::<Vec<_>>()).await;
    it.all_have(2, &(0..20).collect::<Vec<_>>()).await;
    let one = it.regions[0].entity(&name(0));
    for other in 1..10 {
        let home = soon(one.ask(|reply| Command::AskOf(name(other), reply))).await;
        let own = soon(it.regions[2].entity(&name(other)).ask(Command::Where)).await;
        assert_eq!(home.expect("it answers"), own.ok(), "an entity reaches another entity");
    }
    soon(async {
        for node in it.nodes {
            node.stop().await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_told_before_up_wait_and_arrive_in_order() {
    let plan = Plan::with_seeds(1);
    let joiner = plan.other().await; // its seed has not started yet
    let sharding = joiner.sharding();
    let region = sharding.start("journal", |_| Journal::default()).await.expect("at once");
    assert!(joiner.cluster().members().is_empty(), "it belongs to no cluster");
    for number in 0..100 {
        for entity in 0..10 {
            let told = region.entity(&name(entity)).tell(Command::Note(number));
            told.expect("the buffer has room");
        }
    }
    let seed = plan.seed(0).await;
    let there = started(&seed).await;
    soon(joiner.cluster().wait_until_up()).await.expect("it joins");
    for entity in 0..10 {
        for region in [&region, &there] {
            let entity = region.entity(&name(entity));
            let mut noted = None;
            eventually("it answers", async || {
                noted = entity.ask(Command::All).await.ok();
                noted.is_some()
            })
            .await;
            assert_eq!(noted, Some((0..100).collect::<Vec<_>>()), "{:?}", entity.id());
        }
    }
    drop_all(vec![joiner, seed]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proxy_routes_and_hosts_nothing_even_if_started_twice() {
    let it = Fixture::of_three().await;
    let node = it.plan.other().await;
    soon(node.cluster().wait_until_up()).await.expect("it joins");
    let sharding = node.sharding();
    let proxy: Journals = sharding.start_proxy("journal").await.expect("it starts");
    proxy.entity("a").tell(Command::Note(7)).expect("room");
    assert_eq!(soon(proxy.entity("a").ask(Command::All)).await.expect("it answers"), [7]);
    assert!(view(&node).await.shards.is_empty());
    let again: Journals = sharding.start_proxy("journal").await.expect("is there");
    assert_eq!(soon(again.entity("a").ask(Command::All)).await.expect("it answers"), [7]);
    let host = sharding.start("journal", |_| Journal::default()).await;
    assert!(matches!(host, Err(NotStarted::OnlyRoutes { .. })), "{host:?}");
    drop_all(it.nodes);
    drop(node);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaving_node_loses_no_message_and_its_entities_move() {
    let mut it = Fixture::of_three().await;
    it.homes().await;
    let (leaver, region) = (it.nodes.remove(1), it.regions.remove(1));
    let (left, me) = (leaver.cluster().me(), leaver.cluster().me().incarnation.get());
    // The state is only in memory, so numbers noted before a move are lost with the old instance.
    // The test therefore checks that every number told during the change is handled once and in
    // order.
    let stops = tokio::spawn(async move { leaver.stop().await });
    let mut numbers = 0..;
    while !stops.is_finished() {
        let number = numbers.next().expect("endless");
        it.note(0, number..number + 1);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let told = numbers.next().expect("endless");
    soon(stops).await.expect("it stopped");
    gone(&it.nodes, left).await;
    for entity in 0..ENTITIES {
        let noted = soon(it.regions[0].entity(&name(entity)).ask(Command::All)).await;
        let noted = noted.expect("it answers");
        let last = noted.last().copied().map_or(0, |last| last + 1);
        let first = noted.first().copied().unwrap_or(told);
        assert_eq!(noted, (first..last).collect::<Vec<_>>(), "in order and without gaps");
        assert_eq!(last, told, "none lost at the end");
    }
    let homes = it.homes().await;
    assert!(
        !homes.contains(&me) && region.dead_letters().map(|(_, count)| count).sum::<u64>() == 0
    );
    let lost: u64 = it.regions.iter().flat_map(|r| r.dead_letters()).map(|(_, count)| count).sum();
    assert_eq!(lost, 0);
    drop_all(it.nodes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mailboxes_longer_than_a_frame_move_whole_and_in_order() {
    const MESSAGES: u64 = 200;
    const LENGTH: usize = 64 * 1_024; // twelve MiB in total; a frame holds four
    let mut it = Fixture::of_three().await;
    it.homes().await;
    let (leaver, region) = (it.nodes.remove(1), it.regions.remove(1));
    let me = leaver.cluster().me();
    let lives_here = |name: &String| {
        let home = region.shard_home(region.entity(name).shard());
        home.is_some_and(|home| home.replica() == me.incarnation)
    };
    let id = (0..ENTITIES).map(name).find(lives_here).expect("one of them does");
    let entity = region.entity(&id);
    entity.tell(Command::Hold).expect("there is room");
    for number in 0..MESSAGES {
        entity.tell(Command::Long(number, vec![7; LENGTH])).expect("there is room");
    }
    soon(leaver.stop()).await;
    let noted = soon(it.regions[0].entity(&id).ask(Command::All)).await.expect("it answers");
    assert_eq!(noted, (0..MESSAGES).collect::<Vec<_>>());
    assert_eq!(region.dead_letters().map(|(_, count)| count).sum::<u64>(), 0);
    drop_all(it.nodes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_return_every_home_and_entity_count() {
    let it = Fixture::of_three().await;
    let homes = it.homes().await;
    let sharding = it.nodes[1].sharding();
    // Gossip reports the regions of a type, possibly after the type's first homes.
    eventually("it knows all regions of the type", async || {
        sharding.current_regions("journal").await.expect("it answers").len() == 3
    })
    .await;
    let stats = soon(sharding.cluster_sharding_stats("journal", SOON)).await.expect("it answers");
    assert!(stats.unanswered.is_empty(), "{stats:?}");
    assert_eq!((stats.regions.len(), stats.entities()), (3, ENTITIES));
    let regions = sharding.current_regions("journal").await.expect("it answers");
    assert_eq!(regions, stats.regions.keys().copied().collect());
    let own = sharding.region_state("journal").await.expect("it is there");
    let me = RegionId::new(it.nodes[1].cluster().me().incarnation);
    assert_eq!(own.entities(), stats.regions[&me].values().sum::<u64>());
    for (number, home) in homes.iter().enumerate() {
        let shard = it.regions[1].entity(&name(number as u64)).shard();
        hears_of(&it.nodes[1], shard, *home).await;
        let known = sharding.shard_home("journal", shard).expect("it is started");
        assert_eq!(known, it.regions[1].shard_home(shard));
    }
    let unknown = sharding.region_state("other").await;
    assert!(matches!(unknown, Err(ShardingQueryError::NotStarted { .. })), "{unknown:?}");
    drop_all(it.nodes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_explain_a_home_and_stop_its_shard() {
    let it = Fixture::of_three().await;
    let home = it.homes().await[0];
    let shard = it.regions[0].entity(&name(0)).shard();
    for node in &it.nodes {
        let sharding = node.sharding();
        soon(sharding.ready()).await.expect("it has registered");
        eventually("it knows all regions of the type", async || {
            sharding.current_regions("journal").await.expect("it answers").len() == 3
        })
        .await;
        hears_of(node, shard, home).await;
        let about = ExplanationSubject::entity(&name(0)).expect("a name");
        let why = soon(sharding.explain("journal", about, SOON)).await.expect("it answers");
        assert!(why.unanswered.is_empty(), "{why}");
        assert_eq!(
            (why.shard, why.home.map(|home| home.replica().get())),
            (Some(shard), Some(home))
        );
        let newest = why.decisions.first().expect("it was decided");
        let told = |witness| newest.accounts.iter().find(|account| account.witness == witness);
        let region = told(DecisionSource::Region).expect("its region has an account");
        assert_eq!((region.by.get(), region.remembered.is_over()), (home, true), "{why}");
        assert!(
            told(DecisionSource::Coordinator).is_some_and(|it| it.remembered.written.is_some()),
            "{why}"
        );
        let exists = async |id: &str| sharding.entity_exists("journal", id, SOON).await;
        assert!(soon(exists(&name(0))).await.expect("it answers"));
        assert!(!soon(exists("nobody")).await.expect("it answers"));
    }
    let sharding = it.nodes[2].sharding();
    let counter = name(0);
    let none = soon(sharding.stop_shards("journal", [shard, ShardId::new(1_000)], SOON)).await;
    let none = none.expect_err("there are 1,000");
    assert_eq!(none.to_string(), "journal has the shards 0 to 999: there is no 1000");
    soon(sharding.stop_shards("journal", [shard], SOON)).await.expect("it stops");
    let exists = sharding.entity_exists("journal", &counter, SOON);
    assert!(!soon(exists).await.expect("its shard has no home"));
    soon(it.regions[1].entity(&name(0)).ask(Command::Where)).await.expect("it starts again");
    // The ask went through another node, which may learn of the new home earlier.
    eventually("it exists", async || {
        soon(sharding.entity_exists("journal", &counter, SOON)).await.expect("it answers")
    })
    .await;
    drop_all(it.nodes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn query_of_a_type_started_elsewhere_names_a_host() {
    let nodes = Plan::with_seeds(2).start().await;
    let _region = started(&nodes[0]).await;
    let (host, asked) = (RegionId::new(nodes[0].cluster().me().incarnation), nodes[1].sharding());
    let mut text = String::new();
    eventually("gossip names the host", async || {
        let why = asked.region_state("journal").await.expect_err("it is not started here");
        text = why.to_string();
        matches!(why, ShardingQueryError::NotStarted { host: Some(known), .. } if known == host)
    })
    .await;
    assert!(text.ends_with(&format!("{host} hosts it")), "{text}");
    let why = asked.region_state("other").await.expect_err("nobody has started it");
    assert!(why.to_string().ends_with("shows what each member hosts"), "{why}");
    drop_all(nodes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn longest_timeouts_are_accepted() {
    let node = Node::start(Config::default()).await.expect("it starts");
    let (region, sharding) = (started(&node).await, node.sharding());
    let entity = region.entity("a");
    let home = soon(entity.ask_within(Duration::MAX, Command::Where)).await.expect("it answers");
    assert_eq!(home, node.cluster().me().incarnation.get());
    let exists = sharding.entity_exists("journal", "a", Duration::MAX);
    assert!(soon(exists).await.expect("it answers"));
    let stats = soon(sharding.cluster_sharding_stats("journal", Duration::MAX)).await;
    assert_eq!(stats.expect("it answers").entities(), 1);
    let stopped = sharding.stop_shards("journal", [entity.shard()], Duration::MAX);
    soon(stopped).await.expect("it stops");
    let drained = soon(sharding.drain(Duration::MAX)).await.expect("it answers");
    assert!(drained.is_done(), "{drained:?}");
    soon(node.stop()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entities_of_a_lost_node_restart_after_its_removal() {
    let mut it = Fixture::of_three().await;
    let before = it.homes().await;
    let (lost, _) = (it.nodes.remove(2), it.regions.remove(2));
    let (id, me) = (lost.cluster().me(), lost.cluster().me().incarnation.get());
    assert!(before.contains(&me));
    drop(lost);
    // Messages to its shards are buffered meanwhile, except those already sent to the lost node.
    it.regions[0].entity("new").tell(Command::Note(1)).expect("there is room");
    gone(&it.nodes, id).await;
    let homes = it.homes().await;
    assert!(!homes.contains(&me));
    it.note(1, 0..5);
    it.all_have(1, &(0..5).collect::<Vec<_>>()).await;
    // A new node gets its share of the shards.
    let node = it.plan.seed(2).await;
    it.nodes.push(node);
    all_up(&it.nodes).await;
    it.regions.push(started(&it.nodes[2]).await);
    eventually("shards are balanced", async || {
        let mut hosted = Vec::new();
        for node in &it.nodes {
            hosted.push(view(node).await.shards.len());
        }
        hosted.iter().max().zip(hosted.iter().min()).is_some_and(|(most, least)| most - least <= 1)
    })
    .await;
    drop_all(it.nodes);
}

/// One ask reaches the lost node, the others are made when its connections have closed. With a
/// short `link-down-max` the lane to it is given up several times before the removal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn asks_made_after_a_crash_are_answered_by_the_next_home() {
    for link_down_max in [None, Some(Duration::from_millis(200))] {
        let mut it = Fixture::with_link_down(link_down_max).await;
        let homes = it.homes().await;
        let (lost, region) = (it.nodes.remove(2), it.regions.remove(2));
        let me = lost.cluster().me().incarnation;
        let mut there = (0..ENTITIES).filter(|number| homes[*number as usize] == me.get());
        let stuck = it.regions[0].entity(&name(there.next().expect("it hosts some")));
        stuck.tell(Command::Hold).expect("room"); // never ends
        let behind = stuck.ask_within(SOON, Command::Where);
        drop((lost, region));
        eventually("the lane has no connection", async || {
            let peers = it.nodes[0].stats().await.net.peers;
            let peer = peers.iter().find(|peer| peer.incarnation == Some(me));
            let lane = peer.and_then(|peer| peer.outbound[TrafficClass::User as usize]);
            lane.is_none_or(|lane| !lane.connected)
        })
        .await;
        let ask = |number| it.regions[0].entity(&name(number)).ask_within(SOON, Command::Where);
        let asked: Vec<_> = there.map(ask).collect();
        assert!(!asked.is_empty());
        for ask in asked {
            let home = ask.await.expect("the next home answers");
            assert_ne!(home, me.get());
        }
        // The dropped node can still refuse it before its connections close; a killed one cannot.
        let why = behind.await.expect_err("its message was sent to the lost node");
        let lost = matches!(&why, AskError::NodeLost { node, .. } if node.replica() == me);
        assert!(lost || matches!(why, AskError::Refused { .. }), "{why}");
        drop_all(it.nodes);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn panicking_entity_affects_no_other_entity() {
    let it = Fixture::of_three().await;
    let (bad, good) = (it.regions[0].entity("bad"), it.regions[0].entity("good"));
    good.tell(Command::Note(1)).expect("room");
    bad.tell(Command::Panic).expect("room");
    assert_eq!(soon(good.ask(Command::All)).await.expect("it answers"), [1]);
    eventually("it restarts", async || bad.ask(Command::All).await.is_ok()).await;
    drop_all(it.nodes);
}

/// A second entity type.
struct Other;

impl Entity for Other {
    type Message = ();

    async fn handle(&mut self, (): (), _: &mut Context<'_, Self>) {}
}

/// An extractor with a name that other nodes would not decode.
struct LongNamed;

impl Extractor<()> for LongNamed {
    fn name(&self) -> Cow<'_, str> {
        "x".repeat(129).into()
    }

    fn shards(&self) -> u32 {
        1
    }

    fn entity_id<'m>(&self, (): &'m ()) -> Option<Cow<'m, str>> {
        None
    }

    fn shard(&self, _: &EntityId) -> ShardId {
        ShardId::new(0)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_types_are_refused_and_not_started() {
    let node = Node::start(Config::default()).await.expect("it starts");
    let sharding = node.sharding();
    let why = async |name: &str| {
        let started = sharding.start(name, |_| Other).await;
        started.expect_err("it is invalid")
    };
    let journals = sharding.start("journal", |_| Journal::default()).await.expect("it starts");
    assert!(matches!(why("journal").await, NotStarted::OtherEntity { .. }));
    assert!(matches!(why("").await, NotStarted::Name(_)));
    assert!(matches!(why(&"x".repeat(129)).await, NotStarted::LongName { bytes: 129 }));
    for settings in [
        Settings { remember_entities: true, ..Settings::default() },
        Settings { handoff_timeout: Duration::from_secs(60), ..Settings::default() },
    ] {
        let setup = EntityTypeSetup {
            settings: Some(settings),
            ..EntityTypeSetup::new("other", |_| Other)
        };
        assert!(sharding.start_with(setup).await.is_err());
    }
    let setup = EntityTypeSetup {
        extractor: Some(Arc::new(LongNamed)),
        ..EntityTypeSetup::new("other", |_| Other)
    };
    let refused = sharding.start_with(setup).await;
    assert!(matches!(refused, Err(NotStarted::LongExtractor { bytes: 129 })));
    assert_eq!(sharding.types().await.expect("it runs").len(), 1);
    assert_eq!(soon(journals.entity("a").ask(Command::All)).await.expect("it answers"), [0; 0]);
    soon(node.stop()).await;
    assert!(matches!(why("late").await, NotStarted::Stopped));
}
