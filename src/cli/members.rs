//! `ostraca members`: prints the members of the cluster, as one node sees them.

use clap::Args;
use ostraca::management::client::AdminRequestError;
use ostraca::management::wire::{AdminRequest, AdminResponse, MemberInfo, Members};

use super::CommandResult;
use super::table::table;
use super::target::{QueryOptions, run_blocking};
use super::watch::WatchOption;

/// Options of `ostraca members`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ostraca members --config node.toml\n  \
                        ostraca members --socket /var/lib/ostraca/control.sock\n  \
                        ostraca members --timeout 500ms --config node.toml\n  \
                        ostraca members --watch --node 10.0.0.2:4001 --config client.toml\n  \
                        ostraca members --config node.toml --json | jq '.members[].address'")]
pub(super) struct MembersArguments {
    #[command(flatten)]
    watching: WatchOption,
    #[command(flatten)]
    how: QueryOptions,
}

impl MembersArguments {
    /// Prints the members once, or with `--watch` again after each change. The node answers from
    /// its own view, so `--timeout` limits only its answer.
    pub(super) fn run(&self) -> CommandResult {
        let Self { watching, how } = self;
        let read = |answer| match answer {
            AdminResponse::Members(all) => Ok(all),
            _ => Err(AdminRequestError::Unexpected.into()),
        };
        let show = |all: &Members| (all.clone(), shown(all));
        let asked = (&AdminRequest::Members, how.patience());
        run_blocking(watching.print(how.target(), asked, how.output(), read, show))
    }
}

/// Formats the state of the cluster and a table of its members. The state has a line with the
/// number of members, then a line each for the configuration, the reason why the node waits, and a
/// shutdown of the cluster that is prepared, if there is one. If the node has joined no cluster:
/// only one line with the reason why the node waits, without a table.
fn shown(all: &Members) -> String {
    let Some(cluster) = &all.cluster else {
        let waits_for = all
            .waits_for
            .as_deref()
            .unwrap_or("it asks its seeds, waits for an order to join, or stops; see its log");
        return format!("{} belongs to no cluster: {waits_for}\n", all.me);
    };
    let agree = if all.converged { "all have seen this" } else { "not all have seen this yet" };
    let count = all.members.len();
    let counted = if count == 1 { "1 member".to_owned() } else { format!("{count} members") };
    let mut text = format!("cluster {cluster}: {counted}, {agree}\n");
    if let Some(it) = all.configuration {
        text += &format!(
            "configuration {}.{}: replicated data on {}, decided by {} voters\n",
            it.generation, it.number, it.members, it.voters
        );
    }
    if let Some(waits_for) = &all.waits_for {
        text += &format!("{waits_for}\n");
    }
    if all.preparing_for_shutdown {
        text += "the cluster prepares to stop: no shard moves\n";
    }
    let rows: Vec<[String; 7]> = all.members.iter().map(|member| row(all, member)).collect();
    let heads = ["ADDRESS", "STATUS", "ROLES", "HOSTS", "NODE", "NOTE", "UNREACHABLE BY"];
    text + "\n" + &table(heads, &rows)
}

/// Formats a member as a row of the table of [`shown`]. Its note tells whether it is the leader,
/// the asked node, and draining. Observers that can't reach it are shown by address, or by name if
/// they are no members.
fn row(all: &Members, member: &MemberInfo) -> [String; 7] {
    let is = |node: &str| node == member.node;
    let notes = [
        (all.leader.as_deref().is_some_and(is), "leads"),
        (is(&all.me), "asked"),
        (member.draining, "drains"),
    ];
    let notes = notes.iter().filter(|(holds, _)| *holds).map(|(_, note)| *note);
    let address_of = |node: &String| {
        let known = all.members.iter().find(|member| member.node == *node);
        known.map_or_else(|| node.clone(), |member| member.address.clone())
    };
    [
        member.address.clone(),
        member.status.clone(),
        member.roles.join(", "),
        member.entity_types.join(", "),
        member.node.clone(),
        notes.collect::<Vec<_>>().join(", "),
        member.unreachable_by.iter().map(address_of).collect::<Vec<_>>().join(", "),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(port: u8, status: &str) -> MemberInfo {
        MemberInfo {
            node: format!("node-{port}"),
            address: format!("/ip4/10.0.0.{port}/tcp/1"),
            status: status.to_owned(),
            ..MemberInfo::default()
        }
    }

    #[test]
    fn members_table_shows_observers_of_unreachable_member() {
        let mut lost = member(2, "Up");
        lost.unreachable_by = vec!["node-1".to_owned(), "node-9".to_owned()];
        let all = Members {
            me: "node-1".to_owned(),
            cluster: Some("c".to_owned()),
            leader: Some("node-1".to_owned()),
            members: vec![member(1, "Up"), lost],
            ..Members::default()
        };
        let expected = "cluster c: 2 members, not all have seen this yet\n\n\
            ADDRESS               STATUS  NODE    NOTE          UNREACHABLE BY\n\
            /ip4/10.0.0.1/tcp/1  Up      node-1  leads, asked\n\
            /ip4/10.0.0.2/tcp/1  Up      node-2                /ip4/10.0.0.1/tcp/1, node-9\n";
        assert_eq!(shown(&all), expected.replace("ADDRESS  ", "ADDRESS "));
    }

    #[test]
    fn members_reports_a_node_without_a_cluster() {
        let mut all = Members { me: "node-1".to_owned(), ..Members::default() };
        let unknown = "node-1 belongs to no cluster: it asks its seeds, waits for an order to \
                       join, or stops; see its log\n";
        assert_eq!(shown(&all), unknown);
        all.waits_for = Some("seeds are silent".to_owned());
        assert_eq!(shown(&all), "node-1 belongs to no cluster: seeds are silent\n");
    }
}
