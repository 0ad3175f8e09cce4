//! Handshake of `libp2p-noise`, for `net.transport = "stock"`.
//!
//! The crate supports no preshared key. With a secret, the prologue is derived from it: strangers
//! fail, but an active attacker learns the peer id and can test guesses of the secret. Every secret
//! has a protocol name of its own, because the listener must choose the prologue before it answers.

use std::borrow::Cow;
use std::io;
use std::vec;

use futures::future::{BoxFuture, FutureExt};
use futures::{AsyncRead, AsyncWrite};
use libp2p::PeerId;
use libp2p::core::upgrade::{InboundConnectionUpgrade, OutboundConnectionUpgrade, UpgradeInfo};
use libp2p::identity::Keypair;
use libp2p::noise::{Config, Error, Output};

use super::noise::NoiseError;
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
    /// this name. Without any secret the prologue is empty.
    ///
    /// Fails with [`NoiseError::Unknown`], as an I/O error, if no present secret has this name,
    /// such as when the secret was replaced during the negotiation. An empty prologue would then
    /// admit strangers, because the name is public.
    fn named(self, name: &str) -> Result<Config, Error> {
        let Some(secrets) = self.keyring.secrets() else { return Ok(self.config) };
        let (holder, secret) = secrets
            .accepted()
            .find(|(holder, secret)| secrets::prologue_protocol(*holder, secret) == name)
            .ok_or_else(|| io::Error::other(NoiseError::Unknown(name.to_owned())))?;
        Ok(self.config.with_prologue(secrets::prologue(holder, secret).to_vec()))
    }
}

impl UpgradeInfo for Stock {
    type Info = Cow<'static, str>;
    type InfoIter = vec::IntoIter<Self::Info>;

    /// `/noise` with a keyring of `None`; otherwise one name for each accepted secret, the one to
    /// dial with first, and never `/noise`. No names, so that every negotiation fails, if the
    /// keyring has secrets without any secret in them.
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

    /// Answers the handshake of the negotiated name, with the secrets at this moment.
    fn upgrade_inbound(self, socket: S, name: Self::Info) -> Self::Future {
        async move { self.named(&name)?.upgrade_inbound(socket, NOISE).await }.boxed()
    }
}

impl<S> OutboundConnectionUpgrade<S> for Stock
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    type Output = (PeerId, Output<S>);
    type Error = Error;
    type Future = BoxFuture<'static, Result<Self::Output, Error>>;

    /// Begins the handshake of the negotiated name, with the secrets at this moment.
    fn upgrade_outbound(self, socket: S, name: Self::Info) -> Self::Future {
        async move { self.named(&name)?.upgrade_outbound(socket, NOISE).await }.boxed()
    }
}

#[cfg(test)]
mod tests {
    use futures::executor::block_on;
    use futures::future::join;
    use tokio_util::compat::TokioAsyncReadCompatExt;

    use super::*;
    use crate::net::config::Secret;
    use crate::net::swarm::find_cause;

    fn secret(byte: u8) -> Secret {
        Secret::new([byte; 32]).expect("32 bytes")
    }

    #[test]
    fn name_of_a_replaced_secret_admits_no_stranger() {
        let keyring = Keyring::new(Some(secret(1).into()));
        let us = Stock::new(&Keypair::generate_ed25519(), &keyring).expect("it signs");
        let name = us.protocol_info().next().expect("one secret");
        keyring.replace(secret(2).into()); // after the peers have agreed on the name
        // A stranger has no secret, so its prologue is empty.
        let stranger = Config::new(&Keypair::generate_ed25519()).expect("it signs");
        for dials in [false, true] {
            let (near, far) = tokio::io::duplex(64 * 1024);
            let (near, far) = (near.compat(), far.compat());
            let (us, stranger, name) = (us.clone(), stranger.clone(), name.clone());
            let (ours, _theirs) = if dials {
                let stranger = stranger.upgrade_inbound(far, NOISE);
                block_on(join(us.upgrade_outbound(near, name), stranger))
            } else {
                let stranger = stranger.upgrade_outbound(far, NOISE);
                block_on(join(us.upgrade_inbound(near, name), stranger))
            };
            let error = ours.expect_err("the stranger knows no secret");
            let Error::Io(error) = error else { panic!("the stranger was not refused by name") };
            let cause = find_cause::<NoiseError>(&error);
            assert!(matches!(cause, Some(NoiseError::Unknown(_))), "{error}");
        }
    }
}
