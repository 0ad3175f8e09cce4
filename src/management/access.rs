//! Access control: the requests a caller may make, by their effect and the origin of the call.

use super::config::Remote;
use super::wire::{AdminRequest, RefusalReason, RequestRefusal};

/// Where a call comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestOrigin {
    /// The control socket: the caller is a process of the node's own user, on the node's host.
    ControlSocket,
    /// A network client that proved a secret. The field is the node's `management.remote` setting.
    Network(Remote),
}

/// Effect of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RequiredAccess {
    /// The request changes nothing.
    Read,
    /// The request changes data, members or shards.
    Change,
    /// The request gives up guarantees, so only the control socket of a surviving node accepts it.
    /// The variants are ordered by effect, least first.
    Local,
}

impl RequiredAccess {
    /// Returns the effect of `request`: `Local` for `Recover`, also without `force`, which only
    /// reports; `Change` for every other request that writes data or commands members or shards,
    /// also one that turns out to change nothing; otherwise `Read`. Every new request must be
    /// listed here.
    pub(super) const fn of(request: &AdminRequest) -> Self {
        match request {
            AdminRequest::Members
            | AdminRequest::Shards { .. }
            | AdminRequest::Explain { .. }
            | AdminRequest::Get { .. }
            | AdminRequest::Watch { .. }
            | AdminRequest::Health { .. }
            | AdminRequest::Keys { .. } => Self::Read,
            AdminRequest::Set { .. }
            | AdminRequest::Delete { .. }
            | AdminRequest::Leave { .. }
            | AdminRequest::Down { .. }
            | AdminRequest::PrepareForShutdown
            | AdminRequest::Drain { .. }
            | AdminRequest::StopShards { .. }
            | AdminRequest::Rebalance { .. } => Self::Change,
            AdminRequest::Recover { .. } => Self::Local,
        }
    }
}

impl RequestOrigin {
    /// Returns the request unchanged if a caller of this origin may make it. The control socket may
    /// make every request; the network may never make a `Local` one, even if `management.remote` is
    /// `all`.
    ///
    /// # Errors
    /// [`RefusalReason::OnlyHere`] for a `Local` request, which no setting allows, also while
    /// `management.remote` is `off`. Otherwise [`RefusalReason::Forbidden`] with the setting to
    /// change: `off` refuses every request, `read` those that change something. Nothing was done.
    pub(super) fn admit(self, request: AdminRequest) -> Result<AdminRequest, RequestRefusal> {
        let Self::Network(remote) = self else { return Ok(request) };
        match (RequiredAccess::of(&request), remote) {
            (RequiredAccess::Local, _) => Err(only_here()), // no setting allows it
            (access, Remote::Off) => Err(forbidden(
                "this node accepts no requests over the network (management.remote = \"off\")",
                if access == RequiredAccess::Change { "\"all\"" } else { "\"read\" or \"all\"" },
            )),
            (RequiredAccess::Change, Remote::Read) => Err(forbidden(
                "this node accepts no requests over the network that change something \
                 (management.remote = \"read\")",
                "\"all\"",
            )),
            (RequiredAccess::Change, Remote::All)
            | (RequiredAccess::Read, Remote::Read | Remote::All) => Ok(request),
        }
    }
}

/// Makes the refusal, as [`RefusalReason::Forbidden`], for a request that another value of
/// `management.remote` would allow: names the fact, that value with its quotes, the restart that it
/// needs, and the control socket as the alternative.
fn forbidden(fact: &str, value: &str) -> RequestRefusal {
    let text = format!(
        "{fact}; nothing was done: set management.remote = {value} on that node and restart it, \
         or ask on its host over the control socket"
    );
    RequestRefusal { why: RefusalReason::Forbidden, text }
}

/// Makes the refusal, as [`RefusalReason::OnlyHere`], for a request that the network can never
/// make. The text names `ostraca recover`, the only such request.
fn only_here() -> RequestRefusal {
    let text = "a lost majority can be given up only on the host of a survivor, over its control \
                socket (`ostraca recover --config FILE`): nothing was changed"
        .to_owned();
    RequestRefusal { why: RefusalReason::OnlyHere, text }
}

#[cfg(test)]
mod tests {
    use super::super::wire::{ConsistencyLevel, Packed};
    use super::*;

    fn decision(origin: RequestOrigin, request: &AdminRequest) -> Result<(), RefusalReason> {
        origin.admit(request.clone()).map(drop).map_err(|refusal| refusal.why)
    }

    #[test]
    fn remote_setting_decides_by_effect_of_request() {
        let value = Packed::new(&()).expect("it has a form");
        let read = AdminRequest::Watch { key: "k".to_owned() };
        let change =
            AdminRequest::Set { key: "k".to_owned(), value, level: ConsistencyLevel::Local };
        let local = AdminRequest::Recover { force: true };
        let all = [&read, &change, &local];
        let table = [
            (RequestOrigin::ControlSocket, [Ok(()), Ok(()), Ok(())]),
            (
                RequestOrigin::Network(Remote::Off),
                [
                    Err(RefusalReason::Forbidden),
                    Err(RefusalReason::Forbidden),
                    Err(RefusalReason::OnlyHere),
                ],
            ),
            (
                RequestOrigin::Network(Remote::Read),
                [Ok(()), Err(RefusalReason::Forbidden), Err(RefusalReason::OnlyHere)],
            ),
            (RequestOrigin::Network(Remote::All), [Ok(()), Ok(()), Err(RefusalReason::OnlyHere)]),
        ];
        for (origin, expected) in table {
            assert_eq!(all.map(|request| decision(origin, request)), expected, "{origin:?}");
        }
    }

    #[test]
    fn refusal_names_the_setting_and_its_values() {
        let value = Packed::new(&()).expect("it has a form");
        let read = AdminRequest::Watch { key: "k".to_owned() };
        let change =
            AdminRequest::Set { key: "k".to_owned(), value, level: ConsistencyLevel::Local };
        let table = [
            (Remote::Off, read, "\"read\" or \"all\""),
            (Remote::Off, change.clone(), "\"all\""),
            (Remote::Read, change, "\"all\""),
        ];
        for (remote, request, value) in table {
            let refusal = RequestOrigin::Network(remote).admit(request).expect_err("refused");
            assert!(refusal.text.contains(&format!("set management.remote = {value} on")));
            let now = format!("management.remote = \"{}\"", remote.as_str());
            assert!(refusal.text.contains(&now), "{}", refusal.text);
        }
    }
}
