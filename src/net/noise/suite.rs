//! The ciphers, and the names under which two ends agree on one.

/// A cipher, under the name by which two ends agree on it before the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Suite {
    /// That of every libp2p.
    ChaChaPoly,
    /// Four times as fast where the processor does it, and slower elsewhere.
    AesGcm,
}

impl Suite {
    /// The names of those that are for this machine, the fastest first.
    pub(super) fn names() -> &'static [&'static str] {
        const NAMES: [&str; 2] = [Suite::AesGcm.name(), Suite::ChaChaPoly.name()];
        if has_aes() { &NAMES } else { &NAMES[1..] }
    }

    /// For the negotiation of libp2p.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::ChaChaPoly => "/noise",
            Self::AesGcm => "/ostraca/noise-aesgcm/1",
        }
    }

    /// The one that was agreed upon.
    pub(super) fn named(name: &str) -> Option<Self> {
        [Self::AesGcm, Self::ChaChaPoly].into_iter().find(|suite| suite.name() == name)
    }

    /// For Noise: a part of what both ends have to have in common.
    pub(super) const fn pattern(self) -> &'static str {
        match self {
            Self::ChaChaPoly => "Noise_XX_25519_ChaChaPoly_SHA256",
            Self::AesGcm => "Noise_XX_25519_AESGCM_SHA256",
        }
    }
}

/// Whether this processor has the instructions for AES-GCM that ring asks for.
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
    fn a_processor_that_does_aes_is_known_by_its_flags() {
        let flags = std::fs::read_to_string("/proc/cpuinfo").expect("every Linux has it");
        let has = |flag| flags.split_whitespace().any(|word| word == flag);
        assert_eq!(has_aes(), has("aes") && has("pclmulqdq") && has("ssse3"));
        assert_eq!(Suite::names().contains(&Suite::AesGcm.name()), has_aes());
    }

    #[test]
    fn each_has_a_name_and_the_one_of_libp2p_is_always_there() {
        for suite in [Suite::ChaChaPoly, Suite::AesGcm] {
            assert_eq!(Suite::named(suite.name()), Some(suite));
        }
        assert_eq!(Suite::named(""), None);
        assert_eq!(Suite::names().last(), Some(&Suite::ChaChaPoly.name()));
    }
}
