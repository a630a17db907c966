//! Tests of the encodings against a list that is searched from its start.

use super::*;

const WIDTH: usize = 4;
/// Bytes of an image with this number.
const BYTES: usize = 4 * WIDTH;

fn digest(image: u8) -> ImageDigest {
    ImageDigest([image; 32])
}

/// An image's vectors: one more than its number modulo 3, so that sizes differ.
fn vectors(image: u8) -> Arc<PromptVectors> {
    let values = vec![f32::from(image); WIDTH * n_vectors(image)];
    Arc::new(PromptVectors::new(WIDTH, values).expect("valid vectors"))
}

fn n_vectors(image: u8) -> usize {
    usize::from(image % 3) + 1
}

fn ask(encodings: &mut Encodings, ticket: u64, image: u8) -> Found {
    let work = |_: Option<&dyn ImageInput>| -> Arc<[u64]> { [u64::from(image) + 1].into() };
    encodings.encode(Ticket::new(ticket), wanted(image, n_vectors(image)), work)
}

fn wanted(image: u8, n_vectors: usize) -> WantedImage {
    WantedImage {
        digest: digest(image),
        n_vectors,
        input: None,
    }
}

/// News without their vectors: the image is told by the first value of its vectors.
#[derive(Clone, Debug, PartialEq)]
enum Told {
    /// The image that runs, from its work.
    Run(Option<u8>),
    Encoded(Vec<u64>, u8),
    Failed(Vec<u64>),
}

fn told(encodings: &mut Encodings) -> (Vec<Told>, Option<Ticket>) {
    let mut job = None;
    let numbers = |tickets: &[Ticket]| tickets.iter().map(|ticket| ticket.get()).collect();
    let told = encodings.take_news().into_iter().map(|news| match news {
        VisionNews::Run(encoding) => {
            job = encoding.as_ref().map(|encoding| encoding.job);
            Told::Run(encoding.map(|encoding| encoding.work[0] as u8 - 1))
        }
        VisionNews::Encoded { tickets, vectors } => {
            let vectors = vectors.expect("vectors");
            Told::Encoded(numbers(&tickets), vectors.values(0..1)[0] as u8)
        }
        VisionNews::Failed { tickets, .. } => Told::Failed(numbers(&tickets)),
    });
    let told = told.collect();
    (told, job)
}

/// The same rules with lists. Images are in the order of their first tickets, held ones in the order of their last use.
#[derive(Default)]
struct Naive {
    waiting: Vec<(u8, Vec<u64>)>,
    /// With the tickets that pin it.
    held: Vec<(u8, Vec<u64>)>,
    runs: Option<u8>,
    news: Vec<Told>,
}

impl Naive {
    fn ask(&mut self, ticket: u64, image: u8) {
        if let Some((_, pins)) = self.held.iter_mut().find(|(held, _)| *held == image) {
            pins.push(ticket);
            self.news.push(Told::Encoded(vec![ticket], image));
        } else if let Some((_, tickets)) = self.waiting.iter_mut().find(|(it, _)| *it == image) {
            tickets.push(ticket);
        } else {
            self.waiting.push((image, vec![ticket]));
            self.run();
        }
    }

    fn run(&mut self) {
        if self.runs.is_none() {
            self.runs = self.waiting.first().map(|(image, _)| *image);
            self.news
                .extend(self.runs.map(|image| Told::Run(Some(image))));
        }
    }

    fn release(&mut self, ticket: u64, limit: usize) {
        for place in 0..self.held.len() {
            let pins = &mut self.held[place].1;
            let had = pins.len();
            pins.retain(|other| *other != ticket);
            if pins.is_empty() && had == 1 {
                let used = self.held.remove(place);
                self.held.push(used);
                return self.evict(limit);
            }
            if pins.len() < had {
                return;
            }
        }
        for (_, tickets) in &mut self.waiting {
            tickets.retain(|other| *other != ticket);
        }
        let gone = self.waiting.iter().find(|(_, tickets)| tickets.is_empty());
        let gone = gone.map(|(image, _)| *image);
        self.waiting.retain(|(_, tickets)| !tickets.is_empty());
        if gone.is_some() && gone == self.runs {
            self.runs = None;
            self.run();
            if self.runs.is_none() {
                self.news.push(Told::Run(None));
            }
        }
    }

    fn end(&mut self, is_ok: bool, limit: usize) {
        let image = self.runs.take().expect("an image is encoded");
        let (_, tickets) = self.waiting.remove(0);
        if is_ok {
            self.news.push(Told::Encoded(tickets.clone(), image));
            self.held.push((image, tickets));
            self.evict(limit);
        } else {
            self.news.push(Told::Failed(tickets));
        }
        self.run();
    }

    fn bytes(&self) -> usize {
        let sizes = self.held.iter().map(|(image, _)| n_vectors(*image) * BYTES);
        sizes.sum()
    }

    fn evict(&mut self, limit: usize) {
        while self.bytes() > limit {
            let Some(place) = self.held.iter().position(|(_, pins)| pins.is_empty()) else {
                return;
            };
            self.held.remove(place);
        }
    }
}

#[test]
fn any_order_of_calls_gives_the_news_of_lists() {
    for seed in 0..200 {
        let limit = [0, 3 * BYTES, 8 * BYTES][seed as usize % 3];
        let mut random = seed * 2 + 1;
        let mut draw = |below: u64| {
            // A step of the generator of Knuth's MMIX.
            random = u64::wrapping_mul(random, 6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        let (mut encodings, mut naive) = (Encodings::new(limit), Naive::default());
        let (mut job, mut live, mut next) = (None, Vec::new(), 0);
        for step in 0..120 {
            match draw(4) {
                0 | 1 => {
                    next += 1;
                    let image = draw(6) as u8;
                    ask(&mut encodings, next, image);
                    naive.ask(next, image);
                    live.push(next);
                }
                2 if !live.is_empty() => {
                    let ticket = live.swap_remove(draw(live.len() as u64) as usize);
                    encodings.release(Ticket::new(ticket));
                    naive.release(ticket, limit);
                }
                _ => {
                    let Some(image) = naive.runs else {
                        continue;
                    };
                    let is_ok = draw(5) > 0;
                    let result = if is_ok {
                        Ok(vectors(image))
                    } else {
                        Err("of this image".to_owned())
                    };
                    let job = job.expect("the job was told");
                    assert!(encodings.encoded(job, result));
                    naive.end(is_ok, limit);
                }
            }
            let (got, began) = told(&mut encodings);
            let expected = std::mem::take(&mut naive.news);
            assert_eq!(got, expected, "seed {seed}, step {step}");
            if got.iter().any(|told| matches!(told, Told::Run(_))) {
                job = began;
            }
            let failed = got.iter().filter_map(|told| match told {
                Told::Failed(tickets) => Some(tickets.clone()),
                _ => None,
            });
            let failed: Vec<u64> = failed.flatten().collect();
            live.retain(|ticket| !failed.contains(ticket));
            assert_eq!(encodings.held(), (naive.held.len(), naive.bytes()));
            assert_eq!(encodings.n_waiting(), naive.waiting.len());
        }
        for ticket in live {
            encodings.release(Ticket::new(ticket));
        }
        assert!(encodings.tickets.is_empty() && encodings.waiting.is_empty());
        assert!(encodings.held().1 <= limit, "seed {seed}");
    }
}

#[test]
fn two_requests_share_one_encoding_and_a_third_finds_it() {
    let mut encodings = Encodings::new(100 * BYTES);
    assert_eq!(ask(&mut encodings, 1, 7), Found::New);
    assert_eq!(ask(&mut encodings, 2, 7), Found::Shared);
    let (news, job) = told(&mut encodings);
    assert_eq!(news, [Told::Run(Some(7))]);
    assert!(encodings.encoded(job.expect("a job"), Ok(vectors(7))));
    let (news, _) = told(&mut encodings);
    assert_eq!(news, [Told::Encoded(vec![1, 2], 7)]);
    assert_eq!(ask(&mut encodings, 3, 7), Found::Held);
    assert_eq!(told(&mut encodings).0, [Told::Encoded(vec![3], 7)]);
}

#[test]
fn a_stopped_encoding_has_no_result() {
    let mut encodings = Encodings::new(0);
    ask(&mut encodings, 1, 7);
    let first = told(&mut encodings).1.expect("a job");
    encodings.release(Ticket::new(1));
    assert_eq!(told(&mut encodings).0, [Told::Run(None)]);
    assert_eq!(ask(&mut encodings, 2, 7), Found::New);
    assert!(!encodings.encoded(first, Ok(vectors(7))));
    let (news, second) = told(&mut encodings);
    assert_eq!(news, [Told::Run(Some(7))]);
    assert!(second > Some(first));
    // Vectors stay as long as a ticket pins them, whatever the limit.
    assert!(encodings.encoded(second.expect("a job"), Ok(vectors(7))));
    assert_eq!(encodings.held().0, 1);
    encodings.release(Ticket::new(2));
    assert_eq!(encodings.held(), (0, 0));
    // A ticket that was released, or never given, changes nothing.
    encodings.release(Ticket::new(2));
    encodings.release(Ticket::new(9));
    assert!(encodings.tickets.is_empty());
}

#[test]
fn an_image_without_work_fails_alone() {
    let mut encodings = Encodings::new(0);
    let none = |_: Option<&dyn ImageInput>| -> Arc<[u64]> { Arc::default() };
    let found = encodings.encode(Ticket::new(1), wanted(1, 2), none);
    assert_eq!(found, Found::Refused);
    assert_eq!(told(&mut encodings).0, [Told::Failed(vec![1])]);
    assert_eq!(ask(&mut encodings, 2, 2), Found::New);
    assert_eq!(told(&mut encodings).0, [Told::Run(Some(2))]);
}

#[test]
fn vectors_of_a_wrong_number_fail_the_requests_that_expect_them() {
    let mut encodings = Encodings::new(100 * BYTES);
    let none = |_: Option<&dyn ImageInput>| -> Arc<[u64]> { Arc::default() };
    ask(&mut encodings, 1, 7);
    let job = told(&mut encodings).1.expect("a job");
    // Another request says that the picture has another size.
    encodings.encode(Ticket::new(2), wanted(7, 9), none);
    assert_eq!(told(&mut encodings).0, [Told::Failed(vec![2])]);
    assert!(encodings.encoded(job, Ok(vectors(7))));
    encodings.encode(Ticket::new(3), wanted(7, 9), none);
    let (news, _) = told(&mut encodings);
    assert_eq!(news, [Told::Encoded(vec![1], 7), Told::Failed(vec![3])]);
    ask(&mut encodings, 4, 8);
    let job = told(&mut encodings).1.expect("a job");
    assert!(encodings.encoded(job, Ok(vectors(7))));
    assert_eq!(told(&mut encodings).0, [Told::Failed(vec![4])]);
}
