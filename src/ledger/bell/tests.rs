use super::*;
use std::collections::VecDeque;

/// What a sender does next.
#[derive(Clone, Copy, Debug)]
enum Sender {
    Puts,
    Looks,
    Claims(u8),
    Unparks,
    Done,
}

/// What the writer does next; the steps of `Writer::next`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writer {
    Takes,
    Listens,
    LooksAgain,
    Sleeps,
    Done,
}

/// Everything, with one step at a time; the bell is the real one.
struct World {
    bell: Bell,
    queue: VecDeque<bool>,
    token: bool,
    senders: Vec<(bool, Sender)>,
    writer: Writer,
    hears: Hears,
    listened: usize,
    unparked: usize,
}

impl Clone for World {
    fn clone(&self) -> Self {
        let bell = Bell::new();
        bell.hears.store(self.bell.hears.load(Ordering::SeqCst), Ordering::SeqCst);
        Self { bell, queue: self.queue.clone(), senders: self.senders.clone(), ..*self }
    }
}

impl World {
    /// One message was taken: a lazy one lets the writer gather, an urgent one lets it stop.
    fn taken(&mut self, urgent: bool) {
        self.hears = Hears::Urgent;
        self.writer = if urgent { Writer::Done } else { Writer::Takes };
    }

    fn writer_step(&mut self) {
        match self.writer {
            Writer::Takes => match self.queue.pop_front() {
                Some(urgent) => self.taken(urgent),
                None => self.writer = Writer::Listens,
            },
            Writer::Listens => {
                self.bell.listen(self.hears);
                self.listened += 1;
                self.writer = Writer::LooksAgain;
            }
            Writer::LooksAgain => match self.queue.pop_front() {
                Some(urgent) => {
                    self.bell.listen(Hears::Nothing);
                    self.taken(urgent);
                }
                None => self.writer = Writer::Sleeps,
            },
            Writer::Sleeps => {
                assert!(self.token);
                self.token = false;
                self.bell.listen(Hears::Nothing);
                self.writer = Writer::Takes;
            }
            Writer::Done => {}
        }
    }

    fn sender_step(&mut self, index: usize) {
        let (urgent, next) = self.senders[index];
        let next = match next {
            Sender::Puts => {
                self.queue.push_back(urgent);
                Sender::Looks
            }
            Sender::Looks => self.bell.heard(urgent).map_or(Sender::Done, Sender::Claims),
            Sender::Claims(hears) if self.bell.claim(hears) => Sender::Unparks,
            Sender::Claims(_) | Sender::Done => Sender::Done,
            Sender::Unparks => {
                self.token = true;
                self.unparked += 1;
                Sender::Done
            }
        };
        self.senders[index].1 = next;
    }

    /// Tries every order of the steps that are left; how many there are.
    fn explore(&self) -> u64 {
        let mut orders = 0;
        let asleep = self.writer == Writer::Sleeps && !self.token;
        if self.writer != Writer::Done && !asleep {
            let mut next = self.clone();
            next.writer_step();
            orders += next.explore();
        }
        for index in 0..self.senders.len() {
            if !matches!(self.senders[index].1, Sender::Done) {
                let mut next = self.clone();
                next.sender_step(index);
                orders += next.explore();
            }
        }
        if orders == 0 {
            self.check();
            return 1;
        }
        orders
    }

    /// Nothing more happens: either the writer is done, or it sleeps and may.
    fn check(&self) {
        assert!(self.unparked <= self.listened, "one of many wakes it");
        if self.writer == Writer::Sleeps {
            let forgotten = match self.hears {
                Hears::Nothing => false,
                Hears::Urgent => self.queue.contains(&true),
                Hears::All => !self.queue.is_empty(),
            };
            assert!(!forgotten, "it sleeps on {:?} while {:?} lies in the queue", self.hears, self.queue);
        }
    }
}

#[test]
fn l1_in_every_order_of_steps_no_wake_up_is_lost() {
    let kinds: [&[bool]; 6] = [&[false], &[true], &[false, false], &[false, true], &[true, true], &[true, false]];
    for kinds in kinds {
        let world = World {
            bell: Bell::new(),
            queue: VecDeque::new(),
            token: false,
            senders: kinds.iter().map(|urgent| (*urgent, Sender::Puts)).collect(),
            writer: Writer::Takes,
            hears: Hears::All,
            listened: 0,
            unparked: 0,
        };
        assert!(world.explore() > 5, "{kinds:?}");
    }
}

#[test]
fn l1_what_nobody_waits_for_wakes_only_an_idle_writer() {
    let bell = Bell::new();
    let table = [
        (Hears::Nothing, false, false),
        (Hears::Nothing, true, false),
        (Hears::Urgent, false, false),
        (Hears::Urgent, true, true),
        (Hears::All, false, true),
        (Hears::All, true, true),
    ];
    for (hears, urgent, wakes) in table {
        bell.listen(hears);
        let heard = bell.heard(urgent);
        assert_eq!(heard.is_some(), wakes, "{hears:?} {urgent}");
        if let Some(heard) = heard {
            assert!(bell.claim(heard) && !bell.claim(heard), "one of many wakes it");
        }
    }
}

#[test]
fn l1_a_thread_that_sleeps_is_woken() {
    let bell = std::sync::Arc::new(Bell::new());
    let (told, hears) = std::sync::mpsc::channel();
    let writer = std::thread::spawn({
        let bell = std::sync::Arc::clone(&bell);
        move || {
            bell.belongs_here();
            bell.listen(Hears::All);
            told.send(()).unwrap();
            let for_ever = Instant::now() + std::time::Duration::from_hours(1);
            while bell.heard(false).is_some() {
                bell.sleep(for_ever);
            }
        }
    });
    hears.recv().unwrap();
    bell.ring(false);
    writer.join().unwrap();
}
