//! `ostraca recover`: continues without a majority that is lost for good.

use std::time::Duration;

use clap::Args;
use ostraca::management::client::AdminRequestError;
use ostraca::management::wire::{AdminRequest, AdminResponse, RecoveryReport, Survivor};

use super::CommandResult;
use super::target::{LocalNode, OutputOptions, run_blocking};

/// Options of `ostraca recover`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ostraca recover --config node.toml          \
                        # members to keep and to give up\n  \
                        ostraca recover --force --config node.toml  # once those to give up are stopped\n  \
                        ostraca recover --json --socket /var/lib/ostraca/control.sock")]
pub(super) struct RecoverArguments {
    /// Executes the recovery. It can't be undone.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    here: LocalNode,
    #[command(flatten)]
    output: OutputOptions,
}

/// Instructions after a dry run.
const NOT_FORCED: &str = "\
    nothing was changed. Make sure that the members that would be given up are stopped, every one of\n\
    them: if they are alive, both sides act, and each of them that learns of it stops, whatever their\n\
    number. Then repeat this with --force, on this node only\n";

impl RecoverArguments {
    /// Executes the recovery with `--force`, without a confirmation; otherwise only asks for the
    /// preview and prints it with instructions, which also is a success. With `--json` prints only
    /// the report, its `forced` tells the two apart. Asks over the control socket of this host
    /// only.
    pub(super) fn run(&self) -> CommandResult {
        let Self { force, here, output } = self;
        let request = AdminRequest::Recover { force: *force };
        run_blocking(async {
            match here.target().ask(&request, Duration::ZERO).await? {
                AdminResponse::Recovery(recovery) => output
                    .print(&recovery, || shown(&recovery) + if *force { "" } else { NOT_FORCED }),
                _ => Err(AdminRequestError::Unexpected.into()),
            }
        })
    }
}

/// Formats the kept and the given-up members, the new configuration if it was forced, and a hint
/// about seeds if any member is given up, for a preview as well.
fn shown(recovery: &RecoveryReport) -> String {
    let RecoveryReport { forced, me, configuration, kept, given_up } = recovery;
    let (goes, gone) = match forced {
        true => ("go on", "are given up for ever"),
        false => ("would go on", "would be given up for ever"),
    };
    let mut text = format!("{} of {} members {goes}:\n", kept.len(), kept.len() + given_up.len());
    text += &listed(kept, me);
    text += &format!("{} {gone}:\n{}", given_up.len(), listed(given_up, me));
    if let Some(it) = configuration {
        text += &format!("configuration {}.{} was forced\n", it.generation, it.number);
    }
    if !given_up.is_empty() {
        text += "a given-up node needs a kept member among its seeds before it starts again\n";
    }
    text
}

/// Formats one line per member; the note `asked` marks the node `me`.
fn listed(survivors: &[Survivor], me: &str) -> String {
    let line = |it: &Survivor| {
        let note = if it.node == me { "  asked" } else { "" };
        format!("  {}  {}{note}\n", it.address, it.node)
    };
    survivors.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recover_lists_kept_and_given_up_members() {
        let survivor =
            |name: &str| Survivor { node: name.into(), address: format!("/dns4/{name}") };
        let kept = vec![survivor("a")];
        let given_up = ["b", "c"].map(survivor).to_vec();
        let planned =
            RecoveryReport { me: "a".into(), kept, given_up, ..RecoveryReport::default() };
        let expected = "1 of 3 members would go on:\n  /dns4/a  a  asked\n\
                        2 would be given up for ever:\n  /dns4/b  b\n  /dns4/c  c\n\
                        a given-up node needs a kept member among its seeds before it starts \
                        again\n";
        assert_eq!(shown(&planned), expected);
        assert!(
            shown(&RecoveryReport { forced: true, ..planned }).contains("2 are given up for ever:")
        );
    }
}
