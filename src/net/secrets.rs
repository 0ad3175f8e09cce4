//! Secrets of the cluster and of its clients, and their replacement while the node runs.
//!
//! Each file holds one secret per line. A node dials with the first one and accepts all of them. A
//! secret is therefore replaced in three steps
//! (docs/protocol/transport.md#secrets-are-replaced-in-three-steps), each of which must be finished
//! on all nodes before the next one begins: add the new secret, move it to the first line, remove
//! the old one.

use std::borrow::Cow;
use std::error::Error;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, fs, io};

use parking_lot::RwLock;
use sha2::{Digest, Sha256};
use tokio::sync::mpsc::WeakUnboundedSender;
use zeroize::Zeroizing;

use super::config::{Secret, SecretError, secret_file};

/// Maximum number of secrets in one file.
pub const SECRETS_MAX: usize = 4;

/// Maximum length of a file of secrets, in bytes.
const FILE_BYTES_MAX: u64 = 16 * 1024;

/// How often a running node reads its files of secrets. A change is adopted once two consecutive
/// reads agree on it, so that a half-written file is not taken.
pub(super) const READ_EVERY: Duration = Duration::from_secs(2);

/// Holder of a secret, which decides what the secret admits to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretHolder {
    /// A node: may join and open lanes, the streams of messages between nodes.
    Node,
    /// A client, which is a tool: may call nodes, but neither open lanes nor join.
    Client,
}

/// Secrets that this process dials with and accepts. `From<Secret>` creates one with a single
/// secret of the cluster. Equality also compares the order of the secrets and the paths of the
/// files.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secrets {
    cluster: Vec<Secret>, // ≤ SECRETS_MAX; the first is used to dial
    client: Vec<Secret>,  // ≤ SECRETS_MAX; the first is used to dial
    files: Files,
}

impl From<Secret> for Secrets {
    fn from(secret: Secret) -> Self {
        Self { cluster: vec![secret], ..Self::default() }
    }
}

/// Shows neither the secrets nor their number nor their files.
impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secrets(..)")
    }
}

impl Secrets {
    /// Creates secrets by holder, which belong to no file. Of each holder those beyond
    /// [`SECRETS_MAX`] are ignored. Repetitions, and secrets that both holders have, are kept.
    #[must_use]
    pub fn new(mut cluster: Vec<Secret>, mut client: Vec<Secret>) -> Self {
        cluster.truncate(SECRETS_MAX);
        client.truncate(SECRETS_MAX);
        Self { cluster, client, files: Files::default() }
    }

    /// Secrets that a client uses: the clients' secrets if there are any, without the cluster's;
    /// otherwise all as they are. A client calls once and does not [`follow`] its files.
    #[must_use]
    pub(super) fn of_client(self) -> Self {
        if self.client.is_empty() { self } else { Self { cluster: Vec::new(), ..self } }
    }

    /// Replaces the secrets of each holder that has a file by those in the file. Secrets of a
    /// holder without a file stay as they are. `files` replaces the files known before.
    ///
    /// Fails, in this order, if the cluster's file is unusable, the clients' file is unusable,
    /// nodes and clients share a secret (checked only if at least one holder has a file), or the
    /// cluster's file holds more than one secret although the network is private.
    pub(super) fn read(self, files: Files) -> Result<Self, SecretError> {
        let Files { cluster, client, .. } = &files;
        let cluster = cluster.as_deref().map_or(Ok(self.cluster), |path| read(path, "cluster"))?;
        let client = client.as_deref().map_or(Ok(self.client), |path| read(path, "client"))?;
        // Both holders are compared even if only one has a file here: secrets that came through a
        // pipe are not read again, but the other holder's file may change.
        let named = files.client.as_ref().or(files.cluster.as_ref());
        if let Some(path) = named.filter(|_| has_common_secret(&cluster, &client)) {
            return Err(SecretError::SameForClients { path: path.clone() });
        }
        if let Some(path) = files.cluster.as_ref().filter(|_| files.private && cluster.len() > 1) {
            return Err(SecretError::SeveralInPrivateNetwork { path: path.clone() });
        }
        Ok(Self { cluster, client, files })
    }

    /// Secrets of the nodes; the first is used to dial.
    #[must_use]
    pub fn cluster(&self) -> &[Secret] {
        &self.cluster
    }

    /// Secrets of the clients; the first is used to dial.
    #[must_use]
    pub fn client(&self) -> &[Secret] {
        &self.client
    }

    /// The secret to dial with, and its holder; `None` if there are no secrets. It is a client's
    /// only in a client ([`of_client`](Self::of_client)), since a node has secrets of the cluster
    /// whenever it has any.
    pub(super) fn dialling(&self) -> Option<(SecretHolder, &Secret)> {
        self.accepted().next()
    }

    /// All secrets with which a peer may dial, those of the nodes first.
    pub(super) fn accepted(&self) -> impl Iterator<Item = (SecretHolder, &Secret)> {
        let cluster = self.cluster.iter().map(|secret| (SecretHolder::Node, secret));
        cluster.chain(self.client.iter().map(|secret| (SecretHolder::Client, secret)))
    }

    /// Ids of the cluster's secrets, in order, for the log.
    #[must_use]
    pub fn ids(&self) -> Vec<String> {
        self.cluster.iter().map(|secret| id(SecretHolder::Node, secret)).collect()
    }
}

/// Whether any secret belongs to both holders.
fn has_common_secret(cluster: &[Secret], client: &[Secret]) -> bool {
    client.iter().any(|secret| cluster.contains(secret))
}

/// Files from which the secrets were read; `None` for a holder whose secrets come from no file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Files {
    pub(super) cluster: Option<PathBuf>,
    pub(super) client: Option<PathBuf>,
    pub(super) private: bool, // `net.private-network`, which has room for one secret
}

impl Files {
    /// Files that can be read again: regular ones, also behind a symbolic link. Pipes cannot, and
    /// files that are missing at this moment are left out as well. `private` stays.
    fn regular(self) -> Self {
        let regular = |path: &PathBuf| fs::metadata(path).is_ok_and(|file| file.is_file());
        Self { cluster: self.cluster.filter(regular), client: self.client.filter(regular), ..self }
    }
}

/// Reads the secrets of a file, one per line, in order. Empty lines, space around a secret and
/// repetitions of a secret are ignored.
///
/// Fails, in this order, if the file cannot be opened, another user could have written it
/// ([`secret_file::open`]), it cannot be read or is longer than [`FILE_BYTES_MAX`] (`Unreadable`),
/// a line is too short (`Short`) or holds a secret beyond [`SECRETS_MAX`] different ones
/// (`TooMany`), the first such line first, or it holds no secret (`Short` with 0 bytes).
fn read(path: &Path, holder: &'static str) -> Result<Vec<Secret>, SecretError> {
    let unreadable = |source| SecretError::Unreadable { holder, path: path.to_owned(), source };
    let too_short = |source| SecretError::Short { holder, path: path.to_owned(), source };
    // `take` below keeps the buffer from growing: a reallocation would leave a copy that is not
    // wiped.
    let mut bytes = Zeroizing::new(Vec::with_capacity(FILE_BYTES_MAX as usize + 1));
    let file = secret_file::open(path, holder)?;
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(unreadable(io::Error::other(format!("more than {FILE_BYTES_MAX} bytes"))));
    }
    let lines = bytes.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let mut secrets = Vec::new();
    for line in lines.filter(|line| !line.is_empty()) {
        let secret = Secret::new(line).map_err(too_short)?; // its only error
        if secrets.contains(&secret) {
            continue;
        }
        if secrets.len() == SECRETS_MAX {
            return Err(SecretError::TooMany { holder, path: path.to_owned() });
        }
        secrets.push(secret);
    }
    if secrets.is_empty() {
        return Err(too_short(Secret::new([]).expect_err("a secret of 0 bytes is refused")));
    }
    Ok(secrets)
}

/// Derives a key for one purpose, so that a key discloses nothing about those of other purposes:
/// SHA-256 of `ostraca/1/`, the purpose, a zero byte and the secret. `purpose` must not contain a
/// zero byte, which is not checked.
pub(super) fn derived(secret: &Secret, purpose: &str) -> Zeroizing<[u8; 32]> {
    let mut hash = Sha256::new();
    hash.update(b"ostraca/1/");
    hash.update(purpose.as_bytes());
    hash.update([0]);
    hash.update(secret.as_bytes());
    Zeroizing::new(hash.finalize().into())
}

/// Preshared key of Ostraca's own Noise handshake. A listener tries the keys of all accepted
/// secrets, so the dialler names none. One secret has different keys for the two holders
/// (docs/protocol/transport.md#the-secret-comes-before-diffie-hellman).
pub(super) fn preshared(holder: SecretHolder, secret: &Secret) -> Zeroizing<[u8; 32]> {
    let purpose = match holder {
        SecretHolder::Node => "noise-psk",
        SecretHolder::Client => "noise-psk/client",
    };
    derived(secret, purpose)
}

/// Prologue of handshakes with libp2p's own Noise, which knows no preshared key. They occur with
/// `net.transport` `mixed` and `stock`. One secret has different prologues for the two holders.
pub(super) fn prologue(holder: SecretHolder, secret: &Secret) -> Zeroizing<[u8; 32]> {
    let purpose = match holder {
        SecretHolder::Node => "noise-prologue",
        SecretHolder::Client => "noise-prologue/client",
    };
    derived(secret, purpose)
}

/// Public id of a secret: eight hexadecimal digits of a hash, which differs by holder. A secret is
/// random and has at least 32 bytes, so the id discloses nothing of use. If the ids of two accepted
/// secrets are equal, handshakes by prologue work with the first one only.
fn id(holder: SecretHolder, secret: &Secret) -> String {
    let purpose = match holder {
        SecretHolder::Node => "secret-id",
        SecretHolder::Client => "secret-id/client",
    };
    derived(secret, purpose)[..4].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Protocol name of the handshake with this secret's prologue. A listener must know the prologue
/// before it answers, so the name contains the secret's id.
pub(super) fn prologue_protocol(holder: SecretHolder, secret: &Secret) -> String {
    format!("/ostraca/noise-prologue/1/{}", id(holder, secret))
}

/// Protocol names of the prologue handshakes of all secrets, those of the nodes first.
pub(super) fn prologue_protocols(secrets: &Secrets) -> Vec<Cow<'static, str>> {
    secrets.accepted().map(|(holder, secret)| prologue_protocol(holder, secret).into()).collect()
}

/// Current secrets of a running process, shared by all its users. Clones share them. `None`, the
/// default, admits strangers. The lock is held only while the value is read or replaced.
#[derive(Clone, Debug, Default)]
pub struct Keyring(Arc<RwLock<Option<Arc<Secrets>>>>);

impl Keyring {
    /// Creates a keyring with these secrets. `None` admits strangers; `Secrets` without any secret
    /// in them admit nobody.
    #[must_use]
    pub fn new(secrets: Option<Secrets>) -> Self {
        Self(Arc::new(RwLock::new(secrets.map(Arc::new))))
    }

    /// Returns the current secrets, if any.
    #[must_use]
    pub fn secrets(&self) -> Option<Arc<Secrets>> {
        self.0.read().clone()
    }

    /// [`Secrets::ids`] of the current secrets; empty without secrets of the cluster.
    #[must_use]
    pub fn ids(&self) -> Vec<String> {
        self.secrets().map(|secrets| secrets.ids()).unwrap_or_default()
    }

    /// Replaces the secrets, also a keyring of `None`, for handshakes that begin from now on.
    /// Connections stay open.
    pub fn replace(&self, secrets: Secrets) {
        *self.0.write() = Some(Arc::new(secrets));
    }
}

/// Reads the files again at this interval, on a thread for blocking calls, and sends changed
/// secrets as a command. The first read follows after one interval. Replaces no [`Keyring`]: the
/// receiver of the command does.
///
/// Ends if the last sender of commands was dropped, which it checks after each read, or the runtime
/// shuts down; immediately if no file can be read again. Which files can is decided only at the
/// start: one that disappears later is tried, and logged as unusable, until it is back.
pub(super) async fn follow<T>(
    secrets: Secrets,
    every: Duration,
    commands: WeakUnboundedSender<T>,
    command: impl Fn(Secrets) -> T,
) {
    let files = secrets.files.clone().regular();
    if files.cluster.is_none() && files.client.is_none() {
        return;
    }
    let mut follower = FileFollower { current: secrets, files, seen: None, complaint: None };
    loop {
        tokio::time::sleep(every).await;
        let Some(adopted) = follower.check_blocking(FileFollower::check).await else { return };
        let Some(commands) = commands.upgrade() else { return };
        if adopted {
            let _ = commands.send(command(follower.current.clone())); // an error: the node stops
        }
    }
}

/// State of [`follow`] between two reads of the files.
#[derive(Clone)]
struct FileFollower {
    current: Secrets,
    files: Files,              // those of `current` that can be read again
    seen: Option<Secrets>,     // read once, different from `current`
    complaint: Option<String>, // error or panic of the last read, which was logged
}

impl FileFollower {
    /// Runs a check on a thread for blocking calls, with a copy of the state that replaces this one
    /// afterwards. Returns whether new secrets were adopted; `None` if the runtime shuts down. A
    /// check that panics changes nothing but `complaint`, counts as `false` and is logged; the next
    /// one may succeed.
    async fn check_blocking(
        &mut self,
        check: impl FnOnce(Self) -> (Self, bool) + Send + 'static,
    ) -> Option<bool> {
        let checked = self.clone();
        match tokio::task::spawn_blocking(move || check(checked)).await {
            Ok((next, adopted)) => {
                *self = next;
                Some(adopted)
            }
            Err(error) if error.is_panic() => {
                let complaint = "reading the files of secrets panicked, which is a bug of Ostraca";
                self.complain(complaint.to_owned(), None);
                Some(false)
            }
            Err(_) => None,
        }
    }

    /// Reads the files once. Returns whether new secrets were adopted, which are then `current`.
    ///
    /// A change, also of the order alone, is adopted once two consecutive reads agree on it; a read
    /// that finds the current secrets, or other ones, begins anew. An error keeps the secrets in
    /// use, is logged unless the read before failed with the same text, and makes the next read
    /// count as the first one again. Success after an error is not logged.
    fn check(mut self) -> (Self, bool) {
        let read = self.current.clone().read(self.files.clone());
        // `==` below also compares `files`, and must find changed secrets only.
        let read = read.map(|read| Secrets { files: self.current.files.clone(), ..read });
        let read = match read {
            Ok(read) => read,
            Err(error) => {
                self.complain(error.to_string(), error.source());
                return (Self { seen: None, ..self }, false);
            }
        };
        self.complaint = None;
        if read == self.current || self.seen.as_ref() != Some(&read) {
            let seen = (read != self.current).then_some(read);
            return (Self { seen, ..self }, false);
        }
        tracing::info!(
            dials_with = read.ids().first(),
            accepts = read.cluster.len(),
            accepts_of_clients = read.client.len(),
            "net.secrets_changed: the files of secrets have changed and are in use"
        );
        (Self { current: read, seen: None, ..self }, true)
    }

    /// Logs a warning and keeps its text in `complaint`. Does nothing if the text is there already.
    fn complain(&mut self, complaint: String, cause: Option<&(dyn Error + 'static)>) {
        if self.complaint.as_ref() != Some(&complaint) {
            let cause = cause.map(tracing::field::display);
            tracing::warn!(
                cause,
                "net.secrets_unusable: {complaint}; the secrets in use stay as they were"
            );
            self.complaint = Some(complaint);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use tempfile::NamedTempFile;
    use tokio::sync::mpsc;

    use super::*;
    use crate::net::config::NetConfig;

    fn line(byte: u8) -> String {
        char::from(b'a' + byte).to_string().repeat(40)
    }

    fn secret(byte: u8) -> Secret {
        Secret::new(line(byte)).expect("long enough")
    }

    fn file(text: &str) -> NamedTempFile {
        let mut file = NamedTempFile::new().expect("a directory for temporary files");
        file.write_all(text.as_bytes()).expect("room");
        file
    }

    fn with(cluster: &NamedTempFile, client: Option<&NamedTempFile>) -> NetConfig {
        NetConfig {
            secret_file: Some(cluster.path().to_owned()),
            client_secret_file: client.map(|file| file.path().to_owned()),
            ..NetConfig::default()
        }
    }

    #[test]
    fn file_holds_one_secret_a_line_and_the_first_dials() {
        let cluster = file(&format!("  {}\r\n\n{}\n{}", line(1), line(2), line(1)));
        let client = file(&line(3));
        let mut config = with(&cluster, Some(&client));
        config.read_secret().expect("two secrets, one of them twice");
        config.read_secret().expect("nothing more to read");
        let secrets = config.secret.expect("it was read");
        assert_eq!(secrets.cluster(), [secret(1), secret(2)]);
        assert_eq!(secrets.client(), [secret(3)]);
        assert_eq!(secrets.dialling(), Some((SecretHolder::Node, &secret(1))));
        let tool = secrets.clone().of_client();
        assert_eq!(tool.dialling(), Some((SecretHolder::Client, &secret(3))));
        assert_eq!(secrets.ids().len(), 2);
        assert!(secrets.ids().iter().all(|id| id.len() == 8 && !line(1).contains(id)));
    }

    #[test]
    fn unusable_files_of_secrets_are_refused() {
        let one = file(&line(0));
        let five: String = (0..5).map(|byte| line(byte) + "\n").collect();
        let short = format!("{}\nshort", line(0));
        for (text, why) in [("", "0 bytes"), (" \n", "0 bytes"), (&short, "5 bytes")] {
            let error = with(&file(text), None).read_secret().expect_err(why);
            let cause = std::error::Error::source(&error).expect("a short secret").to_string();
            assert!(cause.contains(why), "{cause}");
        }
        let error = with(&one, Some(&file("short"))).read_secret().expect_err("5 bytes");
        assert!(matches!(error, SecretError::Short { holder: "client", .. }));
        let cause = std::error::Error::source(&error).expect("a short secret").to_string();
        assert!(!cause.contains("cluster"), "it is the clients' secret: {cause}");
        let error = with(&file(&five), None).read_secret().expect_err("five");
        assert!(matches!(error, SecretError::TooMany { holder: "cluster", .. }));
        let error = with(&one, Some(&file(&five))).read_secret().expect_err("five");
        assert!(matches!(error, SecretError::TooMany { holder: "client", .. }));
        let error = with(&one, Some(&one)).read_secret().expect_err("the same");
        assert!(matches!(error, SecretError::SameForClients { .. }));
        let piped = Secrets::new(Vec::new(), read(one.path(), "client").expect("a secret"));
        let files = Files { cluster: Some(one.path().to_owned()), ..Files::default() };
        let error = piped.read(files).expect_err("the clients' secret came through a pipe");
        assert!(matches!(error, SecretError::SameForClients { path } if path == one.path()));
        let two = file(&format!("{}\n{}", line(0), line(1)));
        let mut private = NetConfig { private_network: true, ..with(&two, None) };
        let error = private.read_secret().expect_err("two");
        assert!(matches!(error, SecretError::SeveralInPrivateNetwork { .. }));
        let long = file(&(line(0) + "\n").repeat(500));
        let error = with(&long, None).read_secret().expect_err("20 kB");
        assert!(matches!(error, SecretError::Unreadable { .. }));
        let mut twice = NetConfig { secret: Some(secret(0).into()), ..with(&one, None) };
        assert!(matches!(twice.read_secret(), Err(SecretError::Twice { .. })));
    }

    #[test]
    fn each_use_of_a_secret_has_a_key_of_its_own() {
        let secret = secret(7);
        let holders = [SecretHolder::Node, SecretHolder::Client];
        let mut keys: Vec<[u8; 32]> = holders
            .iter()
            .flat_map(|holder| [*preshared(*holder, &secret), *prologue(*holder, &secret)])
            .collect();
        keys.push(*derived(&secret, "private-network"));
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), 5);
        assert_ne!(id(SecretHolder::Node, &secret), id(SecretHolder::Client, &secret));
    }

    /// Number of reads of the file until one is adopted; `None` if none of five is.
    fn adopted(mut follower: FileFollower) -> (FileFollower, Option<usize>) {
        for nth in 1..=5 {
            let (next, adopted) = follower.check();
            follower = next;
            if adopted {
                return (follower, Some(nth));
            }
        }
        (follower, None)
    }

    #[test]
    fn change_is_adopted_once_two_reads_agree() {
        let cluster = file(&line(1));
        let mut config = with(&cluster, None);
        config.read_secret().expect("one secret");
        let current = config.secret.expect("it was read");
        let files = current.files.clone();
        let follower = FileFollower { current, files, seen: None, complaint: None };
        let (follower, nth) = adopted(follower);
        assert_eq!(nth, None, "nothing has changed");
        let write = |text: &str| fs::write(cluster.path(), text).expect("room");
        write("half");
        let (follower, nth) = adopted(follower);
        assert_eq!(nth, None);
        assert_eq!(follower.current.cluster(), [secret(1)], "the secrets in use stay");
        write(&line(2));
        let (follower, is_adopted) = follower.check();
        assert!(!is_adopted, "it may be half of what is being written");
        write(&format!("{}\n{}", line(2), line(1)));
        let (follower, nth) = adopted(follower);
        assert_eq!(nth, Some(2));
        assert_eq!(follower.current.cluster(), [secret(2), secret(1)]);
    }

    #[tokio::test]
    async fn panic_of_a_check_does_not_end_the_following() {
        let (cluster, files) = (file(&line(1)), Files::default());
        let current = Secrets::from(secret(0));
        let mut follower = FileFollower { current, files, seen: None, complaint: None };
        let checked = follower.check_blocking(|_| panic!("a fault in the check")).await;
        assert_eq!(checked, Some(false));
        assert_eq!(follower.current.cluster(), [secret(0)], "the secrets in use stay");
        assert!(follower.complaint.is_some(), "it was logged");
        follower.files.cluster = Some(cluster.path().to_owned());
        for adopted in [false, true] {
            assert_eq!(follower.check_blocking(FileFollower::check).await, Some(adopted));
        }
        assert_eq!(follower.current.cluster(), [secret(1)]);
    }

    #[tokio::test]
    async fn running_node_follows_its_file_until_it_stops() {
        let cluster = file(&line(1));
        let mut config = with(&cluster, None);
        config.read_secret().expect("one secret");
        let every = Duration::from_millis(5);
        let (commands, mut taken) = mpsc::unbounded_channel();
        let secrets = config.secret.expect("it was read");
        let following =
            tokio::spawn(follow(secrets, every, commands.downgrade(), |secrets| secrets));
        fs::write(cluster.path(), line(2)).expect("room");
        let secrets = taken.recv().await.expect("it follows");
        assert_eq!(secrets.cluster(), [secret(2)]);
        drop(commands);
        following.await.expect("it ends");
    }
}
