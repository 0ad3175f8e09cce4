//! New secrets of a running node.

use std::sync::Arc;

use super::Hub;
use crate::net::secrets::Secrets;

impl Hub {
    /// Handshakes and lanes that begin from now on use these secrets. What is open stays open.
    pub(super) fn adopt(&self, secrets: Secrets) {
        self.keyring.replace(secrets.clone());
        self.standing.send_modify(|standing| Arc::make_mut(standing).secret = Some(secrets));
    }
}
