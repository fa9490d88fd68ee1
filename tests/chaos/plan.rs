//! What a seed stands for: each server, and of each call the fault, the limit and the caller.
//!
//! A plan depends on the seed and the number of the call alone, never on the clock or on other calls.

use std::ops::Range;
use std::time::Duration;

/// Numbers that follow from a seed (SplitMix64).
pub(crate) struct Random(u64);

impl Random {
    /// The numbers of one `thing` of a seed.
    pub(crate) fn of(seed: u64, thing: u64) -> Self {
        let mut random = Self(seed ^ thing.wrapping_mul(0xD6E8_FEB8_6659_FD93));
        random.next();
        random
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub(crate) fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.below(to - from))
    }
}

/// The size of a run.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    pub(crate) seed: u64,
    /// Of each kind.
    pub(crate) servers: usize,
    pub(crate) calls: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    Stdio,
    Http,
}

/// One server. The first half of them are processes, every other one is modern.
#[derive(Clone, Copy)]
pub(crate) struct Server {
    pub(crate) index: usize,
    pub(crate) way: Way,
    pub(crate) modern: bool,
    pub(crate) max_in_flight: usize,
    pub(crate) max_waiting: usize,
}

impl Server {
    pub(crate) fn name(&self) -> String {
        let way = match self.way {
            Way::Stdio => "stdio",
            Way::Http => "http",
        };
        format!("{way}-{}", self.index)
    }
}

impl Size {
    pub(crate) fn servers(&self) -> Vec<Server> {
        (0..2 * self.servers).map(|index| self.server(index)).collect()
    }

    fn server(&self, index: usize) -> Server {
        let mut random = Random::of(self.seed, (1 << 40) + index as u64);
        let (max_in_flight, max_waiting) =
            [(256, 1024), (256, 1024), (3, 1024), (6, 1)][random.below(4) as usize];
        Server {
            index,
            way: if index < self.servers {
                Way::Stdio
            } else {
                Way::Http
            },
            modern: index.is_multiple_of(2),
            max_in_flight,
            max_waiting,
        }
    }

    /// Which server a call is for.
    pub(crate) fn server_of(&self, call: usize) -> usize {
        call % (2 * self.servers)
    }

    /// The numbers of calls that find out, in the end, whether each server still serves: of each server, the ones
    /// behind the first that goes well are not made.
    pub(crate) fn last_calls(&self) -> Range<usize> {
        self.calls..self.calls + LAST * 2 * self.servers
    }

    pub(crate) fn plan(&self, call: usize) -> Plan {
        if self.last_calls().contains(&call) {
            return Plan::last();
        }
        let server = self.server(self.server_of(call));
        let mut random = Random::of(self.seed, call as u64);
        let fault = Fault::pick(&server, &mut random);
        let limit = match fault {
            Fault::Hang | Fault::Late => random.millis(200, 600),
            _ => random.millis(3_000, 9_000),
        };
        Plan {
            fault,
            limit,
            as_total: random.below(8) == 0,
            pause: match fault {
                Fault::Late => limit + random.millis(50, 150),
                Fault::Outage => random.millis(50, 400),
                _ => random.millis(1, 100),
            },
            leaves: (random.below(50) == 0).then(|| random.millis(0, 50)),
            listeners: match fault {
                Fault::Progress => 1 + random.below(3),
                _ => u64::from(random.below(20) == 0),
            },
        }
    }
}

/// One call.
pub(crate) struct Plan {
    pub(crate) fault: Fault,
    /// By when it must be over.
    pub(crate) limit: Duration,
    /// It is the total that is limited, not the wait for the answer.
    pub(crate) as_total: bool,
    /// How long what the fault does takes.
    pub(crate) pause: Duration,
    /// When its caller drops it.
    pub(crate) leaves: Option<Duration>,
    /// How many listen to its progress.
    pub(crate) listeners: u64,
}

impl Plan {
    fn last() -> Self {
        Self {
            fault: Fault::None,
            limit: Duration::from_secs(30),
            as_total: false,
            pause: Duration::ZERO,
            leaves: None,
            listeners: 0,
        }
    }
}

/// What a server does with a call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Fault {
    /// Runs it and answers.
    None,
    /// Runs it and answers that the tool failed.
    ToolError,
    /// Runs it and answers with an error.
    RpcError,
    /// Refuses it unrun with an error.
    Invalid,
    /// Runs it, tells progress, answers after a while.
    Progress,
    /// Runs it and never answers.
    Hang,
    /// Runs it and answers when the limit has passed.
    Late,
    /// Runs it and answers twice.
    Twice,
    /// Runs it and answers behind hundreds of notifications.
    Flood,
    /// Runs it and answers behind lines that are no messages, and answers to nobody.
    Garbage,
    /// Runs it and answers behind 128 KiB of stderr.
    Stderr,
    /// Runs it and answers; reads nothing for a while.
    Deaf,
    /// Ends, or breaks the connection, before it runs it.
    EndBefore,
    /// The same after it has run it.
    EndAfter,
    /// Runs it, writes half the answer, ends or breaks the connection.
    Half,
    /// Refuses it for its version, the first time.
    Version,
    /// Has lost its session, the first time.
    Expired,
    /// Refuses it with 503 and `Retry-After`, the first time.
    Busy,
    /// Refuses it with 403 and a page.
    Forbidden,
    /// Runs it and answers with 502 and a page.
    Gateway,
    /// Runs it and answers with 200 and a page.
    Page,
    /// Breaks all its connections and does not listen for a while, before it runs it.
    Outage,
}

impl Fault {
    /// The word for it, and how many of a thousand calls over stdio and HTTP have it.
    const TABLE: [(Self, &str, u64, u64); 22] = [
        (Self::None, "none", 0, 0), // all the rest
        (Self::ToolError, "tool-error", 10, 10),
        (Self::RpcError, "rpc-error", 10, 10),
        (Self::Invalid, "invalid", 10, 10),
        (Self::Progress, "progress", 15, 15),
        (Self::Hang, "hang", 5, 5),
        (Self::Late, "late", 5, 5),
        (Self::Twice, "twice", 10, 10),
        (Self::Flood, "flood", 4, 4),
        (Self::Garbage, "garbage", 10, 10),
        (Self::Stderr, "stderr", 4, 0),
        (Self::Deaf, "deaf", 5, 5),
        (Self::EndBefore, "end-before", 4, 6),
        (Self::EndAfter, "end-after", 4, 6),
        (Self::Half, "half", 4, 6),
        (Self::Version, "version", 10, 10),
        (Self::Expired, "expired", 0, 8),
        (Self::Busy, "busy", 0, 6),
        (Self::Forbidden, "forbidden", 0, 6),
        (Self::Gateway, "gateway", 0, 6),
        (Self::Page, "page", 0, 6),
        (Self::Outage, "outage", 0, 4),
    ];

    pub(crate) fn all() -> impl Iterator<Item = Self> {
        Self::TABLE.into_iter().map(|(fault, ..)| fault)
    }

    pub(crate) fn word(self) -> &'static str {
        Self::TABLE[self as usize].1
    }

    pub(crate) fn of_word(word: &str) -> Self {
        let found = Self::all().find(|fault| fault.word() == word);
        found.unwrap_or_else(|| panic!("no fault is called {word}"))
    }

    fn pick(server: &Server, random: &mut Random) -> Self {
        let mut at = random.below(1000);
        for (fault, _, stdio, http) in Self::TABLE {
            let share = match server.way {
                Way::Stdio => stdio,
                Way::Http => http,
            };
            if at < share {
                let fits = match fault {
                    Self::Version => server.modern,
                    Self::Expired => !server.modern,
                    _ => true,
                };
                return if fits { fault } else { Self::None };
            }
            at -= share;
        }
        Self::None
    }

    /// Whether the server runs a call that this strikes.
    pub(crate) fn runs(self) -> bool {
        !self.is_once()
            && !matches!(
                self,
                Self::Invalid | Self::Forbidden | Self::EndBefore | Self::Outage
            )
    }

    /// Whether it strikes a call once alone: the next time the server answers it.
    pub(crate) fn is_once(self) -> bool {
        matches!(self, Self::Version | Self::Expired | Self::Busy)
    }
}

/// How often a server is tried in the end.
const LAST: usize = 20;
