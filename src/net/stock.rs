//! Handshake of `libp2p-noise`, for `net.transport = "stock"`.
//!
//! The crate supports no preshared key. With a secret, the prologue is derived from it: strangers
//! fail, but an active attacker learns the peer id and can test guesses of the secret. Every secret
//! has a protocol name of its own, because the listener must choose the prologue before it answers.

use std::borrow::Cow;
use std::vec;

use futures::future::{BoxFuture, FutureExt};
use futures::{AsyncRead, AsyncWrite};
use libp2p::PeerId;
use libp2p::core::upgrade::{InboundConnectionUpgrade, OutboundConnectionUpgrade, UpgradeInfo};
use libp2p::identity::Keypair;
use libp2p::noise::{Config, Error, Output};

use super::secrets::{self, Keyring};

/// Protocol name of Noise in libp2p.
const NOISE: &str = "/noise";

/// Upgrade with `libp2p-noise`, and the secrets for its prologue.
#[derive(Clone)]
pub(super) struct Stock {
    config: Config,
    keyring: Keyring,
}

impl Stock {
    /// Creates an upgrade with the identity of this node.
    ///
    /// # Errors
    /// [`Error`] if the identity cannot sign.
    pub(super) fn new(identity: &Keypair, keyring: &Keyring) -> Result<Self, Error> {
        Ok(Self { config: Config::new(identity)?, keyring: keyring.clone() })
    }

    /// The crate's settings for the negotiated protocol, with the prologue of the secret that has
    /// this name. If that secret was replaced meanwhile, the prologue stays empty, so that the
    /// handshake fails. Without any secret the prologue is empty as well.
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

    /// `/noise` without a secret; otherwise one name for each accepted secret, the one to dial with
    /// first, and never `/noise`.
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
