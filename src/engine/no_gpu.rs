//! Replaces `gpu.rs` in builds without the feature `cuda`: refuses configurations that name a GPU.

use std::sync::Arc;

use crate::progress::Progress;
use crate::tower_file::TowerFile;
use souffleur_actors::executor::ExecutorFactory;
use souffleur_actors::kv_store::StoreSetup;
use souffleur_base::error::{ConfigError, LoadError, StartError};
use souffleur_config::{Device, EngineConfig};
use souffleur_executor::cpu::{CpuDescription, OnRanks};
use souffleur_executor::memory_plan::{MemoryBudget, MemoryPlan};

pub(super) enum Gpu {}

impl Gpu {
    pub(super) fn open_all(config: &EngineConfig) -> Result<Vec<Self>, StartError> {
        if !matches!(config.device, Device::Cuda(_)) {
            return Ok(Vec::new());
        }
        let device = String::from(config.device.clone());
        Err(StartError::Config(ConfigError {
            key: "device".to_owned(),
            reason: format!(
                "is {device}, but this program was built without CUDA: build souffleur with its feature cuda, or use cpu"
            ),
        }))
    }

    pub(super) fn name(&self) -> String {
        match *self {}
    }

    pub(super) fn replicas(&self) -> usize {
        match *self {}
    }

    pub(super) fn check(&self, _: &EngineConfig, _: &CpuDescription) -> Result<(), StartError> {
        match *self {}
    }

    pub(super) fn budget(
        &self,
        _: &EngineConfig,
        _: (&CpuDescription, &OnRanks),
        _: usize,
        _: u32,
    ) -> Result<MemoryBudget, LoadError> {
        match *self {}
    }

    pub(super) fn kernels(
        &self,
        _: &EngineConfig,
        _: &CpuDescription,
    ) -> Result<String, LoadError> {
        match *self {}
    }

    pub(super) fn executors(
        _: Vec<Self>,
        _: &EngineConfig,
        _: (&CpuDescription, usize),
        _: (&MemoryPlan, Option<Arc<StoreSetup>>),
        _: (&[u32], Option<TowerFile>),
        _: Progress,
    ) -> Result<Vec<Arc<ExecutorFactory>>, LoadError> {
        Ok(Vec::new())
    }
}

/// Does nothing: this build could not use a driver.
pub(super) fn notice_unused() {}
