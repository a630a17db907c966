//! The KV store's folders: one for each fingerprint, with one secret for all of them in the root folder.

use std::fmt::Write;
use std::io;
use std::path::{Path, PathBuf};

use crate::Geometry;
use crate::files::{Files, Lock, SystemFiles};
use crate::record::VERSION;
use souffleur_state::tiers::{BlockKind, Fingerprint, FingerprintParts, Keys, Secret};

const MAX_META_BYTES: u64 = 1 << 20;
const SECRET: &str = "secret";
const SECRET_BYTES: u64 = 32;
const META: &str = "meta";
const LOCK: &str = "lock";

/// An open and locked folder: no other engine uses it.
pub(super) struct Folder {
    pub path: PathBuf,
    root: PathBuf,
    pub fingerprint: Fingerprint,
    pub keys: Keys,
    secret_line: String,
    _lock: Lock,
}

impl Folder {
    /// Opens the folder, or creates it. Removes the content if the file `meta` differs, as it does for a new secret.
    /// `None` if another engine uses the folder.
    ///
    /// # Errors
    /// A sentence that contains the operating system's error.
    pub fn open(
        files: &dyn Files,
        root: &Path,
        parts: FingerprintParts,
        geometry: &Geometry,
    ) -> Result<Option<Self>, String> {
        let parts = with_format(parts, geometry);
        let fingerprint = parts.fingerprint();
        let path = root.join(fingerprint.folder());
        let failed = |error: io::Error| {
            let shown = path.display();
            format!("failed to open the KV store {shown}: {error}")
        };
        files.make_folder(&path).map_err(failed)?;
        let Some(lock) = files.lock(&path.join(LOCK)).map_err(failed)? else {
            return Ok(None);
        };
        let secret = secret(files, root).map_err(failed)?;
        let secret_line = secret_line(&secret);
        let meta = meta(&fingerprint, &secret_line, &parts);
        let found = files.read(&path.join(META), MAX_META_BYTES);
        if found.ok().as_deref() != Some(meta.as_bytes()) {
            wipe(files, &path).map_err(failed)?;
            files
                .replace(&path.join(META), meta.as_bytes())
                .map_err(failed)?;
        }
        Ok(Some(Self {
            path,
            root: root.to_owned(),
            fingerprint,
            keys: Keys::new(secret, fingerprint, geometry.block_tokens),
            secret_line,
            _lock: lock,
        }))
    }

    pub fn log(&self) -> PathBuf {
        self.path.join("index.log")
    }

    /// The folders of other fingerprints, in the order of eviction: unusable ones (another secret) first, then by age.
    pub fn other_folders(&self, files: &dyn Files) -> Vec<OtherFolder> {
        let names = files.list(&self.root).unwrap_or_default();
        let is_fingerprint = |name: &String| {
            let is_hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
            name.len() == 16 && name.bytes().all(is_hex) && *name != self.fingerprint.folder()
        };
        let others = names.into_iter().filter(is_fingerprint).filter_map(|name| {
            let path = self.root.join(name);
            let (bytes, written) = files.usage(&path).ok()?;
            let meta = files.read(&path.join(META), MAX_META_BYTES);
            let meta = meta.unwrap_or_default();
            let is_usable = String::from_utf8_lossy(&meta).contains(&self.secret_line);
            Some(OtherFolder {
                path,
                bytes,
                written,
                is_usable,
            })
        });
        let mut others: Vec<OtherFolder> = others.collect();
        others.sort_by(|a, b| {
            (a.is_usable, a.written, &a.path).cmp(&(b.is_usable, b.written, &b.path))
        });
        others
    }
}

pub(super) struct OtherFolder {
    pub path: PathBuf,
    pub bytes: u64,
    written: u64,
    /// False if the folder was written with another secret.
    pub is_usable: bool,
}

impl OtherFolder {
    /// Removes the folder, unless an engine uses it.
    pub fn remove(&self, files: &dyn Files) -> bool {
        match files.lock(&self.path.join(LOCK)) {
            Ok(Some(_lock)) => files.remove_folder(&self.path).is_ok(),
            Ok(None) | Err(_) => false,
        }
    }
}

/// Adds the store's parts to a fingerprint: its format, and the planes of each kind of block.
fn with_format(parts: FingerprintParts, geometry: &Geometry) -> FingerprintParts {
    let Geometry {
        block_tokens,
        needs,
        ..
    } = geometry;
    let mut parts = parts
        .part("store version", VERSION)
        .part("block tokens", block_tokens)
        .part("window tokens", needs.window_tokens)
        .part("states", needs.state);
    for kind in BlockKind::ALL {
        let mut planes = String::new();
        for plane in geometry.planes(kind).iter() {
            let _ = write!(planes, "{}.{}:{} ", plane.layer, plane.buffer, plane.bytes);
        }
        parts = parts.part(format!("{} planes", kind.name()), planes.trim_end());
    }
    parts
}

/// The secret of the store in a folder. Both are made if they are missing.
///
/// # Errors
/// Those of the operating system.
pub fn secret_of(root: &Path) -> io::Result<Secret> {
    SystemFiles.make_folder(root)?;
    secret(&SystemFiles, root)
}

/// A secret for an engine without a store.
///
/// # Errors
/// There are no random bytes.
pub fn random_secret() -> io::Result<Secret> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(Secret::new(bytes))
}

fn secret(files: &dyn Files, root: &Path) -> io::Result<Secret> {
    let path = root.join(SECRET);
    let read = || -> io::Result<[u8; 32]> {
        let bytes = files.read(&path, SECRET_BYTES)?;
        <[u8; 32]>::try_from(bytes).map_err(|bytes: Vec<u8>| {
            io::Error::other(format!(
                "it has {} bytes, must have {SECRET_BYTES}",
                bytes.len()
            ))
        })
    };
    if let Ok(bytes) = read() {
        return Ok(Secret::new(bytes));
    }
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    let found = files.read(&path, SECRET_BYTES).map(drop);
    match found.map_err(|error| error.kind()) {
        Err(io::ErrorKind::NotFound) => files.create(&path, &bytes)?,
        // The file exists, but has no valid secret.
        Ok(()) | Err(io::ErrorKind::FileTooLarge) => files.replace(&path, &bytes)?,
        Err(kind) => return Err(kind.into()),
    }
    // Reads the file again: another engine may have created it first.
    let failed = |error: io::Error| {
        let shown = path.display();
        io::Error::other(format!(
            "failed to read back the new hash secret from {shown}: {error}; check the disk"
        ))
    };
    Ok(Secret::new(read().map_err(failed)?))
}

fn secret_line(secret: &Secret) -> String {
    format!("secret check: {}\n", hex(&secret.check()))
}

/// The text of `meta`, which describes the folder to a human, and identifies it to the store.
fn meta(fingerprint: &Fingerprint, secret_line: &str, parts: &FingerprintParts) -> String {
    let mut text = format!("fingerprint: {}\n{secret_line}", hex(&fingerprint.0));
    for (name, value) in parts.parts() {
        let _ = writeln!(text, "{name}: {value:?}");
    }
    text
}

/// Removes all files of a folder except its lock.
pub(super) fn wipe(files: &dyn Files, folder: &Path) -> io::Result<()> {
    for name in files.list(folder)? {
        if name != LOCK {
            files.remove_file(&folder.join(name))?;
        }
    }
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
