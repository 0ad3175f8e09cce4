//! Replacement of the secrets of a running node.

use std::sync::Arc;

use super::ConnectionManager;
use crate::net::secrets::Secrets;

impl ConnectionManager {
    /// Uses these secrets for later handshakes and lanes. Open connections stay open, and
    /// handshakes that have begun finish with the secrets of their start.
    pub(super) fn adopt(&self, secrets: Secrets) {
        self.keyring.replace(secrets.clone());
        self.standing.send_modify(|standing| Arc::make_mut(standing).secret = Some(secrets));
    }
}
