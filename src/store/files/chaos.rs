//! A file system around another one, which injects the faults of `--chaos`.

use std::io;
use std::ops::Range;
use std::path::Path;

use souffleur_chaos::{Actor, Chaos};

use super::{Advice, DataFile, Files, Lock};

pub(crate) struct ChaosFiles {
    inner: Box<dyn Files>,
    faults: Faults,
}

#[derive(Clone)]
struct Faults(Chaos);

impl Faults {
    fn before_read(&self, call: &'static str) -> io::Result<()> {
        self.0.before_read(Actor::KvStore, call)
    }

    fn before_write<'a>(&self, call: &'static str, bytes: &'a [u8]) -> io::Result<&'a [u8]> {
        self.0.before_write(Actor::KvStore, call, bytes)
    }

    fn before_change(&self, call: &'static str) -> io::Result<()> {
        self.0.before_change(Actor::KvStore, call)
    }
}

impl ChaosFiles {
    pub fn new(inner: Box<dyn Files>, chaos: Chaos) -> Self {
        Self {
            inner,
            faults: Faults(chaos),
        }
    }
}

impl Files for ChaosFiles {
    fn make_folder(&self, path: &Path) -> io::Result<()> {
        self.faults.before_change("make_folder")?;
        self.inner.make_folder(path)
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DataFile>> {
        self.faults.before_read("open")?;
        Ok(Box::new(ChaosFile {
            inner: self.inner.open(path)?,
            faults: self.faults.clone(),
        }))
    }

    fn read(&self, path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
        self.faults.before_read("read")?;
        self.inner.read(path, max_bytes)
    }

    fn replace(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let bytes = self.faults.before_write("replace", bytes)?;
        self.inner.replace(path, bytes)
    }

    fn create(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let bytes = self.faults.before_write("create", bytes)?;
        self.inner.create(path, bytes)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        self.faults.before_read("list")?;
        self.inner.list(path)
    }

    fn usage(&self, path: &Path) -> io::Result<(u64, u64)> {
        self.faults.before_read("usage")?;
        self.inner.usage(path)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.faults.before_change("remove_file")?;
        self.inner.remove_file(path)
    }

    fn remove_folder(&self, path: &Path) -> io::Result<()> {
        self.faults.before_change("remove_folder")?;
        self.inner.remove_folder(path)
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Lock>> {
        self.faults.before_read("lock")?;
        self.inner.lock(path)
    }
}

struct ChaosFile {
    inner: Box<dyn DataFile>,
    faults: Faults,
}

impl DataFile for ChaosFile {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.faults.before_read("read_at")?;
        self.inner.read_at(bytes, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let bytes = self.faults.before_write("write_at", bytes)?;
        self.inner.write_at(bytes, offset)
    }

    fn write_past_cache(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let bytes = self.faults.before_write("write_at", bytes)?;
        self.inner.write_past_cache(bytes, offset)
    }

    fn len(&self) -> io::Result<u64> {
        self.faults.before_read("len")?;
        self.inner.len()
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.faults.before_change("set_len")?;
        self.inner.set_len(bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.faults.before_change("sync")?;
        self.inner.sync()
    }

    fn punch(&self, range: Range<u64>) -> io::Result<()> {
        self.faults.before_change("punch")?;
        self.inner.punch(range)
    }

    fn advise(&self, range: Range<u64>, advice: Advice) {
        self.inner.advise(range, advice);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::MemoryFiles;

    fn faulty(spec: &str) -> (ChaosFiles, MemoryFiles) {
        let memory = MemoryFiles::new();
        let spec = spec.parse().expect("a valid spec");
        let chaos = Chaos::new(&[spec]);
        (ChaosFiles::new(Box::new(memory.clone()), chaos), memory)
    }

    fn content(memory: &MemoryFiles, path: &Path) -> Vec<u8> {
        let mut found = Vec::new();
        memory.change(path, |bytes| found = bytes.clone());
        found
    }

    #[test]
    fn a_write_fails_once_and_nothing_is_written() {
        for kind in ["io_error", "disk_full"] {
            let spec = format!("actor=kv_store,kind={kind},message=write_at,after=2");
            let (files, memory) = faulty(&spec);
            let path = Path::new("/kv/file");
            let file = files.open(path).expect("no fault");
            let written = [1_u8, 2, 3].map(|byte| file.write_at(&[byte; 2], 2 * u64::from(byte)));
            assert_eq!(written.map(|written| written.is_ok()), [true, false, true]);
            let expected = [0_u8, 0, 1, 1, 0, 0, 3, 3];
            assert_eq!(content(&memory, path), expected);
        }
    }

    #[test]
    fn a_torn_write_reports_success() {
        let (files, memory) = faulty("actor=kv_store,kind=torn_write,message=replace");
        let path = Path::new("/kv/file");
        files.replace(path, b"1234").expect("it reports success");
        assert_eq!(content(&memory, path), b"12");
    }

    #[test]
    fn reads_fail() {
        let (files, _) = faulty("actor=kv_store,kind=io_error,message=read_at");
        let file = files.open(Path::new("/kv/file")).expect("no fault");
        file.write_at(b"1234", 0).expect("no fault");
        assert!(file.read_at(&mut [0; 4], 0).is_err());
    }
}
