//! Judges the facts of a machine: each finding has a state, and the command or setting that mends a fault.

use indicatif::HumanBytes;
use serde::Serialize;
use souffleur::kernels::cpu::Isa;

use super::facts::{Facts, Gpu, HubFact, ModelFact};

/// With less free memory, only the smallest models run.
const LITTLE_MEMORY_BYTES: u64 = 2 << 30;
/// With less free space, few downloads succeed.
const LITTLE_DISK_BYTES: u64 = 4 << 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    Ok,
    Warn,
    Fail,
}

impl State {
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "FAIL",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub check: &'static str,
    pub state: State,
    pub text: String,
    /// Present unless the state is `ok`.
    pub advice: Option<String>,
}

fn ok(check: &'static str, text: String) -> Finding {
    Finding {
        check,
        state: State::Ok,
        text,
        advice: None,
    }
}

fn fault(check: &'static str, state: State, text: String, advice: &str) -> Finding {
    Finding {
        check,
        state,
        text,
        advice: Some(advice.to_owned()),
    }
}

pub(super) fn of(facts: &Facts) -> Vec<Finding> {
    let mut findings = vec![instruction_set(facts)];
    findings.extend(facts.has_proc.map(proc));
    findings.extend([
        cores(facts),
        memory(facts),
        huge_pages(facts),
        bundled(facts),
        downloads(facts),
    ]);
    findings.extend(kv_store(facts));
    findings.extend([gpu(facts), hub(facts), port(facts)]);
    // A model needs an instruction set too: one fault is found once.
    match (&facts.isa, &facts.model) {
        (Err(error), ModelFact::Failed(other)) if error == other => (),
        _ => findings.push(model(facts)),
    }
    findings
}

fn instruction_set(facts: &Facts) -> Finding {
    const CHECK: &str = "instruction set";
    match &facts.isa {
        Err(error) => fault(
            CHECK,
            State::Fail,
            error.clone(),
            "unset SOUFFLEUR_CPU_ISA, or set it to an instruction set of this machine",
        ),
        Ok((Isa::Portable, available)) if cfg!(target_arch = "x86_64") && available.len() <= 1 => {
            fault(
                CHECK,
                State::Warn,
                "portable: this CPU, or its virtual machine, has no AVX2".to_owned(),
                "give the virtual machine the host's CPU model (QEMU: -cpu host)",
            )
        }
        Ok((isa, available)) => {
            let others = available.iter().filter(|other| *other != isa);
            let others: Vec<&str> = others.map(|other| other.name()).collect();
            let others = match others.as_slice() {
                [] => String::new(),
                others => format!(" (slower here: {})", others.join(", ")),
            };
            ok(CHECK, format!("{}{others}", isa.name()))
        }
    }
}

fn proc(is_mounted: bool) -> Finding {
    const CHECK: &str = "/proc";
    if is_mounted {
        return ok(CHECK, "is mounted".to_owned());
    }
    fault(
        CHECK,
        State::Fail,
        "is not mounted, so free memory and cores are unknown".to_owned(),
        "mount it: mount -t proc proc /proc (bwrap: --proc /proc)",
    )
}

fn cores(facts: &Facts) -> Finding {
    const CHECK: &str = "cores";
    let text = format!("{} physical", facts.cores);
    match facts.quota {
        Some(quota) if quota < facts.cores as f64 => fault(
            CHECK,
            State::Warn,
            format!(
                "{text}, but the container may use {quota:.2} CPUs: more threads slow each other down"
            ),
            "raise the limit (docker: --cpus; Kubernetes: resources.limits.cpu), or set --threads to it (at least 1)",
        ),
        _ => ok(CHECK, text),
    }
}

fn memory(facts: &Facts) -> Finding {
    const CHECK: &str = "memory";
    match &facts.memory_bytes {
        Err(error) => fault(
            CHECK,
            State::Fail,
            error.clone(),
            "mount /proc: the engine reads the available memory from it",
        ),
        Ok(bytes) if *bytes < LITTLE_MEMORY_BYTES => fault(
            CHECK,
            State::Warn,
            format!(
                "{} free, less than {}",
                HumanBytes(*bytes),
                HumanBytes(LITTLE_MEMORY_BYTES)
            ),
            "end other programs or raise the container's limit; `souffleur plan --table` lists models by memory",
        ),
        Ok(bytes) => ok(CHECK, format!("{} free", HumanBytes(*bytes))),
    }
}

fn huge_pages(facts: &Facts) -> Finding {
    const CHECK: &str = "huge pages";
    match facts.huge_pages.as_deref().map(str::trim) {
        Some(setting) if setting.contains("[never]") => fault(
            CHECK,
            State::Warn,
            "are off: reading the weights is slower because of more TLB misses".to_owned(),
            "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
        ),
        Some(setting) => ok(CHECK, setting.to_owned()),
        None => ok(CHECK, "the kernel reports no setting".to_owned()),
    }
}

fn bundled(facts: &Facts) -> Finding {
    const CHECK: &str = "cache folder";
    match &facts.bundled {
        Ok(folder) => ok(CHECK, folder.display().to_string()),
        Err(error) => fault(
            CHECK,
            State::Fail,
            error.clone(),
            "export SOUFFLEUR_CACHE_DIR=/tmp/souffleur (any writable folder)",
        ),
    }
}

fn downloads(facts: &Facts) -> Finding {
    const CHECK: &str = "downloads";
    match &facts.downloads {
        Err(error) => fault(
            CHECK,
            State::Warn,
            format!("cannot be saved: {error}"),
            "export HF_HOME=/tmp/huggingface (any writable folder)",
        ),
        Ok((folder, bytes)) if *bytes < LITTLE_DISK_BYTES => fault(
            CHECK,
            State::Warn,
            format!(
                "{} has {} free, less than {}",
                folder.display(),
                HumanBytes(*bytes),
                HumanBytes(LITTLE_DISK_BYTES)
            ),
            "`souffleur list` and `souffleur rm` free space; HF_HOME names a folder on another disk",
        ),
        Ok((folder, bytes)) => ok(
            CHECK,
            format!("{} has {} free", folder.display(), HumanBytes(*bytes)),
        ),
    }
}

fn kv_store(facts: &Facts) -> Option<Finding> {
    const CHECK: &str = "KV store";
    Some(match facts.kv_store.as_ref()? {
        Err(error) => fault(
            CHECK,
            State::Fail,
            format!("cannot be written: {error}"),
            "set --kv-disk-path to a writable folder, or remove it",
        ),
        Ok((folder, free_bytes, bytes)) if free_bytes < bytes => fault(
            CHECK,
            State::Warn,
            format!(
                "{} has {} free, the store may take {}",
                folder.display(),
                HumanBytes(*free_bytes),
                HumanBytes(*bytes)
            ),
            "lower --kv-disk-bytes, or name a folder on a larger disk with --kv-disk-path",
        ),
        Ok((folder, free_bytes, _)) => ok(
            CHECK,
            format!("{} has {} free", folder.display(), HumanBytes(*free_bytes)),
        ),
    })
}

fn gpu(facts: &Facts) -> Finding {
    const CHECK: &str = "GPU";
    match &facts.gpu {
        #[cfg(not(feature = "cuda"))]
        Gpu::NotBuilt => ok(CHECK, "this build has no CUDA".to_owned()),
        Gpu::NoDriver => ok(CHECK, "no NVIDIA driver: the CPU computes".to_owned()),
        Gpu::Found(info) => ok(CHECK, format!("{info}; --device cuda uses it")),
        Gpu::Unusable(error) => fault(
            CHECK,
            State::Fail,
            error.clone(),
            "--device cpu computes on the CPU instead",
        ),
    }
}

fn hub(facts: &Facts) -> Finding {
    const CHECK: &str = "hub";
    match &facts.hub {
        HubFact::Offline => ok(
            CHECK,
            "off: HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set".to_owned(),
        ),
        HubFact::Reached(endpoint) => ok(CHECK, format!("{endpoint} answers")),
        HubFact::Failed(error) => fault(
            CHECK,
            State::Warn,
            error.clone(),
            "downloads need the hub: set HTTPS_PROXY to a proxy or HF_ENDPOINT to a mirror; with HF_HUB_OFFLINE=1 only \
             downloaded models are used",
        ),
    }
}

fn port(facts: &Facts) -> Finding {
    const CHECK: &str = "port";
    match &facts.port {
        Ok(address) => ok(CHECK, format!("{address} is free")),
        Err(error) => fault(
            CHECK,
            State::Fail,
            error.clone(),
            "--port 0 takes any free port; `ss -ltnp` shows which program listens",
        ),
    }
}

fn model(facts: &Facts) -> Finding {
    const CHECK: &str = "model";
    match &facts.model {
        ModelFact::Planned { name, tokens } => {
            ok(CHECK, format!("{name} fits, with {tokens} tokens of KV"))
        }
        ModelFact::NotDownloaded(id) => fault(
            CHECK,
            State::Warn,
            format!("{id} was not checked: doctor checks only local files and folders"),
            &format!("`souffleur plan {id}` downloads it and plans its memory"),
        ),
        ModelFact::Failed(error) => fault(
            CHECK,
            State::Fail,
            error.clone(),
            "`souffleur doctor` without a model checks the machine with the bundled one; `souffleur plan --table` lists \
             models by memory",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sound() -> Facts {
        Facts {
            isa: Ok((Isa::Portable, vec![Isa::Portable, Isa::Portable])),
            has_proc: Some(true),
            cores: 4,
            quota: None,
            memory_bytes: Ok(16 << 30),
            huge_pages: Some("always [madvise] never\n".to_owned()),
            bundled: Ok("/c".into()),
            downloads: Ok(("/d".into(), 100 << 30)),
            kv_store: Some(Ok(("/k".into(), 100 << 30, 10 << 30))),
            gpu: Gpu::NoDriver,
            hub: HubFact::Reached("https://hub".to_owned()),
            port: Ok("127.0.0.1:30000".to_owned()),
            model: ModelFact::Planned {
                name: "m".to_owned(),
                tokens: 1000,
            },
        }
    }

    #[test]
    fn a_sound_machine_has_no_fault() {
        for finding in of(&sound()) {
            assert_eq!(
                (finding.state, &finding.advice),
                (State::Ok, &None),
                "{finding:?}"
            );
        }
    }

    type Plant = fn(&mut Facts);

    fn broken() -> String {
        "broken".to_owned()
    }

    #[test]
    fn systems_other_than_linux_need_no_proc() {
        let facts = Facts {
            has_proc: None,
            ..sound()
        };
        assert!(of(&facts).iter().all(|finding| finding.check != "/proc"));
    }

    /// Checks that each planted fault is found alone, and has advice.
    fn check_faults(faults: &[(&str, State, Plant)]) {
        for (check, state, plant) in faults {
            let mut facts = sound();
            plant(&mut facts);
            let mut faults = of(&facts);
            faults.retain(|one| one.state != State::Ok);
            let [fault] = faults.as_slice() else {
                panic!("{check}: {faults:?}");
            };
            assert_eq!((fault.check, fault.state), (*check, *state));
            assert!(fault.advice.is_some(), "{check}");
        }
    }

    #[test]
    fn faults_of_the_machine_are_found() {
        use State::{Fail, Warn};
        check_faults(&[
            ("instruction set", Fail, |facts| facts.isa = Err(broken())),
            ("/proc", Fail, |facts| facts.has_proc = Some(false)),
            ("cores", Warn, |facts| facts.quota = Some(0.5)),
            ("memory", Warn, |facts| facts.memory_bytes = Ok(1 << 30)),
            ("memory", Fail, |facts| facts.memory_bytes = Err(broken())),
            ("huge pages", Warn, |facts| {
                facts.huge_pages = Some("always madvise [never]".to_owned());
            }),
            ("GPU", Fail, |facts| facts.gpu = Gpu::Unusable(broken())),
        ]);
    }

    #[test]
    fn faults_of_folders_addresses_and_models_are_found() {
        use State::{Fail, Warn};
        check_faults(&[
            ("cache folder", Fail, |facts| facts.bundled = Err(broken())),
            ("downloads", Warn, |facts| facts.downloads = Err(broken())),
            ("downloads", Warn, |facts| {
                facts.downloads = Ok(("/d".into(), 1 << 30))
            }),
            ("KV store", Fail, |facts| {
                facts.kv_store = Some(Err(broken()))
            }),
            ("KV store", Warn, |facts| {
                facts.kv_store = Some(Ok(("/k".into(), 1 << 30, 2 << 30)));
            }),
            ("hub", Warn, |facts| facts.hub = HubFact::Failed(broken())),
            ("port", Fail, |facts| facts.port = Err(broken())),
            ("model", Fail, |facts| {
                facts.model = ModelFact::Failed(broken())
            }),
            ("model", Warn, |facts| {
                facts.model = ModelFact::NotDownloaded("a/b".to_owned())
            }),
        ]);
    }
}
