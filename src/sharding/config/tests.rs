//! Tests of the settings: what is parsed, what is refused, and the errors.

use super::*;
use crate::sharding::passivation::settings::{LimitScope, Policy, Segmented};

const PHASE: Duration = Duration::from_secs(20);

fn read(text: &str) -> ShardingConfig {
    toml::from_str(text).unwrap_or_else(|cause| panic!("{text}: {cause}"))
}

fn refusal(text: &str) -> String {
    read(text).check(PHASE).expect_err("these settings are refused").to_string()
}

#[test]
fn defaults_match_the_documentation_and_are_valid() {
    let sharding = ShardingConfig::default();
    assert_eq!(sharding.check(PHASE), Ok(()));
    assert_eq!(read(""), sharding);
    let documented = "number-of-shards = 1000\nextractor = \"xxh3\"\n\
        state-store-mode = \"ddata\"\nremember-entities = false\nbuffer-size = 100000\n\
        buffer-bytes-max = 268435456\nheld-size = 100000\nheld-bytes-max = 268435456\n\
        mailbox-size = 10000\nmailbox-bytes-max = 16777216\nhandoff-timeout = \"15s\"\n\
        retry-interval = \"2s\"\nupdating-state-timeout = \"5s\"\n\
        waiting-for-state-timeout = \"2s\"\nslow-handler-after = \"30s\"\nask-timeout = \"10s\"\nrebalance-interval = \"10s\"\n\
        allocation-strategy = \"least-shard\"\nremembered-decisions = 4096\n\
        entity-restart-backoff = \"10s\"\nmin-nr-of-members = 1\npreallocate = false\n\
        write-majority-plus = 0\n\
        [least-shard]\nmax-moves-in-flight = 16\n\
        [passivation]\nstrategy = \"idle\"\nidle-timeout = \"120s\"\nactive-entity-limit = 100000";
    assert_eq!(read(documented), sharding);
}

#[test]
fn settings_survive_a_round_trip() {
    let mut sharding =
        ShardingConfig { role: Some("backend".to_owned()), ..ShardingConfig::default() };
    sharding.write_majority_plus = MajorityPlus::All(AllWord::All);
    sharding.passivation.composite.main = Policy::MostRecentlyUsed;
    let orders = EntityType::new("orders").expect("a valid name");
    let own = Overrides { number_of_shards: Some(100), ..Overrides::default() };
    sharding.types.insert(orders, own);
    let text = toml::to_string(&sharding).expect("settings are always text");
    assert_eq!(read(&text), sharding, "{text}");
}

#[test]
fn type_overrides_only_named_settings() {
    let sharding = read(
        "role = \"backend\"\nbuffer-size = 400\n[types.orders]\nnumber-of-shards = 64\n\
         buffer-bytes-max = 1\nheld-size = 2\nheld-bytes-max = 3\nmailbox-size = 4\n\
         mailbox-bytes-max = 5\nslow-handler-after = \"1s\"\n[types.orders.passivation]\nstrategy = \"composite\"\nscope = \"shard\"",
    );
    let orders = sharding.of(&EntityType::new("orders").expect("a valid name"));
    assert_eq!((orders.number_of_shards, orders.buffer_size), (64, 400));
    assert_eq!(orders.role.as_deref(), Some("backend"));
    assert_eq!(orders.passivation.scope, LimitScope::Shard);
    let limits = [orders.buffer_bytes_max, orders.held_size, orders.held_bytes_max];
    assert_eq!(limits, [1, 2, 3]);
    assert_eq!((orders.mailbox_size, orders.mailbox_bytes_max), (4, 5));
    assert_eq!(orders.slow_handler_after, Duration::from_secs(1));
    let others = sharding.of(&EntityType::new("others").expect("a valid name"));
    assert_eq!((others.number_of_shards, others.passivation.scope), (1_000, LimitScope::Region));
}

#[test]
fn mode_persistence_is_refused_and_the_error_says_why() {
    let error = refusal("state-store-mode = \"persistence\"");
    assert!(error.contains("needs a journal") && error.contains("take \"ddata\""), "{error}");
}

#[test]
fn a_handoff_that_outlasts_the_shutdown_phase_is_refused() {
    let error = refusal("[types.orders]\nhandoff-timeout = \"20s\"");
    assert_eq!(
        error,
        "cluster.sharding.types.orders.handoff-timeout is 20s, and \
         cluster.shutdown.cluster-sharding-shutdown-region.timeout is 20s: make the phase longer, \
         or handoff-timeout shorter, so that entities have their time"
    );
}

#[test]
fn unsupported_settings_are_refused_at_start() {
    let remembered = refusal("remember-entities = true");
    assert!(remembered.starts_with("cluster.sharding.remember-entities is set"), "{remembered}");
}

#[test]
fn every_value_out_of_range_is_named() {
    let table = [
        ("number-of-shards = 0", "number-of-shards is 0: must be 1 to"),
        ("number-of-shards = 1000001", "number-of-shards is 1000001"),
        ("min-nr-of-members = 0", "min-nr-of-members is 0: must be at least 1"),
        ("buffer-size = 0", "buffer-size is 0: must be 1 to"),
        ("buffer-bytes-max = 0", "buffer-bytes-max is 0"),
        ("held-size = 0", "held-size is 0: must be 1 to"),
        ("held-bytes-max = 0", "held-bytes-max is 0: must be 1 byte to"),
        ("mailbox-size = 0", "mailbox-size is 0"),
        ("mailbox-bytes-max = 1099511627777", "mailbox-bytes-max is 1099511627777: must be"),
        ("remembered-decisions = 0", "remembered-decisions is 0"),
        ("ask-timeout = \"0s\"", "ask-timeout is 0s: must be longer than nothing"),
        ("retry-interval = \"0s\"", "retry-interval is 0s"),
        ("waiting-for-state-timeout = \"0s\"", "waiting-for-state-timeout is 0s"),
        ("updating-state-timeout = \"0s\"", "updating-state-timeout is 0s"),
        ("audit-interval = \"0s\"", "audit-interval is 0s"),
        ("move-retry-min = \"0s\"", "move-retry-min is 0s"),
        ("handoff-timeout = \"0s\"", "handoff-timeout is 0s"),
        ("lane-broken-after = \"0s\"", "lane-broken-after is 0s"),
        ("restart-backoff-min = \"0s\"", "restart-backoff-min is 0s"),
        ("rebalance-interval = \"0s\"", "rebalance-interval is 0s"),
        ("[entity-recovery-constant-rate]\nfrequency = \"0s\"", "constant-rate.frequency is 0s"),
        ("[entity-recovery-constant-rate]\nnumber-of-entities = 0", "number-of-entities is 0"),
        ("[least-shard-rounds]\nmax-simultaneous-rebalance = 0", "simultaneous-rebalance is 0"),
        ("[healthcheck]\ntimeout = \"0s\"", "healthcheck.timeout is 0s"),
        ("move-retry-max = \"100ms\"", "move-retry-max is 100ms, and cluster.sharding.move"),
        ("restart-backoff-max = \"1ms\"", "restart-backoff-max is 1ms, and cluster.sharding.re"),
        ("[least-shard]\nmax-moves-in-flight = 0", "least-shard.max-moves-in-flight is 0"),
        ("[least-shard-rounds]\nrebalance-relative-limit = 1.5", "relative-limit is 1.5"),
        ("[least-shard-rounds]\nrebalance-threshold = 0", "rebalance-threshold is 0"),
        ("[passivation]\nactive-entity-limit = 0", "sharding.passivation.active-entity-limit is 0"),
        ("[passivation]\nidle-interval = \"0s\"", "passivation.idle-interval is 0s"),
        (
            "[passivation.segmented]\nproportions = [0.5, 0.6]",
            "segmented.proportions is [0.5, 0.6]",
        ),
        ("[passivation.segmented]\nproportions = [1.0]", "segmented.proportions is [1.0]"),
        ("[passivation.composite]\nwindow-proportion = 1.1", "composite.window-proportion is 1.1"),
        ("[passivation.composite]\nminimum-window-proportion = nan", "proportion is NaN"),
        ("[passivation.composite]\nmaximum-window-proportion = 2", "window-proportion is 2"),
        ("[passivation.composite.hill-climbing]\nstep-decay = 2.0", "step-decay is 2"),
        ("[passivation.composite.hill-climbing]\ninitial-step = 2.0", "initial-step is 2"),
        ("[passivation.composite.hill-climbing]\nrestart-threshold = 0", "threshold is 0"),
        ("[passivation.composite.hill-climbing]\nadjust-multiplier = 0", "multiplier is 0"),
        ("[passivation.composite.frequency-sketch]\ndepth = 0", "frequency-sketch.depth is 0"),
        ("[passivation.composite.frequency-sketch]\nreset-multiplier = 0", "multiplier is 0"),
        ("[passivation.composite.frequency-sketch]\nwidth-multiplier = 0", "multiplier is 0"),
        ("[types.a]\nmailbox-size = 0", "cluster.sharding.types.a.mailbox-size is 0"),
    ];
    for (text, expected) in table {
        let error = refusal(text);
        assert!(error.contains(expected), "{text}: {error}");
    }
    let mut many = ShardingConfig::default();
    let name = |n| EntityType::new(&format!("t{n}")).expect("a valid name");
    many.types.extend((0..=TYPES_MAX).map(|n| (name(n), Overrides::default())));
    let error = many.check(PHASE).expect_err("too many").to_string();
    assert!(error.contains("cluster.sharding.types is 1025: must have 1,024"), "{error}");
}

#[test]
fn wrong_proportions_are_named_with_their_policy() {
    let levels = "{ policy = \"segmented\", proportions = [1.0] }";
    let error = refusal(&format!("[passivation.composite]\nmain = {levels}"));
    assert!(error.contains("passivation.composite.main.proportions is [1.0]"), "{error}");
}

#[test]
fn e20_strategies_read_from_text_and_built_in_code_are_equal() {
    let text = "[passivation]\nstrategy = \"composite\"\nactive-entity-limit = 20\n\
        idle-timeout = \"0s\"\n[passivation.composite]\nwindow-proportion = 0.2\n\
        main = { policy = \"segmented\", proportions = [0.25, 0.75] }";
    let mut built = PassivationConfig { active_entity_limit: 20, ..PassivationConfig::default() };
    built.strategy = crate::sharding::passivation::settings::PassivationStrategy::Composite;
    built.idle_timeout = Duration::ZERO;
    built.composite.window_proportion = 0.2;
    built.composite.main = Policy::Segmented(Segmented { proportions: vec![0.25, 0.75] });
    assert_eq!(read(text).passivation, built);
}

#[test]
fn e20_remembering_stops_passivation_unknown_policy_fails() {
    assert_eq!(read("remember-entities = true").automatic_passivation(), None);
    assert!(ShardingConfig::default().automatic_passivation().is_some());
    for unknown in ["[passivation]\nstrategy = \"random\"", "buffer-sise = 3"] {
        assert!(toml::from_str::<ShardingConfig>(unknown).is_err(), "{unknown}");
    }
}

#[test]
fn each_name_gives_its_strategy_with_its_settings() {
    let text = "allocation-strategy = \"least-shard-rounds\"\n\
        [least-shard-rounds]\nrebalance-absolute-limit = 20";
    let rounds = LeastShardRounds { rebalance_absolute_limit: 20, ..Default::default() };
    assert_eq!(read(text).strategy(), AllocationStrategy::Rounds(rounds));
    let names = [
        ("least-shard", AllocationStrategy::LeastShard(LeastShard::default())),
        ("consistent-hashing", AllocationStrategy::ConsistentHashing(ConsistentHashing::default())),
        (
            "external",
            AllocationStrategy::External(External { pinned: None, max_moves_in_flight: 16 }),
        ),
    ];
    for (name, strategy) in names {
        let text = format!("allocation-strategy = \"{name}\"");
        assert_eq!(read(&text).strategy(), strategy, "{name}");
    }
}

#[test]
fn role_names_have_at_most_128_bytes() {
    for setting in ["role", "coordinator-role"] {
        let text = |bytes: usize| format!("{setting} = \"{}\"", "r".repeat(bytes));
        assert_eq!(read(&text(128)).check(PHASE), Ok(()));
        let error = refusal(&text(129));
        let expected = format!(
            "cluster.sharding.{setting} is a name of 129 bytes: must have at most 128 bytes"
        );
        assert_eq!(error, expected);
    }
}
