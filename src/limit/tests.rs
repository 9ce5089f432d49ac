//! The meter against a slow exact model, with a clock of the test's own.

use super::calendar::Calendar;
use super::meter::{Ask, Full, Meter, Moment, Short, Taken};
use super::{Claim, Denied, Limits as Everybody, Refused};
use crate::config::{AllowedModels, Budget, Key, Limits, Period};
use crate::ledger::Charged;
use crate::ledger::money::Nano;
use jiff::tz::TimeZone;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use uuid::Uuid;

/// Keeps everything that ever happened and counts it anew each time.
#[derive(Default)]
struct Model {
    requests: Vec<Request>,
    /// What was used beyond the reservation, and when that was told.
    surplus: Vec<(u64, u64)>,
}

struct Request {
    at: Duration,
    rpm: bool,
    tokens: Option<u64>,
    charge: i64,
    day: (i64, i64),
    settled: Option<i64>,
}

impl Model {
    fn requests(&self, second: u64) -> u64 {
        self.requests.iter().filter(|request| request.rpm && second - request.at.as_secs() <= 60).count() as u64
    }

    fn tokens(&self, second: u64) -> u64 {
        let reserved =
            self.requests.iter().filter(|request| second - request.at.as_secs() <= 60).filter_map(|one| one.tokens);
        let surplus = self.surplus.iter().filter(|(at, _)| second - at <= 60).map(|(_, tokens)| *tokens);
        reserved.chain(surplus).sum()
    }

    fn running(&self) -> u64 {
        self.requests.iter().filter(|request| request.settled.is_none()).count() as u64
    }

    fn reserved(&self) -> i64 {
        self.requests.iter().filter(|request| request.settled.is_none()).map(|request| request.charge).sum()
    }

    fn spent(&self, per: Period, day: (i64, i64)) -> i64 {
        let counts = |request: &&Request| match per {
            Period::Day => request.day.0 == day.0,
            Period::Month => request.day.1 == day.1,
            Period::Total => true,
        };
        self.requests.iter().filter(counts).filter_map(|request| request.settled).sum()
    }

    /// The word for what is used up, if anything is.
    fn full(&self, second: u64, day: (i64, i64), limits: &Limits, ask: &Ask) -> Option<&'static str> {
        let over = |budget: &Budget| {
            let gone = self.spent(budget.per, day) + self.reserved();
            gone >= budget.usd.0 || gone + ask.charge.0 > budget.usd.0
        };
        if limits.budgets.iter().any(over) {
            return Some("budget");
        }
        let tokens = ask.tokens(limits.tpm);
        if limits.tpm.is_some_and(|most| tokens > most) {
            return Some("too_large");
        }
        if limits.rpm.is_some_and(|most| self.requests(second) >= most) {
            return Some("rpm");
        }
        if limits.tpm.is_some_and(|most| self.tokens(second) + tokens > most) {
            return Some("tpm");
        }
        limits.concurrent.is_some_and(|most| self.running() >= most).then_some("concurrent")
    }
}

const fn word(full: &Full) -> &'static str {
    match full.short {
        Short::Requests { .. } => "rpm",
        Short::Tokens { .. } => "tpm",
        Short::TooLarge { .. } => "too_large",
        Short::Slots { .. } => "concurrent",
        Short::Budget { .. } => "budget",
    }
}

fn moment(calendar: &Calendar, since: Duration) -> Moment {
    // Some hours before a month ends.
    let wall = SystemTime::UNIX_EPOCH + Duration::from_mins(29_934_500) + since;
    Moment { since, wall, day: calendar.day(wall) }
}

fn limits(random: &mut fastrand::Rng) -> Limits {
    let budget = |usd, per| Budget { usd: Nano(usd), per };
    Limits {
        rpm: random.bool().then(|| random.u64(1..20)),
        tpm: random.bool().then(|| random.u64(1..2_000)),
        concurrent: random.bool().then(|| random.u64(1..8)),
        budgets: [budget(3_000, Period::Day), budget(9_000, Period::Month), budget(20_000, Period::Total)]
            .into_iter()
            .filter(|_| random.bool())
            .collect(),
        ..Limits::default()
    }
}

fn ask(random: &mut fastrand::Rng) -> Ask {
    let (input, output) = (random.u64(1..300), random.u64(0..300));
    Ask { input, output, output_named: random.bool(), charge: Nano(random.i64(0..500)) }
}

/// One schedule; `honest`: nobody uses more than reserved, and the limits stay.
fn run(seed: u64, honest: bool) -> Result<(), String> {
    let mut random = fastrand::Rng::with_seed(seed);
    let calendar = Calendar::new(TimeZone::UTC);
    let (mut meter, mut model) = (Meter::default(), Model::default());
    let mut limit = limits(&mut random);
    let mut since = Duration::ZERO;
    let mut running: Vec<(usize, Taken)> = Vec::new();
    for step in 0..200 {
        since += match random.u32(0..100) {
            0 => Duration::from_secs(random.u64(0..100_000)),
            1..10 => Duration::from_secs(random.u64(0..90)),
            _ => Duration::from_millis(random.u64(0..700)),
        };
        let now = moment(&calendar, since);
        let (second, day) = (since.as_secs(), (now.day.number, now.day.month_number));
        if !honest && random.u32(0..50) == 0 {
            limit = limits(&mut random);
        }
        if random.u32(0..3) == 0 && !running.is_empty() {
            let (at, taken) = running.swap_remove(random.usize(..running.len()));
            let request = &mut model.requests[at];
            let reserved = request.tokens.unwrap_or(0);
            let tokens = if honest { random.u64(0..=reserved) } else { random.u64(0..600) };
            let charge = if honest { random.i64(0..=request.charge) } else { random.i64(0..900) };
            meter.settle(since, taken, tokens, Nano(charge));
            request.settled = Some(charge);
            if request.tokens.is_some() {
                request.tokens = Some(reserved.min(tokens));
                if tokens > reserved {
                    model.surplus.push((second, tokens - reserved));
                }
            }
        } else {
            let ask = ask(&mut random);
            let full = meter.fits(&now, &limit, &ask, 1);
            let expected = model.full(second, day, &limit, &ask);
            if full.as_ref().err().map(word) != expected {
                return Err(format!("seed {seed}, step {step}: {full:?}, but {expected:?}"));
            }
            if full.is_ok() {
                let taken = meter.take(&now, &limit, &ask);
                running.push((model.requests.len(), taken));
                model.requests.push(Request {
                    at: since,
                    rpm: limit.rpm.is_some(),
                    tokens: limit.tpm.map(|most| ask.tokens(Some(most))),
                    charge: ask.charge.0,
                    day,
                    settled: None,
                });
            }
        }
        meter.roll(&now);
        let seen = (meter.running(), meter.reserved().0);
        let expected = (model.running(), model.reserved());
        let spent = [Period::Day, Period::Month, Period::Total].map(|per| meter.purse(per).spent);
        let should = [Period::Day, Period::Month, Period::Total].map(|per| model.spent(per, day));
        if seen != expected || spent != should {
            return Err(format!("seed {seed}, step {step}: {seen:?} {spent:?}, but {expected:?} {should:?}"));
        }
        if honest {
            holds(&model, &limit, day).map_err(|broken| format!("seed {seed}, step {step}: {broken}"))?;
        }
    }
    for (_, taken) in running {
        meter.settle(since, taken, 0, Nano(0));
    }
    if (meter.running(), meter.reserved()) == (0, Nano(0)) { Ok(()) } else { Err(format!("seed {seed}: a leak")) }
}

/// The promise itself, by the true times: no 60 s have more, no budget is overdrawn.
fn holds(model: &Model, limits: &Limits, day: (i64, i64)) -> Result<(), String> {
    let Some(last) = model.requests.last() else { return Ok(()) };
    let in_minute = || model.requests.iter().filter(|request| last.at < request.at + Duration::from_mins(1));
    if limits.rpm.is_some_and(|most| in_minute().count() as u64 > most) {
        return Err(format!("{} requests in a minute", in_minute().count()));
    }
    let tokens: u64 = in_minute().filter_map(|request| request.tokens).sum();
    if limits.tpm.is_some_and(|most| tokens > most) {
        return Err(format!("{tokens} tokens in a minute"));
    }
    for budget in &limits.budgets {
        let spent = model.spent(budget.per, day);
        if spent > budget.usd.0 {
            return Err(format!("{spent} of {budget}"));
        }
    }
    Ok(())
}

#[test]
fn g2_the_meter_counts_as_the_slow_exact_model_does() {
    for seed in 0..1_000 {
        run(seed, false).unwrap();
    }
}

#[test]
fn g2_limits_hold_in_every_minute_and_on_every_day() {
    for seed in 0..1_000 {
        run(seed, true).unwrap();
    }
}

#[test]
fn g2_retry_after_is_the_first_moment_that_works() {
    let calendar = Calendar::new(TimeZone::UTC);
    for seed in 0..300 {
        let mut random = fastrand::Rng::with_seed(seed);
        let limit = Limits { rpm: Some(random.u64(1..9)), tpm: Some(random.u64(600..2_000)), ..Limits::default() };
        let mut meter = Meter::default();
        let mut since = Duration::ZERO;
        for _ in 0..100 {
            since += Duration::from_millis(random.u64(0..5_000));
            let (now, ask) = (moment(&calendar, since), ask(&mut random));
            let Err(full) = meter.fits(&now, &limit, &ask, 1) else {
                meter.take(&now, &limit, &ask);
                continue;
            };
            let wait = full.frees.unwrap();
            let before = moment(&calendar, since + wait.saturating_sub(Duration::from_millis(1)));
            let then = moment(&calendar, since + wait);
            assert_eq!(meter.fits(&before, &limit, &ask, 1).is_ok(), wait.is_zero(), "seed {seed}: {full:?}");
            let again = meter.fits(&then, &limit, &ask, 1);
            assert!(again.is_ok() || word(&again.unwrap_err()) != word(&full), "seed {seed}: {full:?}");
            since += wait;
        }
    }
}

#[test]
fn b238_a_reservation_is_given_back_when_a_request_is_abandoned() {
    let calendar = Calendar::new(TimeZone::UTC);
    let limit = Limits { budgets: vec!["1.00/day".parse().unwrap()], ..Limits::default() };
    let ask = Ask { input: 1, output: 1, output_named: true, charge: Nano(600_000_000) };
    let mut meter = Meter::default();
    let now = moment(&calendar, Duration::ZERO);
    meter.fits(&now, &limit, &ask, 1).unwrap();
    let first = meter.take(&now, &limit, &ask);
    let full = meter.fits(&now, &limit, &ask, 1).unwrap_err();
    assert!(matches!(full.short, Short::Budget { held: true, left: Nano(400_000_000), .. }), "{full:?}");
    meter.settle(now.since, first, 0, Nano(0));
    meter.fits(&now, &limit, &ask, 1).unwrap();
    let second = meter.take(&now, &limit, &ask);
    meter.settle(now.since, second, 2, Nano(600_000_000));
    let full = meter.fits(&now, &limit, &ask, 1).unwrap_err();
    assert!(matches!(full.short, Short::Budget { held: false, .. }), "{full:?}");
    assert!(full.frees.unwrap() > Duration::from_hours(1), "until the day ends");
}

#[test]
fn g2_a_guessed_maximum_makes_no_request_too_large() {
    let calendar = Calendar::new(TimeZone::UTC);
    let now = moment(&calendar, Duration::ZERO);
    let limit = Limits { tpm: Some(1_000), ..Limits::default() };
    let mut meter = Meter::default();
    let guessed = Ask { input: 10, output: 4_096, output_named: false, charge: Nano(0) };
    let named = Ask { output_named: true, ..guessed };
    let long = Ask { input: 1_001, ..guessed };
    assert!(matches!(meter.fits(&now, &limit, &named, 1).unwrap_err().short, Short::TooLarge { asked: 4_106, .. }));
    assert!(matches!(meter.fits(&now, &limit, &long, 1).unwrap_err().short, Short::TooLarge { .. }));
    meter.fits(&now, &limit, &guessed, 1).unwrap();
    meter.take(&now, &limit, &guessed);
    assert_eq!(meter.tokens(now.since, &limit).map(|gauge| gauge.left), Some(0), "it takes all there is");
}

#[test]
fn g4_a_share_of_all_limits_is_what_is_left_when_the_store_is_away() {
    let calendar = Calendar::new(TimeZone::UTC);
    let now = moment(&calendar, Duration::ZERO);
    let limit =
        Limits { rpm: Some(9), concurrent: Some(10), budgets: vec!["1.00/day".parse().unwrap()], ..Limits::default() };
    let ask = Ask { input: 1, output: 1, output_named: true, charge: Nano(50_000_000) };
    let mut meter = Meter::default();
    // All have spent 0.40 of it, a quarter of that here.
    meter.restore(&now, Nano(100_000_000), Nano(0), Nano(0));
    meter.heard(Period::Day, &now.day, 400_000_000, 100_000_000);
    let mut taken = Vec::new();
    while meter.fits(&now, &limit, &ask, 3).is_ok() {
        taken.push(meter.take(&now, &limit, &ask));
    }
    assert_eq!(taken.len(), 3, "a third of 9 and of 10");
    for taken in taken {
        meter.settle(now.since, taken, 2, Nano(50_000_000));
    }
    let later = moment(&calendar, Duration::from_secs(100));
    meter.fits(&later, &limit, &ask, 3).unwrap();
    let last = meter.take(&later, &limit, &ask);
    meter.settle(later.since, last, 2, Nano(50_000_000));
    let full = meter.fits(&later, &limit, &ask, 3).unwrap_err();
    assert_eq!(word(&full), "budget", "a third of the 0.60 that was left");
}

fn claims(key: &Arc<Key>) -> Claim<'_> {
    let ask = Ask { input: 30, output: 10, output_named: true, charge: Nano(400_000_000) };
    Claim { id: Uuid::now_v7(), key, model: None, received: SystemTime::now(), ask }
}

#[tokio::test]
async fn c3_a_successor_counts_what_runs_and_ran_in_the_process_before_it_and_in_the_one_before_that() {
    let limits = Limits {
        rpm: Some(3),
        tpm: Some(1_000),
        concurrent: Some(3),
        budgets: vec!["1.00/day".parse().unwrap()],
        ..Limits::default()
    };
    let (sha256, models, allow_ips) = ([0; 32], AllowedModels::All, Vec::new());
    let key = Arc::new(Key { name: "a".to_owned(), sha256, models, tag: None, expires: None, allow_ips, limits });
    let [first, second, third] = [(); 3].map(|()| Arc::new(Everybody::new(TimeZone::UTC)));
    let (one, _) = first.reserve(&claims(&key)).await;
    second.inherit(&first.legacy());
    let (two, left) = second.reserve(&claims(&key)).await;
    assert_eq!(left.requests.map(|gauge| gauge.left), Some(1));
    assert_eq!(left.tokens.map(|gauge| gauge.left), Some(920));
    third.inherit(&second.legacy());
    let standing = |limits: &Everybody| limits.keys().iter().map(|one| (one.running, one.reserved)).collect::<Vec<_>>();
    assert_eq!(standing(&third), [(2, 800_000_000)]);
    let refused = third.reserve(&claims(&key)).await.0.unwrap_err();
    assert!(matches!(
        refused,
        Refused::Denied(Denied { full: Full { short: Short::Budget { held: true, .. }, .. }, .. })
    ));

    // What it says again stands in place of what it said.
    two.unwrap().settle(40, Nano(1));
    third.inherit(&second.legacy());
    assert_eq!(standing(&third), [(1, 400_000_000)]);
    // Gone: nothing runs there, and its minute is not over.
    third.outlive();
    assert_eq!(standing(&third), [(0, 0)]);
    let (three, left) = third.reserve(&claims(&key)).await;
    assert_eq!((three.is_ok(), left.requests.map(|gauge| gauge.left)), (true, Some(0)));
    assert!(third.reserve(&claims(&key)).await.0.is_err());
    drop(one);
}

#[tokio::test]
async fn c2_days_may_begin_elsewhere_and_what_was_spent_today_is_what_the_ledger_says_of_it() {
    let limits = Limits { budgets: vec!["1.00/day".parse().unwrap()], ..Limits::default() };
    let (sha256, models, allow_ips) = ([0; 32], AllowedModels::All, Vec::new());
    let key = Arc::new(Key { name: "a".to_owned(), sha256, models, tag: None, expires: None, allow_ips, limits });
    let everybody = Arc::new(Everybody::new(TimeZone::get("Pacific/Kiritimati").unwrap()));
    let spent = || everybody.keys().into_iter().map(|one| one.spent).collect::<Vec<_>>();
    let (first, _) = everybody.reserve(&claims(&key)).await;
    let (under_way, _) = everybody.reserve(&claims(&key)).await;
    first.unwrap().settle(1, Nano(300));
    assert_eq!(spent(), [[300, 300, 300]]);
    // Some days back, and in another month at times.
    let charged = Charged { key: "a".to_owned(), day: Nano(100), month: Nano(200), total: Nano(300) };
    everybody.rezone(TimeZone::fixed(jiff::tz::offset(-12)), std::slice::from_ref(&charged));
    assert_eq!(spent(), [[100, 200, 300]]);
    // It belongs to a day that is not today any more, and never was: the ledger tells where.
    under_way.unwrap().settle(1, Nano(7));
    assert_eq!(spent()[0][2], 307);
    everybody.charged(&[Charged { day: Nano(107), month: Nano(207), ..charged }]);
    assert_eq!(spent()[0][..2], [107, 207]);
    let (last, _) = everybody.reserve(&claims(&key)).await;
    last.unwrap().settle(1, Nano(1));
    assert_eq!(spent()[0][..2], [108, 208]);
}
