//! Decides which thread hangs: it has work, and has shown no sign of life for too long.
//!
//! A thread's signs of life are counted, and compared at each look, so that they carry no time.

/// The longest time that counts between two looks, in seconds. After more, the whole process was stopped or starved:
/// the threads could not beat either.
const LONGEST_LOOK_S: f64 = 1.0;

/// What a look finds of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sign {
    /// The number of beats so far.
    pub beats: u64,
    /// Whether the thread has work.
    pub owes: bool,
}

#[derive(Clone, Debug)]
pub struct BeatWatch {
    timeout_s: f64,
    longest_look_s: f64,
    last_look_s: f64,
    threads: Vec<Watched>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Watched {
    beats: u64,
    silent_s: f64,
}

impl BeatWatch {
    /// A watch of `n_threads` threads, which begins now.
    pub fn new(n_threads: usize, timeout_s: f64, now_s: f64) -> Self {
        Self {
            timeout_s,
            longest_look_s: LONGEST_LOOK_S.min(timeout_s / 2.0),
            last_look_s: now_s,
            threads: vec![Watched::default(); n_threads],
        }
    }

    /// Takes the signs of all threads, and returns the index of the first one that hangs.
    pub fn look(&mut self, signs: &[Sign], now_s: f64) -> Option<usize> {
        let passed_s = (now_s - self.last_look_s).clamp(0.0, self.longest_look_s);
        self.last_look_s = now_s;
        for (thread, sign) in self.threads.iter_mut().zip(signs) {
            if !sign.owes || sign.beats != thread.beats {
                thread.silent_s = 0.0;
            } else {
                thread.silent_s += passed_s;
            }
            thread.beats = sign.beats;
        }
        let hangs = |thread: &Watched| thread.silent_s > self.timeout_s;
        self.threads.iter().position(hangs)
    }

    /// For each thread, how long it has had work and not beaten, in seconds.
    pub fn silences_s(&self) -> impl Iterator<Item = f64> {
        self.threads.iter().map(|thread| thread.silent_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKS: Sign = Sign {
        beats: 7,
        owes: true,
    };
    const RESTS: Sign = Sign {
        beats: 7,
        owes: false,
    };

    /// Looks every half second, `n` times, and returns the time of the first look that finds a hang.
    fn first_hang(n: u32, sign: impl Fn(u32) -> Sign) -> Option<f64> {
        let mut watch = BeatWatch::new(1, 4.0, 0.0);
        let hangs = |look: &u32| {
            let now_s = f64::from(*look) / 2.0;
            watch.look(&[sign(*look)], now_s).is_some()
        };
        (1..=n).find(hangs).map(|look| f64::from(look) / 2.0)
    }

    #[test]
    fn a_thread_hangs_that_works_and_is_silent_for_longer_than_the_timeout() {
        // The first look only sees that the thread has beaten.
        assert_eq!(first_hang(100, |_| WORKS), Some(5.0));
    }

    #[test]
    fn a_thread_without_work_does_not_hang() {
        assert_eq!(first_hang(1000, |_| RESTS), None);
    }

    #[test]
    fn a_thread_that_beats_within_the_timeout_does_not_hang() {
        // One beat in each four seconds.
        let slow = |look: u32| Sign {
            beats: 8 + u64::from(look / 8),
            owes: true,
        };
        assert_eq!(first_hang(1000, slow), None);
        let slower = |look: u32| Sign {
            beats: 8 + u64::from(look / 10),
            owes: true,
        };
        assert!(first_hang(1000, slower).is_some());
    }

    #[test]
    fn the_silence_before_new_work_does_not_count() {
        let works_late = |look: u32| match look {
            ..50 => RESTS,
            // Work begins with a beat.
            _ => Sign { beats: 8, ..WORKS },
        };
        assert_eq!(first_hang(100, works_late), Some(25.0 + 4.5));
    }

    #[test]
    fn a_stop_of_the_whole_process_is_no_hang() {
        let mut watch = BeatWatch::new(1, 4.0, 0.0);
        assert_eq!(watch.look(&[WORKS], 0.5), None);
        assert_eq!(watch.look(&[WORKS], 10_000.0), None);
        let silences: Vec<f64> = watch.silences_s().collect();
        assert_eq!(silences, [1.0]);
        // The clock of a caller may stand still.
        assert_eq!(watch.look(&[WORKS], 10_000.0), None);
    }

    #[test]
    fn each_thread_is_watched_alone() {
        let mut watch = BeatWatch::new(3, 4.0, 0.0);
        let mut hung = None;
        for look in 1..=20_u32 {
            let lives = Sign {
                beats: u64::from(look),
                owes: true,
            };
            hung = hung.or(watch.look(&[lives, WORKS, RESTS], f64::from(look) / 2.0));
        }
        assert_eq!(hung, Some(1));
        let silences: Vec<f64> = watch.silences_s().collect();
        assert_eq!(silences, [0.0, 9.5, 0.0]);
    }
}
