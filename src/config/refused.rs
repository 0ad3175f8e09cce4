//! Settings that this release does not implement, and settings that were removed. A node starts
//! only with the default values of the former, because a setting that is accepted and ignored would
//! promise a behaviour that no code provides. The latter are unknown names, whose error names the
//! replacement.

use std::time::Duration;

use super::{Config, InvalidConfig};
use crate::sharding::config::{ConstantRate, EntityRecovery, MajorityPlus};

/// A setting without an implementation: its name in the configuration, whether it differs from its
/// default, and the reason for the error message.
struct UnimplementedSetting {
    setting: &'static str,
    is_set: fn(&Config) -> bool,
    why: &'static str,
}

const NO_STORE: &str = "this release has no durable store: replicated data are kept in the memory \
                        of every node and lost when all nodes stop";
const NO_REMEMBERED: &str = "this release remembers no entities";

/// All settings that the configuration accepts and that no code implements.
const REFUSED: [UnimplementedSetting; 6] = [
    UnimplementedSetting {
        setting: "ddata.durable.keys",
        is_set: |config| !config.ddata.durable_keys.is_empty(),
        why: NO_STORE,
    },
    UnimplementedSetting {
        setting: "ddata.durable.write-behind-interval",
        is_set: |config| config.ddata.write_behind_interval.is_some(),
        why: NO_STORE,
    },
    UnimplementedSetting {
        setting: "cluster.sharding.read-majority-plus",
        is_set: |config| config.sharding.read_majority_plus != MajorityPlus::Some(0),
        why: "a coordinator always reads homes from a plain majority, which sees every \
              acknowledged write",
    },
    UnimplementedSetting {
        setting: "cluster.sharding.entity-recovery-strategy",
        is_set: |config| config.sharding.entity_recovery_strategy != EntityRecovery::All,
        why: NO_REMEMBERED,
    },
    UnimplementedSetting {
        setting: "cluster.sharding.entity-recovery-constant-rate",
        is_set: |config| config.sharding.entity_recovery_constant_rate != ConstantRate::default(),
        why: NO_REMEMBERED,
    },
    UnimplementedSetting {
        setting: "cluster.sharding.entity-restart-backoff",
        is_set: |config| config.sharding.entity_restart_backoff != Duration::from_secs(10),
        why: NO_REMEMBERED,
    },
];

/// Removed settings: the end of their section, their name, and what has their effect.
const REMOVED: [(&str, &str, &str); 3] = [
    (
        "passivation.composite",
        "window",
        "the window is least recently used; for no window set window-proportion, \
         minimum-window-proportion and maximum-window-proportion to 0",
    ),
    (
        "passivation.composite",
        "optimizer",
        "the window adapts its size; for a fixed size set minimum-window-proportion and \
         maximum-window-proportion to window-proportion",
    ),
    (
        "passivation.composite",
        "filter",
        "candidates are always filtered; without a filter choose the policy of main as \
         passivation.strategy",
    ),
];

/// Returns what has the effect of a removed setting; `None` if the section never had this name.
pub(super) fn replacement(section: &str, name: &str) -> Option<&'static str> {
    let removed = REMOVED.iter().find(|(of, it, _)| section.ends_with(of) && *it == name);
    removed.map(|(.., instead)| *instead)
}

/// Returns one error for each unimplemented setting that differs from its default, in the order of
/// [`REFUSED`]; a setting that is set to its default is accepted. Empty if there is none.
pub(super) fn check(config: &Config) -> impl Iterator<Item = InvalidConfig> {
    let set = REFUSED.iter().filter(|refused| (refused.is_set)(config));
    set.map(|UnimplementedSetting { setting, why, .. }| InvalidConfig::NotImplemented {
        setting,
        why,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::load;

    /// A value for each refused setting.
    const SET: [(&str, &str); REFUSED.len()] = [
        ("[ddata]\ndurable.keys = [\"motd*\"]", "ddata.durable.keys is set"),
        (
            "[ddata]\ndurable.write-behind-interval = \"1s\"",
            "ddata.durable.write-behind-interval is set",
        ),
        (
            "[cluster.sharding]\nread-majority-plus = 5",
            "cluster.sharding.read-majority-plus is set",
        ),
        (
            "[cluster.sharding]\nentity-recovery-strategy = \"constant\"",
            "cluster.sharding.entity-recovery-strategy is set",
        ),
        (
            "[cluster.sharding.entity-recovery-constant-rate]\nnumber-of-entities = 6",
            "cluster.sharding.entity-recovery-constant-rate is set",
        ),
        (
            "[cluster.sharding]\nentity-restart-backoff = \"11s\"",
            "cluster.sharding.entity-restart-backoff is set",
        ),
    ];

    #[test]
    fn settings_without_implementation_are_refused_by_name() {
        assert_eq!(check(&Config::default()).count(), 0);
        for ((text, said), refused) in SET.into_iter().zip(&REFUSED) {
            let config = load::from_text(text).expect("a value of the right type");
            let error = config.check().expect_err(text).to_string();
            assert!(error.starts_with(said), "{error}");
            assert!(error.contains(refused.why) && error.ends_with("leave it out"), "{error}");
        }
    }

    #[test]
    fn removed_settings_are_refused_with_their_replacement() {
        for (section, name, instead) in REMOVED {
            for above in ["cluster.sharding", "cluster.sharding.types.cart"] {
                let text = format!("[{above}.{section}]\n{name} = \"none\"");
                let error = load::from_text(&text).expect_err(&text).to_string();
                assert!(error.contains(&format!("{section}.{name}: ")), "{error}");
                assert!(error.ends_with(&format!("was removed: {instead}")), "{error}");
            }
        }
    }

    #[tokio::test]
    async fn no_node_starts_with_durable_keys() {
        let config = || load::from_text(SET[0].0).expect("a value of the right type");
        let errors = [
            crate::Node::start(config()).await.expect_err("no store"),
            crate::Node::listen(config()).await.expect_err("no store"),
        ];
        for error in errors {
            assert!(error.to_string().contains("no durable store"), "{error}");
        }
    }
}
