//! A gossip content with its digest, which is computed once per content, because the same state is
//! sent to many nodes and every receiver needs its digest.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;

use super::GossipContent;

/// A content with its cached digest. Mutable access clears the digest, also if it changes nothing;
/// a clone keeps it.
#[derive(Clone)]
pub(super) struct Hashed {
    content: GossipContent,
    digest: OnceLock<u64>,
}

impl Hashed {
    /// The digest of the content, computed at the first call after a mutable access.
    pub(super) fn digest(&self) -> u64 {
        *self.digest.get_or_init(|| self.content.digest())
    }
}

impl From<GossipContent> for Hashed {
    /// The digest is not computed yet.
    fn from(content: GossipContent) -> Self {
        Self { content, digest: OnceLock::new() }
    }
}

impl Deref for Hashed {
    type Target = GossipContent;

    fn deref(&self) -> &GossipContent {
        &self.content
    }
}

impl DerefMut for Hashed {
    fn deref_mut(&mut self) -> &mut GossipContent {
        self.digest = OnceLock::new();
        &mut self.content
    }
}

impl PartialEq for Hashed {
    /// Compares the contents. Different cached digests decide without that comparison; equal
    /// digests, or one that is not cached yet, do not.
    fn eq(&self, other: &Self) -> bool {
        let digests = (self.digest.get(), other.digest.get());
        let differ = matches!(digests, (Some(one), Some(two)) if one != two);
        !differ && self.content == other.content
    }
}

impl Eq for Hashed {}

impl fmt::Debug for Hashed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.content.fmt(f)
    }
}
