//! `ostraca shards`: prints where the shards of an entity type live.

use clap::Args;
use ostraca::management::client::AdminRequestError;
use ostraca::management::wire::{AdminRequest, AdminResponse, RegionInfo, Shards};

use super::CommandResult;
use super::table::table;
use super::target::{QueryOptions, run_blocking};
use super::watch::WatchOption;

/// Options of `ostraca shards`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ostraca shards cart --config node.toml\n  \
                        ostraca shards cart --each --socket /var/lib/shop/control.sock\n  \
                        ostraca shards cart --watch --config node.toml\n  \
                        ostraca shards cart --config node.toml --json | jq '.regions[].node'")]
pub(super) struct ShardsArguments {
    /// The entity type, under the name with which the asked program has started it.
    #[arg(value_name = "TYPE")]
    entity_type: String,
    /// Prints one line per shard.
    #[arg(long)]
    each: bool,
    #[command(flatten)]
    watching: WatchOption,
    #[command(flatten)]
    how: QueryOptions,
}

impl ShardsArguments {
    /// Prints a summary and a table once, or with `--watch` again after each change. The table has
    /// a row per region, with `--each` a row per shard.
    pub(super) fn run(self) -> CommandResult {
        let Self { entity_type, each, watching, how } = self;
        let request = AdminRequest::Shards { entity_type, within_ms: how.within_ms() };
        let read = |answer| match answer {
            AdminResponse::Shards(all) => Ok(all),
            _ => Err(AdminRequestError::Unexpected.into()),
        };
        let show = |all: &Shards| {
            let rows = if each { by_shard(all) } else { by_region(all) };
            (all.clone(), summary(all) + "\n" + &rows)
        };
        let asked = (&request, how.patience());
        run_blocking(watching.print(how.target(), asked, how.output(), read, show))
    }
}

/// Counts the live entities of a region; saturates.
fn entities(region: &RegionInfo) -> u64 {
    region.shards.iter().fold(0, |sum, (_, count)| sum.saturating_add(*count))
}

/// Formats the totals of the regions that answered, and the number of silent ones. A shard that two
/// regions report in the course of a move counts twice.
fn summary(all: &Shards) -> String {
    let shards: usize = all.regions.iter().map(|region| region.shards.len()).sum();
    let entities = all.regions.iter().map(entities).fold(0, u64::saturating_add);
    let (regions, silent) = (all.regions.len(), all.unanswered.len());
    let mut text = format!("{}: {entities} entities in {shards} shards on ", all.entity_type);
    text += if regions == 1 { "1 node" } else { "" };
    if regions != 1 {
        text += &format!("{regions} nodes");
    }
    if silent > 0 {
        text += &format!("; {silent} did not answer in time: what they host is not counted");
    }
    text + "\n"
}

/// Formats a row per region, the silent ones last with `?` for numbers. Marks the region on the
/// node of the coordinator, unless it is silent.
fn by_region(all: &Shards) -> String {
    let is = |region: &RegionInfo| all.coordinator.as_ref() == Some(&region.node);
    let note = |region: &RegionInfo| if is(region) { "coordinates" } else { "" };
    let answered = all.regions.iter().map(|region| {
        let (shards, entities) = (region.shards.len().to_string(), entities(region).to_string());
        [place(region), shards, entities, region.node.clone(), note(region).to_owned()]
    });
    let silent = all.unanswered.iter().map(|region| {
        let [unknown, same] = [(); 2].map(|()| "?".to_owned());
        [place(region), unknown, same, region.node.clone(), "no answer".to_owned()]
    });
    let rows: Vec<[String; 5]> = answered.chain(silent).collect();
    table(["ADDRESS", "SHARDS", "ENTITIES", "NODE", "NOTE"], &rows)
}

/// Formats a row per shard, ordered by number. Shards of silent regions are missing, and a shard
/// that two regions report has two rows.
fn by_shard(all: &Shards) -> String {
    let of = |region: &RegionInfo| {
        let address = place(region);
        let row = move |(shard, count): &(u32, u64)| (*shard, *count, address.clone());
        region.shards.iter().map(row).collect::<Vec<_>>()
    };
    let mut rows: Vec<(u32, u64, String)> = all.regions.iter().flat_map(of).collect();
    rows.sort();
    let row = |(shard, count, address): (u32, u64, String)| {
        [shard.to_string(), count.to_string(), address]
    };
    table(["SHARD", "ENTITIES", "ADDRESS"], &rows.into_iter().map(row).collect::<Vec<_>>())
}

/// Returns the address of a region's node, or a note if the node is no longer a member.
fn place(region: &RegionInfo) -> String {
    match region.address.as_str() {
        "" => "(no longer a member)".to_owned(),
        address => address.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silent_region_is_named_and_not_counted() {
        let region = |node: &str, address: &str, shards: &[(u32, u64)]| RegionInfo {
            node: node.to_owned(),
            address: address.to_owned(),
            shards: shards.to_vec(),
        };
        let all = Shards {
            entity_type: "cart".to_owned(),
            coordinator: Some("b".to_owned()),
            regions: vec![region("a", "/a", &[(9, 2), (10, 0)]), region("b", "/b", &[(3, 5)])],
            unanswered: vec![region("c", "", &[])],
        };
        let expected = "cart: 7 entities in 3 shards on 2 nodes; 1 did not answer in time: what \
                        they host is not counted\n";
        assert_eq!(summary(&all), expected);
        let expected = [
            "ADDRESS               SHARDS  ENTITIES  NODE  NOTE",
            "/a                    2       2         a",
            "/b                    1       5         b     coordinates",
            "(no longer a member)  ?       ?         c     no answer",
        ];
        assert_eq!(by_region(&all).lines().collect::<Vec<_>>(), expected);
        let expected = [
            "SHARD  ENTITIES  ADDRESS",
            "3      5         /b",
            "9      2         /a",
            "10     0         /a",
        ];
        assert_eq!(by_shard(&all).lines().collect::<Vec<_>>(), expected);
    }
}
