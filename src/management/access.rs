//! Access control: the requests a caller may make, by their effect and the origin of the call.

use super::config::Remote;
use super::wire::{Refusal, Request, Why};

/// Where a call comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// The control socket: the caller is a process of the node's own user, on the node's host.
    ControlSocket,
    /// A network client that proved a secret. The field is the node's `management.remote` setting.
    Network(Remote),
}

/// Effect of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Access {
    /// The request changes nothing.
    Read,
    /// The request changes data, members or shards.
    Change,
    /// The request gives up guarantees, so only the control socket of a surviving node accepts it.
    Local,
}

impl Access {
    /// Effect of `request`. Every new request must be listed here.
    pub(super) const fn of(request: &Request) -> Self {
        match request {
            Request::Members
            | Request::Shards { .. }
            | Request::Explain { .. }
            | Request::Get { .. }
            | Request::Watch { .. }
            | Request::Health { .. }
            | Request::Keys { .. } => Self::Read,
            Request::Set { .. }
            | Request::Delete { .. }
            | Request::Leave { .. }
            | Request::Down { .. }
            | Request::PrepareForShutdown
            | Request::Drain { .. }
            | Request::StopShards { .. }
            | Request::Rebalance { .. } => Self::Change,
            Request::Recover { .. } => Self::Local,
        }
    }
}

impl Origin {
    /// Returns the request if a caller of this origin may make it.
    ///
    /// # Errors
    /// [`Why::Forbidden`] with the setting to change, or [`Why::OnlyHere`] if no setting allows it.
    /// Nothing was done.
    pub(super) fn admit(self, request: Request) -> Result<Request, Refusal> {
        let Self::Network(remote) = self else { return Ok(request) };
        match (Access::of(&request), remote) {
            (Access::Local, _) => Err(only_here()), // no setting allows it
            (access, Remote::Off) => Err(forbidden(
                "this node accepts no requests over the network (management.remote = \"off\")",
                if access == Access::Change { "\"all\"" } else { "\"read\" or \"all\"" },
            )),
            (Access::Change, Remote::Read) => Err(forbidden(
                "this node accepts no requests over the network that change something \
                 (management.remote = \"read\")",
                "\"all\"",
            )),
            (Access::Change, Remote::All) | (Access::Read, Remote::Read | Remote::All) => {
                Ok(request)
            }
        }
    }
}

fn forbidden(fact: &str, value: &str) -> Refusal {
    let text = format!(
        "{fact}; nothing was done: set management.remote = {value} on that node and restart it, \
         or ask on its host over the control socket"
    );
    Refusal { why: Why::Forbidden, text }
}

fn only_here() -> Refusal {
    let text =
        "a lost majority can be given up only on the host of a survivor, over its control socket \
                (`ostraca recover --config FILE`): nothing was changed"
            .to_owned();
    Refusal { why: Why::OnlyHere, text }
}

#[cfg(test)]
mod tests {
    use super::super::item::Item;
    use super::super::wire::{Level, Packed};
    use super::*;

    fn decision(origin: Origin, request: &Request) -> Result<(), Why> {
        origin.admit(request.clone()).map(drop).map_err(|refusal| refusal.why)
    }

    #[test]
    fn remote_setting_decides_by_effect_of_request() {
        let value = Packed::new(&Item::Nil).expect("it has a form");
        let read = Request::Watch { key: "k".to_owned() };
        let change = Request::Set { key: "k".to_owned(), value, level: Level::Local };
        let local = Request::Recover { force: true };
        let all = [&read, &change, &local];
        let table = [
            (Origin::ControlSocket, [Ok(()), Ok(()), Ok(())]),
            (
                Origin::Network(Remote::Off),
                [Err(Why::Forbidden), Err(Why::Forbidden), Err(Why::OnlyHere)],
            ),
            (Origin::Network(Remote::Read), [Ok(()), Err(Why::Forbidden), Err(Why::OnlyHere)]),
            (Origin::Network(Remote::All), [Ok(()), Ok(()), Err(Why::OnlyHere)]),
        ];
        for (origin, expected) in table {
            assert_eq!(all.map(|request| decision(origin, request)), expected, "{origin:?}");
        }
    }

    #[test]
    fn refusal_names_the_setting_and_its_values() {
        let value = Packed::new(&Item::Nil).expect("it has a form");
        let read = Request::Watch { key: "k".to_owned() };
        let change = Request::Set { key: "k".to_owned(), value, level: Level::Local };
        let table = [
            (Remote::Off, read, "\"read\" or \"all\""),
            (Remote::Off, change.clone(), "\"all\""),
            (Remote::Read, change, "\"all\""),
        ];
        for (remote, request, value) in table {
            let refusal = Origin::Network(remote).admit(request).expect_err("refused");
            assert!(refusal.text.contains(&format!("set management.remote = {value} on")));
            let now = format!("management.remote = \"{}\"", remote.as_str());
            assert!(refusal.text.contains(&now), "{}", refusal.text);
        }
    }
}
