//! Cipher suites, and the protocol names under which two ends negotiate one.

/// A cipher suite of Noise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Suite {
    /// ChaCha20-Poly1305, which every libp2p supports.
    ChaChaPoly,
    /// AES-256-GCM: four times as fast if the processor has instructions for it, and slower
    /// otherwise.
    AesGcm,
}

impl Suite {
    /// Suites that this machine offers, the fastest first. The last one is always
    /// ChaCha20-Poly1305.
    pub(super) fn offered() -> &'static [Self] {
        const ALL: [Suite; 2] = [Suite::AesGcm, Suite::ChaChaPoly];
        if has_aes() { &ALL } else { &ALL[1..] }
    }

    /// Protocol name in the negotiation of libp2p. With a secret of the cluster or of clients, the
    /// handshake uses a preshared key that is derived from it, and has a name of its own.
    /// `has_secret` is also `true` with [`Secrets`](crate::net::secrets::Secrets) without any
    /// secret in them.
    pub(super) const fn name(self, has_secret: bool) -> &'static str {
        match (self, has_secret) {
            (Self::ChaChaPoly, false) => "/noise",
            (Self::AesGcm, false) => "/ostraca/noise-aesgcm/1",
            (Self::ChaChaPoly, true) => "/ostraca/noise-psk/1",
            (Self::AesGcm, true) => "/ostraca/noise-psk-aesgcm/1",
        }
    }

    /// The suite with this negotiated name, also one that this machine does not offer: only names
    /// of [`offered`](Self::offered) ones can have been negotiated. `None` for all other names,
    /// such as that of a suite with a secret if `has_secret` is `false`.
    pub(super) fn named(name: &str, has_secret: bool) -> Option<Self> {
        [Self::AesGcm, Self::ChaChaPoly].into_iter().find(|suite| suite.name(has_secret) == name)
    }

    /// Noise protocol name, whose pattern has a preshared key (psk0) if there is a secret.
    pub(super) const fn pattern(self, has_secret: bool) -> &'static str {
        match (self, has_secret) {
            (Self::ChaChaPoly, false) => "Noise_XX_25519_ChaChaPoly_SHA256",
            (Self::ChaChaPoly, true) => "Noise_XXpsk0_25519_ChaChaPoly_SHA256",
            (Self::AesGcm, false) => "Noise_XX_25519_AESGCM_SHA256",
            (Self::AesGcm, true) => "Noise_XXpsk0_25519_AESGCM_SHA256",
        }
    }
}

/// Whether this processor has the instructions for ring's fast AES-GCM, without which ring uses a
/// slow one. `false` on architectures other than x86 and 64-bit ARM.
fn has_aes() -> bool {
    #[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
    return std::is_x86_feature_detected!("aes")
        && std::is_x86_feature_detected!("pclmulqdq")
        && std::is_x86_feature_detected!("ssse3");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes")
        && std::arch::is_aarch64_feature_detected!("pmull");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "x86", target_arch = "aarch64")))]
    return false;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    #[test]
    fn aes_support_matches_processor_flags() {
        let flags = std::fs::read_to_string("/proc/cpuinfo").expect("every Linux has it");
        let has = |flag| flags.split_whitespace().any(|word| word == flag);
        assert_eq!(has_aes(), has("aes") && has("pclmulqdq") && has("ssse3"));
        assert_eq!(Suite::offered().contains(&Suite::AesGcm), has_aes());
    }

    #[test]
    fn name_identifies_suite_and_use_of_a_secret() {
        for has_secret in [false, true] {
            for suite in [Suite::ChaChaPoly, Suite::AesGcm] {
                assert_eq!(Suite::named(suite.name(has_secret), has_secret), Some(suite));
                assert_eq!(Suite::named(suite.name(has_secret), !has_secret), None);
            }
            assert_eq!(Suite::named("", has_secret), None);
        }
        assert_eq!(Suite::offered().last(), Some(&Suite::ChaChaPoly));
    }
}
