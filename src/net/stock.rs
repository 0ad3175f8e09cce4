//! `net.transport = "stock"`: the handshake of `libp2p-noise`.
//!
//! The crate knows no preshared key. With a secret its prologue is derived from it: strangers fail,
//! but an active one learns the peer id and can test guesses of the secret. Every secret has a
//! protocol name of its own, because the listener has to choose the prologue before it answers.

use std::borrow::Cow;
use std::vec;

use futures::future::{BoxFuture, FutureExt};
use futures::{AsyncRead, AsyncWrite};
use libp2p::PeerId;
use libp2p::core::upgrade::{InboundConnectionUpgrade, OutboundConnectionUpgrade, UpgradeInfo};
use libp2p::identity::Keypair;
use libp2p::noise::{Config, Error, Output};

use super::secrets::{self, Keyring};

/// The name under which libp2p agrees on Noise.
const NOISE: &str = "/noise";

/// The handshake, and the secrets that it needs.
#[derive(Clone)]
pub(super) struct Stock {
    config: Config,
    keyring: Keyring,
}

impl Stock {
    /// As the node of this identity.
    ///
    /// # Errors
    /// If the identity cannot sign.
    pub(super) fn new(identity: &Keypair, keyring: &Keyring) -> Result<Self, Error> {
        Ok(Self { config: Config::new(identity)?, keyring: keyring.clone() })
    }

    /// The crate's settings for the protocol that was agreed on. A secret that was replaced since
    /// leaves the prologue empty, so that the handshake fails.
    fn named(self, name: &str) -> Config {
        let Some(secrets) = self.keyring.secrets() else { return self.config };
        let chosen = secrets
            .accepted()
            .find(|(holder, secret)| secrets::prologue_protocol(*holder, secret) == name);
        match chosen {
            Some((holder, secret)) => {
                self.config.with_prologue(secrets::prologue(holder, secret).to_vec())
            }
            None => self.config,
        }
    }
}

impl UpgradeInfo for Stock {
    type Info = Cow<'static, str>;
    type InfoIter = vec::IntoIter<Self::Info>;

    fn protocol_info(&self) -> Self::InfoIter {
        let names = match self.keyring.secrets() {
            None => vec![NOISE.into()],
            Some(secrets) => secrets::prologue_protocols(&secrets),
        };
        names.into_iter()
    }
}

impl<S> InboundConnectionUpgrade<S> for Stock
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    type Output = (PeerId, Output<S>);
    type Error = Error;
    type Future = BoxFuture<'static, Result<Self::Output, Error>>;

    fn upgrade_inbound(self, socket: S, name: Self::Info) -> Self::Future {
        self.named(&name).upgrade_inbound(socket, NOISE).boxed()
    }
}

impl<S> OutboundConnectionUpgrade<S> for Stock
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    type Output = (PeerId, Output<S>);
    type Error = Error;
    type Future = BoxFuture<'static, Result<Self::Output, Error>>;

    fn upgrade_outbound(self, socket: S, name: Self::Info) -> Self::Future {
        self.named(&name).upgrade_outbound(socket, NOISE).boxed()
    }
}
