//! Replacement of the secrets of a running node.

use std::sync::Arc;

use super::ConnectionManager;
use crate::net::secrets::Secrets;

impl ConnectionManager {
    /// Uses these secrets for later handshakes, of connections as well as of lanes and clients.
    /// They replace all earlier ones. Open connections and lanes stay open, also if their secret is
    /// not among these, and handshakes that have begun finish with the secrets of their start. The
    /// secrets are not checked here.
    pub(super) fn adopt(&self, secrets: Secrets) {
        self.keyring.replace(secrets.clone());
        self.standing.send_modify(|standing| Arc::make_mut(standing).secret = Some(secrets));
    }
}
