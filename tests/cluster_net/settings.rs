//! Tests of the effect of single settings on whole nodes.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use ostraca::cluster::config::DowningStrategyName;
use ostraca::node::cluster::UpError;
use ostraca::node::downing_lease::{DowningLease, LeaseError, LeaseName};
use ostraca::node::sharding::NotReady;
use ostraca::prelude::*;
use ostraca::sharding::ids::EntityType;

use crate::fixture::{Plan, all_up, drop_all, gone};
use crate::waits::{eventually, soon};

#[tokio::test(flavor = "multi_thread")]
async fn members_show_the_app_version_of_the_settings() {
    let plan = Plan::changed(1, |settings| settings.app_version = "1.2.3".to_owned());
    let nodes = plan.start().await;
    let members = nodes[0].cluster().members();
    let versions: Vec<&str> = members.iter().map(|member| member.app_version.as_str()).collect();
    assert_eq!(versions, ["1.2.3"]);
    drop_all(nodes);
}

#[tokio::test(flavor = "multi_thread")]
async fn downed_node_runs_on_if_configured() {
    let stays = |settings: &mut ostraca::cluster::config::ClusterConfig| {
        settings.run_coordinated_shutdown_when_down = false;
    };
    let mut plan = Plan::with_seeds(3);
    plan.change(stays);
    let mut nodes = plan.start().await;
    let victim = nodes.pop().expect("three");
    let who = victim.cluster().me();
    nodes[0].cluster().down(who).await.expect("a member");
    gone(&nodes, who).await;
    eventually("it learns of its removal", async || {
        matches!(victim.cluster().wait_until_up().await, Err(UpError::Out(_)))
    })
    .await;
    assert!(!victim.lease().serves());
    // The first reason of a shutdown counts: none had begun before.
    assert_eq!(soon(victim.shutdown().run(Reason::Asked)).await, Reason::Asked);
    drop_all(nodes);
}

#[tokio::test(flavor = "multi_thread")]
async fn node_is_ready_when_named_types_are_or_check_is_off() {
    let hour = Duration::from_secs(3_600);
    for (disabled_after, is_ready) in [(Some(hour), false), (Some(Duration::ZERO), true)] {
        let plan = Plan::with_seeds(1);
        let mut config = plan.config(&plan.seeds[0], None);
        let check = &mut config.sharding.healthcheck;
        check.names = vec![EntityType::new("absent").expect("a valid name")];
        check.timeout = Duration::from_millis(100);
        check.disabled_after = disabled_after;
        let nodes = vec![Node::start(config).await.expect("it starts")];
        all_up(&nodes).await;
        let ready = soon(nodes[0].sharding().ready()).await;
        let absent = match ready {
            Ok(()) => BTreeSet::new(),
            Err(NotReady::Unregistered { types }) => types,
            Err(other) => panic!("{other}"),
        };
        assert_eq!(absent.is_empty(), is_ready, "{absent:?}");
        drop_all(nodes);
    }
}

/// A lease provider that grants every lease and records its name.
#[derive(Default)]
struct Granting(Mutex<BTreeSet<String>>);

impl DowningLease for Granting {
    fn acquire(&self, lease: LeaseName) -> BoxFuture<'static, Result<bool, LeaseError>> {
        self.0.lock().expect("no panic under it").insert(lease.name);
        Box::pin(async { Ok(true) })
    }

    fn release(&self, _: LeaseName) -> BoxFuture<'static, Result<(), LeaseError>> {
        Box::pin(async { Ok(()) })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lease_of_lease_majority_has_the_configured_name() {
    for (lease_name, expected) in
        [(None, "ostraca-downing"), (Some("of-this-cluster".to_owned()), "of-this-cluster")]
    {
        let mut plan = Plan::with_seeds(3);
        plan.change(|settings| {
            settings.downing.strategy = DowningStrategyName::LeaseMajority;
            settings.downing.lease_majority.lease_name = lease_name;
        });
        let provider = Arc::new(Granting::default());
        let mut nodes = Vec::new();
        for seed in &plan.seeds {
            let builder = Node::builder(plan.config(seed, None)).downing_lease(provider.clone());
            nodes.push(builder.start().await.expect("it starts"));
        }
        all_up(&nodes).await;
        let lost = nodes.pop().expect("three");
        let who = lost.cluster().me();
        drop(lost);
        gone(&nodes, who).await;
        let names = provider.0.lock().expect("no panic under it").clone();
        assert_eq!(names, BTreeSet::from([expected.to_owned()]));
        drop_all(nodes);
    }
}
