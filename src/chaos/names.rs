//! The names in a spec: actors, kinds of faults, phases; and the table of kinds that each actor has.

use std::fmt;

/// Declares an enum whose variants have names, and the list of its variants.
macro_rules! named {
    (
        $(#[doc = $about:literal])+
        $type:ident { $($(#[doc = $doc:literal])* $variant:ident = $name:literal,)+ }
    ) => {
        $(#[doc = $about])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $type {
            $($(#[doc = $doc])* $variant,)+
        }

        impl $type {
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

named! {
    /// The actors and threads that have points.
    Actor {
        Tokenizer = "tokenizer",
        Scheduler = "scheduler",
        RadixCache = "radix_cache",
        Allocator = "allocator",
        /// The actor that chooses the replicas of requests.
        Router = "router",
        /// The actor that passes steps to the executor's thread.
        Executor = "executor",
        ExecutorThread = "executor_thread",
        /// A thread of the CPU's kernels.
        Worker = "worker",
        /// The actor of the KV store, and the store's files.
        KvStore = "kv_store",
        KvEvents = "kv_events",
        /// The thread that writes the message log.
        Record = "record",
        /// The actor of the images to encode.
        Vision = "vision",
    }
}

named! {
    /// The kinds of faults.
    Kind {
        Panic = "panic",
        Delay = "delay",
        /// Ends early if [`Chaos::end_hangs`](crate::Chaos::end_hangs) is called.
        Hang = "hang",
        /// Ends only with its length.
        HangHard = "hang_hard",
        /// An answer is dropped.
        DropReply = "drop_reply",
        /// A step is refused before it runs.
        Reject = "reject",
        /// A step's results are lost after it has run.
        Lose = "lose",
        /// All steps of an executor fail from now on, as after a sticky error of CUDA.
        Sticky = "sticky",
        /// There is no memory.
        Refuse = "refuse",
        IoError = "io_error",
        DiskFull = "disk_full",
        /// The first half of a write reaches the disk, and the write reports success.
        TornWrite = "torn_write",
    }
}

named! {
    /// The place of a point in the work on a message.
    Phase {
        Entry = "entry",
        Middle = "middle",
        Exit = "exit",
    }
}

use Kind::{
    Delay, DiskFull, DropReply, Hang, HangHard, IoError, Lose, Panic, Refuse, Reject, Sticky,
    TornWrite,
};

impl Kind {
    /// The kinds that a point without decisions can carry out.
    pub const PLAIN: &'static [Self] = &[Panic, Delay, Hang, HangHard];

    /// Whether `for=` gives the fault's length.
    pub fn has_length(self) -> bool {
        matches!(self, Delay | Hang | HangHard)
    }
}

impl Actor {
    /// The kinds that the actor's points carry out.
    pub fn kinds(self) -> &'static [Kind] {
        match self {
            Self::Tokenizer
            | Self::Router
            | Self::Scheduler
            | Self::RadixCache
            | Self::Executor
            | Self::Vision => Kind::PLAIN,
            Self::Allocator => &[Panic, Delay, Hang, HangHard, Refuse],
            Self::ExecutorThread => &[Panic, Delay, Hang, HangHard, Reject, Lose, Sticky, Refuse],
            Self::Worker => &[Panic],
            Self::KvStore => &[
                Panic, Delay, Hang, HangHard, DropReply, Refuse, IoError, DiskFull, TornWrite,
            ],
            Self::KvEvents => &[Panic, Delay, HangHard],
            Self::Record => &[Panic, Delay, HangHard, IoError, DiskFull, TornWrite],
        }
    }

    /// Whether points of the actor know the id of the request that they work on.
    pub fn knows_requests(self) -> bool {
        matches!(self, Self::Tokenizer | Self::Scheduler)
    }

    /// Whether points of the actor know the prompts of their sequences.
    pub fn knows_prompts(self) -> bool {
        matches!(self, Self::RadixCache | Self::ExecutorThread | Self::Worker)
    }
}
