//! Rules of the four pages that no model weakens, with the suites that test them.
//!
//! Every rule of these pages is in a model or here; otherwise the program reports it.

use std::collections::BTreeSet;

use crate::model::Model;

const PAGES: [(&str, &str); 4] = [
    ("configurations", include_str!("../../docs/protocol/configurations.md")),
    ("leases", include_str!("../../docs/protocol/leases.md")),
    ("sharding", include_str!("../../docs/protocol/sharding.md")),
    ("message-order", include_str!("../../docs/protocol/message-order.md")),
];

/// A rule, and where it is tested.
type Tested = (&'static str, &'static str);

const CONFIGURATIONS: &[Tested] = &[
    ("voter-limit", "ddata/src/replicator/epoch/tests/configuration.rs"),
    ("configuration-order", "ddata/src/replicator/epoch/tests/configuration.rs"),
    ("well-formed-successor", "ddata/src/replicator/epoch/tests/configuration.rs"),
    ("one-batch", "ddata/src/replicator/epoch/tests/proposal.rs"),
    ("voting-members-only", "ddata/src/replicator/epoch/tests/vote.rs"),
    ("removed-incarnations-never-return", "ddata/tests/epochs, random schedules"),
    ("eligible-replica", "ddata/tests/epochs, strict runs: safe without it, if alone"),
    ("merge-always-acknowledge-when-eligible", "ddata/tests/replicator/aggregators.rs"),
    ("requests-start-anew-at-an-install", "ddata/tests/replicator/delivered.rs"),
    ("excluded-node", "ddata/tests/replicator/excluded.rs"),
    ("catch-up-by-configuration-id", "ddata/src/replicator/epoch/tests/installation.rs"),
    ("withhold-before-seal", "ddata/src/replicator/epoch/tests/proposal.rs"),
    ("removals-that-wait", "ddata/src/replicator/epoch/tests/proposal.rs"),
    ("seal-only-what-can-sync", "ddata/src/replicator/epoch/tests/proposal.rs"),
    ("one-proposal-per-ballot", "ddata/src/replicator/epoch/tests/proposal.rs"),
    ("sync-belongs-to-the-configuration", "ddata/src/replicator/epoch/tests/synchronization.rs"),
    ("probe-before-accept", "ddata/src/replicator/epoch/tests/proposal.rs"),
    ("decision-by-a-quorum-of-the-old-configuration", "in every exploration, without a fault"),
    ("install-the-newest", "ddata/src/replicator/epoch/tests/installation.rs"),
    ("hints", "ddata/src/replicator/epoch/tests/senders.rs"),
    ("sync-before-acknowledging", "ddata/tests/epochs, strict runs"),
    ("abandoned-seal", "ddata/src/replicator/epoch/tests/vote.rs"),
    ("both-quorums-while-a-change-is-open", "tests/cluster/membership/chaos.rs"),
    ("bounded-ballot-and-configuration-numbers", "ddata/src/replicator/epoch/tests/senders.rs"),
    ("durable-votes", "ddata/tests/replicator/disks.rs"),
    ("restarted-process-is-a-new-member", "ddata/src/replicator/epoch/tests/installation.rs"),
    ("sole-member-succession", "tests/cluster/membership/restarts.rs"),
    ("forced-recovery", "tests/cluster/membership/recovering.rs"),
    ("forced-configurations-are-unique", "ddata/src/replicator/epoch/tests/installation.rs"),
    ("given-up-nodes-are-told", "tests/cluster/membership/recovering.rs"),
    ("recount-after-a-forced-recovery", "src/sharding/coordinator/tests/recount.rs"),
];

const LEASES: &[Tested] = &[
    ("promise-counts-from-receipt", "tests/cluster/lease, drifting clocks, with a fault"),
    ("clock-check-before-every-message", "tests/cluster/lease, drifting clocks, with a fault"),
    ("clock-that-runs-during-suspend", "no test suspends a host"),
    ("leases-count-one-configuration", "tests/cluster/lease/directed.rs, with a fault"),
    ("wait-after-start", "tests/cluster/lease/directed.rs, with a fault"),
    ("consent-and-seal-are-one-step", "tests/cluster/lease/grants.rs"),
    ("publish-before-answering", "tests/cluster/lease/grants.rs"),
    ("lapse-pauses-before-it-stops", "tests/sharding/entities/lapsing.rs"),
    ("running-poll", "tests/sharding/entities/drains.rs"),
    ("release-before-seal", "tests/cluster/lease/grants.rs; tests/cluster/lease, with a fault"),
    ("release-is-final-and-numbered", "src/cluster/lease/grantor_tests.rs"),
    ("proof-of-death", "tests/cluster/membership/going.rs"),
    ("down-members-get-no-grant", "src/cluster/lease/grantor_tests.rs"),
    ("lease-settings-belong-to-the-configuration", "src/cluster/lease/holder_tests.rs"),
    ("removal-margin", "src/cluster/lease/departed_members.rs"),
    ("promised-terms-never-fall", "ddata/tests/replicator/guarded.rs"),
    ("refused-owner-steps-down", "src/sharding/coordinator/tests/takeover.rs"),
    ("owner-builds-on-its-own-reads", "moves with gossiping replicas, without a fault"),
    ("one-content-for-each-generation", "src/sharding/coordinator/tests/decisions.rs"),
    ("guarded-order-ignores-clocks", "ddata/tests/replicator/guarded.rs"),
    ("guarded-keys-are-never-removed", "ddata/tests/replicator/guarded.rs"),
    ("fencing-token", "tests/sharding/entities/fencing.rs"),
];

const SHARDING: &[Tested] = &[
    ("total-order-of-generations", "in every exploration, without a fault"),
    ("home-keys-are-never-removed", "tests/sharding/cluster/directed.rs, with a fault"),
    ("coordinator-runs-where-the-type-is-hosted", "src/sharding/machines/tests.rs"),
    ("the-recovery-read-outranks-gossip", "moves with gossiping replicas, without a fault"),
    ("a-refused-coordinator-is-silent", "src/sharding/coordinator/tests/takeover.rs"),
    ("a-reported-higher-term-ends-a-coordinator", "src/sharding/coordinator/tests/takeover.rs"),
    ("releases-are-not-remembered", "src/sharding/home.rs"),
    ("one-write-for-all-waiting-decisions", "src/sharding/coordinator/tests/decisions.rs"),
    ("repeat-until-hosted", "src/sharding/coordinator/tests/decisions.rs"),
    ("announcements-only-route", "src/sharding/region/tests/rules.rs"),
    ("drain-is-bounded", "tests/sharding/entities/drains.rs"),
    ("draining-handlers-reach-draining-shards", "tests/sharding/entities/drains.rs"),
    ("the-payload-carries-what-has-not-begun", "tests/sharding/entities/storm.rs, with faults"),
    ("entity-state-travels-in-the-payload", "tests/sharding/entities/moving.rs"),
    (
        "payload-is-kept-until-hosted-above-it",
        "src/sharding/region/tests/payloads.rs, with a fault",
    ),
    ("a-region-named-in-vain-says-so", "tests/sharding/moves/directed.rs, with a fault"),
    ("predecessors-leave-only-by-hosted", "tests/sharding/moves, random walks, with a fault"),
    ("long-payloads-are-fetched", "src/sharding/region/tests/pieces.rs"),
    ("cluster-generation-before-start", "tests/sharding/entities/fencing.rs"),
    ("an-instance-ends-before-its-successor", "tests/sharding/entities/successors.rs"),
    ("fencing-tokens-never-go-back", "tests/sharding/entities/fencing.rs"),
    ("registration-repeats-until-acknowledged", "src/sharding/region/tests/life.rs"),
    ("audit-releases-unauthorized-hosts", "src/sharding/coordinator/tests/registration.rs"),
    ("settings-must-agree", "src/sharding/machines/tests.rs"),
    (
        "minimum-regions-gate-only-the-first-allocation",
        "src/sharding/coordinator/tests/decisions.rs",
    ),
    ("strategies-see-planned-homes", "src/sharding/coordinator/tests/decisions.rs"),
    ("targets-are-reachable-up-and-staying", "src/sharding/allocation/tests/targets.rs"),
    ("planned-moves-leave-out-slow-handlers", "src/sharding/allocation/tests/slow_handlers.rs"),
    ("a-failing-strategy-changes-nothing", "src/sharding/machines/tests/strategy_requests.rs"),
    ("a-lost-region-is-replaced-in-one-write", "src/sharding/coordinator/tests/decisions.rs"),
    ("unreachable-regions-keep-their-shards", "tests/sharding/nodes/known_failures.rs"),
    ("known-homes-outlive-the-coordinator", "src/sharding/machines/tests.rs"),
    (
        "a-leaving-region-moves-all-shards-in-one-batch",
        "src/sharding/coordinator/tests/registration.rs",
    ),
    ("no-target-means-home-none", "src/sharding/coordinator/tests/registration.rs"),
    ("no-moves-during-full-shutdown", "src/sharding/coordinator/tests/decisions.rs"),
    ("a-stopping-shard-gets-no-home", "src/sharding/coordinator/tests/decisions.rs"),
    ("recount-after-a-forced-configuration", "tests/sharding/nodes/recovering.rs"),
    ("passivation-loses-no-message", "tests/sharding/entities/passivating.rs"),
];

const MESSAGE_ORDER: &[Tested] = &[
    ("lanes-are-fifo-and-reliable", "an assumption of the model: tests/net"),
    ("control-messages-are-unordered", "an assumption that the model explores"),
    ("flush-from-the-head", "src/sharding/gate/tests/directed.rs"),
    ("a-bounce-returns-the-message-and-teaches", "in every exploration, without a fault"),
    ("a-removed-home-ends-its-lane", "src/sharding/gate/tests/directed.rs"),
    ("a-cut-lane-is-given-up-only-after-a-move", "src/sharding/gate/tests/directed.rs"),
    ("routes-come-from-acknowledged-decisions", "src/sharding/region/tests/rules.rs"),
    ("the-own-region-keeps-its-gate", "src/sharding/gate/tests/directed.rs"),
    ("seal-and-gate-change-in-one-step", "src/sharding/gate/tests/threads.rs (loom)"),
    ("bounce-never-forward", "src/sharding/gate/tests/directed.rs"),
    (
        "a-lane-without-a-connection-has-no-room",
        "tests/sharding/entities/lost_nodes.rs, with a fault; src/net/lane/outbound/tests.rs",
    ),
    ("replies-and-bounces-pass-the-limit", "tests/net/hub.rs; tests/sharding/entities/lengths.rs"),
    ("moved-messages-are-exempt", "tests/sharding/entities/limits.rs"),
    ("orphaned-held-messages-expire", "tests/sharding/entities/limits.rs"),
    ("one-message-at-a-time", "tests/sharding/entities/storm.rs"),
    ("unbegun-messages-go-back-first", "tests/sharding/stack, with a fault"),
    ("mailbox-limits-and-busy-notices", "tests/sharding/entities/busy.rs"),
    ("a-lane-reader-never-waits-for-a-mailbox", "tests/sharding/entities/busy.rs"),
    ("long-messages-wait-with-their-caller", "tests/sharding/entities/bulk.rs"),
    ("at-most-once", "tests/sharding/stack"),
    ("correlation-numbers-are-secret-and-single-use", "tests/sharding/entities/forging.rs"),
    ("every-known-loss-is-reported-to-the-asker", "tests/sharding/entities/failing.rs"),
    (
        "asks-end-with-the-node-that-has-their-message",
        "tests/sharding/entities/lost_nodes.rs, with a fault",
    ),
    ("ask-time-starts-at-the-call", "tests/sharding/entities/timeouts.rs"),
    (
        "a-timeout-names-the-handler-that-it-waits-for",
        "tests/sharding/entities/waits.rs; tests/sharding/entities/drains.rs",
    ),
    ("ask-cycles-are-named-on-one-node", "tests/sharding/entities/waits.rs"),
    ("duplicates-are-the-senders-decision", "a consequence, not an action"),
];

const TABLES: [&[Tested]; 4] = [CONFIGURATIONS, LEASES, SHARDING, MESSAGE_ORDER];

/// Prints the rules that no model weakens, if `wanted`. Returns whether the tables and the models
/// have every rule of the pages once, and no others.
pub(crate) fn print(models: &[Model], wanted: bool) -> bool {
    if !wanted {
        return true;
    }
    let modelled: BTreeSet<&str> =
        models.iter().flat_map(|model| &model.rules).map(|rule| rule.rule).collect();
    let (mut complete, mut reserved) = (true, 0);
    println!();
    println!("NOT WEAKENED BY A MODEL: rules, and the suites that test them");
    for ((page, text), table) in PAGES.into_iter().zip(TABLES) {
        let mut rest: BTreeSet<&str> = table.iter().map(|(rule, _)| *rule).collect();
        for Rule { anchor, is_reserved } in rules(text) {
            let tested = table.iter().find(|(rule, _)| *rule == anchor);
            rest.remove(anchor.as_str());
            let is_modelled =
                modelled.contains(format!("docs/protocol/{page}.md#{anchor}").as_str());
            reserved += usize::from(is_reserved);
            match tested {
                Some((_, suite)) if !is_modelled && !is_reserved => {
                    println!("  {:<66} {suite}", format!("{page}.md#{anchor}"));
                }
                None if is_modelled || is_reserved => {}
                _ => {
                    complete = false;
                    println!("  {page}.md#{anchor} must be in exactly one model or table");
                }
            }
        }
        for gone in rest {
            complete = false;
            println!("  {page}.md has no rule {gone}");
        }
    }
    println!("  {reserved} further rules are reserved: no release implements them.");
    complete
}

struct Rule {
    anchor: String,
    is_reserved: bool,
}

/// The headings of a page that are followed by a rule.
fn rules(page: &str) -> Vec<Rule> {
    let lines: Vec<&str> = page.lines().collect();
    let heading = |(at, line): (usize, &&str)| {
        let heading = line.strip_prefix("### ")?;
        let next = lines.get(at + 2)?.strip_prefix("**Rule")?;
        let plain = heading.to_lowercase();
        let plain = plain.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        let anchor = plain.map(|c| if c == ' ' { '-' } else { c }).collect();
        Some(Rule { anchor, is_reserved: next.contains("(reserved") })
    };
    lines.iter().enumerate().filter_map(heading).collect()
}
