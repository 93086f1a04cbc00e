"""
Every statement that a relay, keeper, reaper, replay or person sends, and the scene that sends it.

`test_statements` records all scenes and fails when something is sent that is not in this table, or
when something in it is not sent any more: so no statement is forgotten.
"""

import re
from typing import NamedTuple

from chaos.scenes import PERSON, REPLAY
from fixtures.losing import Loss, Point
from fixtures.wire import CONNECT, Trip

BOTH = ("None", "Key")
KEY = ("Key",)
ALL_LOSSES = tuple(Loss)
ALONE = "^$"
"""Within no transaction of several statements."""
LOST_CLAIM = "worker/claim"
"""Whose lost answer leads to a recovery."""
OF_A_READ = (Loss.CUT_AFTER, Loss.SWALLOW, Loss.LATE)
"""Nothing is committed: the others differ in nothing."""


class Statement(NamedTuple):
    name: str
    application: str
    """A pattern, as all that follow: of who sends it."""
    text: str
    scene: str
    within: str = ""
    """Of what the same transaction did before."""
    orderings: tuple[str, ...] = BOTH
    relays: tuple[int, ...] = (1, 3)
    losses: tuple[Loss, ...] = ALL_LOSSES
    nth: tuple[int, ...] = (1,)
    after: str = ""
    """Sent only after another statement's answer was lost: the name of that one."""
    after_loss: Loss = Loss.CUT_AFTER

    def preludes(self) -> list[Point]:
        """What is lost first, so that it is sent at all."""
        if not self.after:
            return []
        before = BY_NAME[self.after]
        return [*before.preludes(), Point(before.matches, self.after_loss)]

    def matches(self, trip: Trip) -> bool:
        return bool(
            re.search(self.application, trip.application)
            and re.search(self.text, trip.text)
            and re.search(self.within, "; ".join(trip.within))
        )


def of_worker(
    name: str, text: str, scene: str = "flowing", nth: tuple[int, ...] = (1,)
) -> Statement:
    return Statement(f"worker/{name}", " worker ", text, scene, ALONE, nth=nth)


def of_recovery(
    name: str,
    text: str,
    within: str = "",
    orderings: tuple[str, ...] = BOTH,
    losses: tuple[Loss, ...] = ALL_LOSSES,
    nth: tuple[int, ...] = (1,),
) -> Statement:
    """Of a worker that does not know what it has claimed."""
    return Statement(
        *(f"worker/{name}", " worker ", text, "flowing", within),
        orderings=orderings, losses=losses, nth=nth, after=LOST_CLAIM,
    )  # fmt: skip


def of_doubt(name: str, text: str, within: str, losses: tuple[Loss, ...] = ALL_LOSSES) -> Statement:
    """Of a keeper that does not know which lanes it has."""
    return Statement(
        *(f"keeper/{name}", " keeper$", text, "joining", within),
        orderings=KEY, relays=(1,), losses=losses, after="keeper/acquire",
    )  # fmt: skip


def of_late(name: str, text: str, within: str, losses: tuple[Loss, ...]) -> Statement:
    """Of a keeper that waits for a claim which may still be made, and gives it back."""
    return Statement(
        *(f"keeper/{name}", " keeper$", text, "flowing", within),
        orderings=("None",), losses=losses, after=LOST_CLAIM, after_loss=Loss.LATE,
    )  # fmt: skip


def of_keeper(
    name: str,
    text: str,
    scene: str = "flowing",
    orderings: tuple[str, ...] = BOTH,
    relays: tuple[int, ...] = (1, 3),
    losses: tuple[Loss, ...] = ALL_LOSSES,
    nth: tuple[int, ...] = (1,),
) -> Statement:
    return Statement(
        *(f"keeper/{name}", " keeper$", text, scene, ALONE),
        orderings=orderings, relays=relays, losses=losses, nth=nth,
    )  # fmt: skip


def of(who: str, application: str, scene: str, *rows: tuple[str, str]) -> list[Statement]:
    """Of one who does not work for a relay's events: with one number of relays each."""
    made = []
    for name, text in rows:
        reads = OF_A_READ if name.startswith("read ") else ALL_LOSSES
        made.append(Statement(f"{who}/{name}", application, text, scene, relays=(3,), losses=reads))
    return made


def connecting(
    who: str,
    application: str,
    scene: str,
    relays: tuple[int, ...] = (1, 3),
    registered: bool = True,
) -> list[Statement]:
    rows = [
        ("connect", f"^{CONNECT}$"),
        ("is pooled", r"^SELECT pg_backend_pid\(\)$"),
        ("timeout", "set_config"),
    ]
    if registered:
        rows.append(("is registered", IS_REGISTERED))
    return [
        Statement(f"{who}/{name}", application, text, scene, relays=relays, losses=OF_A_READ)
        for name, text in rows
    ]


IS_REGISTERED = r"^SELECT EXISTS \(SELECT 1 FROM outbox\.relay .*NULL\)\)$"
CLAIMED_ROWS = r"^SELECT d\.seq, d\.claim_token"
UNPACK_OVERDUE = r"^DELETE FROM outbox\.batch"
UNPACK = r"^SELECT outbox\.unpack\("
UNPACKED = rf"(?:{UNPACK_OVERDUE[1:]}|{UNPACK[1:]})"
LOOKED = rf"^BEGIN; {UNPACKED}[^;]*; {CLAIMED_ROWS[1:]}"
FENCE_LANES = r"^UPDATE outbox\.lane SET token = \$1"
FENCE_HOLDER = r"^UPDATE outbox\.holder SET token"
EXPIRED = r"^SELECT token, owner FROM outbox\.holder"


def taking_back(who: str, application: str, scene: str) -> list[Statement]:
    """What a reaper does, wherever it runs."""
    rows: list[tuple[str, str, str, tuple[str, ...], tuple[Loss, ...]]] = [
        ("end frozen", "pg_terminate_backend", "", BOTH, ALL_LOSSES),
        ("begin reaping", "^BEGIN", "", BOTH, OF_A_READ),
        ("expired", EXPIRED, "", KEY, OF_A_READ),
        ("held", r"^SELECT lane FROM outbox\.lane", "", KEY, OF_A_READ),
        ("unpack lanes", UNPACK_OVERDUE, EXPIRED[1:], KEY, ALL_LOSSES),
        ("overdue of lanes", CLAIMED_ROWS, EXPIRED[1:], KEY, OF_A_READ),
        ("take over", "finish_failed", EXPIRED[1:], KEY, ALL_LOSSES),
        ("free lanes", r"DELETE FROM outbox\.holder", EXPIRED[1:], KEY, ALL_LOSSES),
        ("free orphans", r"^UPDATE outbox\.lane l SET token = NULL", EXPIRED[1:], KEY, ALL_LOSSES),
        ("commit takeover", "^COMMIT", EXPIRED[1:], KEY, ALL_LOSSES),
        ("unpack overdue", UNPACK_OVERDUE, "^BEGIN$", BOTH, ALL_LOSSES),
        ("overdue", CLAIMED_ROWS, rf"^BEGIN; {UNPACK_OVERDUE[1:]}", BOTH, OF_A_READ),
        ("take back", "finish_failed", CLAIMED_ROWS[1:], ("None",), ALL_LOSSES),
        ("commit reaping", "^COMMIT", LOOKED, BOTH, ALL_LOSSES),
    ]
    return [
        Statement(f"{who}/{n}", application, text, scene, within, orderings, losses=losses)
        for n, text, within, orderings, losses in rows
    ]


def counting(who: str, application: str, scene: str) -> list[Statement]:
    """A look at the backlog."""
    return of(
        *(who, application, scene),
        ("read begin", "^BEGIN$"),
        ("read settings", "^SET LOCAL enable_seqscan"),
        ("read now", r"^SELECT now\(\)"),
        ("read heads", "^WITH top"),
        ("read numbers", r"^SELECT count\(\*\)"),
        ("read batches", r"^SELECT coalesce\(sum\(cardinality"),
        ("read age", r"^SELECT coalesce\(extract"),
        ("read errors", r"^SELECT e\.last_error"),
        ("read commit", "^COMMIT$"),
    )


WORKERS = [
    *connecting("worker", " worker ", "flowing"),
    of_worker("fail and claim", r"finish_failed.*outbox\.turn\(", "failing"),
    of_worker(
        "finish and claim", r"^(?!.*finish_failed).*outbox\.turn\(.*published => ", nth=(1, 3)
    ),
    of_worker("claim", r"^(?!.*finish_failed).*outbox\.turn\((?!.*published => )", nth=(1, 4)),
    of_worker("fail", r"finish_failed(?!.*outbox\.turn\()", "breaking"),
    of_worker("finish", r"finish_published(?!.*outbox\.turn\()", "stopping"),
    of_worker("expire", r"outbox\.expire\(", "expiring"),
    of_recovery("begin recovery", "^BEGIN$", losses=OF_A_READ),
    of_recovery("fence lanes", FENCE_LANES, orderings=KEY, nth=(1, 2)),
    of_recovery("fence holder", FENCE_HOLDER, orderings=KEY),
    of_recovery("commit fence", "^COMMIT", FENCE_HOLDER[1:], orderings=KEY),
    Statement(
        "worker/is holder", " (worker .|keeper)$",
        r"^SELECT EXISTS \(SELECT 1 FROM outbox\.holder WHERE token = \$1\)$", "flowing",
        orderings=KEY, losses=OF_A_READ, after="worker/commit fence",
    ),
    of_recovery("unpack lost", UNPACK),
    of_recovery("look for lost", CLAIMED_ROWS, losses=OF_A_READ),
    of_recovery("give back lost", "finish_failed", LOOKED),
    of_recovery("commit recovery", "^COMMIT", LOOKED),
]  # fmt: skip
KEEPERS = [
    *connecting("keeper", " keeper$", "flowing"),
    of_keeper("join", r"^INSERT INTO outbox\.holder", orderings=KEY),
    of_keeper("seen", r"^SELECT EXISTS \(SELECT 1 FROM outbox\.holder .* ARRAY", orderings=KEY,
              losses=OF_A_READ, nth=(1, 2)),
    of_keeper("acquire", "^WITH me AS", "joining", orderings=KEY, nth=(1,)),
    of_keeper("acquire later", "^WITH me AS", "joining", orderings=KEY, relays=(3,), nth=(3,)),
    of_keeper("renew lanes", r"^UPDATE outbox\.holder SET expires_at", orderings=KEY, nth=(1, 2)),
    of_keeper("let go", r"^UPDATE outbox\.lane SET token = NULL", "joining", orderings=KEY,
              relays=(3,), nth=(1, 2)),
    *taking_back("keeper", " keeper$", "inheriting"),
    of_keeper("leave", r"DELETE FROM outbox\.holder", "stopping", orderings=KEY),
    of_keeper("renew claims", r"outbox\.renew\(", "renewing", nth=(1, 2)),
    of_keeper("chores", r"^SELECT \(SELECT to_jsonb.*outbox\.unmatched", losses=OF_A_READ,
              nth=(1, 2)),
    of_keeper("merge", "merge_published", "merging", nth=(1, 2)),
    of_keeper("sweep", "sweep_keys", "blocking", orderings=KEY),
    of_doubt("fence lanes", FENCE_LANES, "^BEGIN$"),
    of_doubt("fence holder", FENCE_HOLDER, "^BEGIN; UPDATE"),
    of_doubt("fence lanes again", FENCE_LANES, FENCE_HOLDER[1:]),
    of_doubt("commit fence", "^COMMIT", FENCE_HOLDER[1:]),
    of_late("unpack late claim", UNPACK, "^BEGIN$", ALL_LOSSES),
    of_late("look for late claim", CLAIMED_ROWS, rf"^BEGIN; {UNPACK[1:]}", OF_A_READ),
    of_late("give back late claim", "finish_failed", LOOKED, ()),  # only if it came true
    of_late("commit late claim", "^COMMIT", LOOKED, ALL_LOSSES),
    of_keeper("route", "route_unmatched", "registering"),
    of_keeper("relane", r"outbox\.relane", "relaning"),
]  # fmt: skip
REAPERS = [
    *connecting("reaper", "^outbox-reap", "reaping", relays=(3,), registered=False),
    *taking_back("reaper", "^outbox-reap", "reaping"),
    *of(
        *("reaper", "^outbox-reap", "reaping"),
        ("read version table", "to_regclass"),
        ("read version", r"max\(version\)"),
        ("read relay", r"^SELECT id FROM outbox\.relay"),
    ),
]
STARTS = [
    *connecting("start", " start$", "flowing", relays=(3,), registered=False),
    Statement(  # after its first connection for lanes was lost, it starts once more
        "start/is registered", " start$", IS_REGISTERED, "joining",
        orderings=KEY, relays=(1,), losses=OF_A_READ, after="keeper/acquire",
    ),
    *of(
        *("start", " start$", "registering"),
        ("read version table", "to_regclass"),
        ("read version", r"max\(version\)"),
        ("read begin", "^BEGIN$"),
        ("read ordering", r"^SELECT ordering FROM outbox\.relay WHERE name"),
        ("read patience", "^SET LOCAL statement_timeout"),
        ("register", "register_relay"),
        ("read registered", r"^SELECT id, version FROM outbox\.relay"),
        ("commit", "^COMMIT$"),
    ),
]  # fmt: skip
REPORTS = [
    *connecting("status", " status$", "reporting", relays=(3,)),
    *counting("status", " status$", "reporting"),
    *of("status", " status$", "reporting", ("read published", r"^SELECT coalesce\(sum\(p\.size")),
]
LISTENERS = [
    *connecting("listener", " listener$", "listening", relays=(3,)),
    *of("listener", " listener$", "listening", ("listen", "^LISTEN")),
]
REPLAYS = of(
    *("replay", f"^{REPLAY}$", "replaying"),
    ("read connect", f"^{CONNECT}$"),
    ("read begin of age", "^SET LOCAL enable_seqscan"),
    ("read now", r"^SELECT now\(\)"),
    ("read age", r"^SELECT coalesce\(extract"),
    ("read begin", "^BEGIN$"),
    ("read relay", r"^SELECT id, name, ordering"),
    ("read selection", "^SELECT '' ~"),
    ("begin", r"^INSERT INTO outbox\.replay "),
    ("forget plans", "forget_plans"),
    ("resume", r"^UPDATE outbox\.replay SET stopped_at = NULL"),
    ("read replay", r"^SELECT \* FROM outbox\.replay WHERE"),
    ("read settings", "^SET LOCAL statement_timeout"),
    ("plan", "^WITH made AS"),
    ("planned", r"^UPDATE outbox\.replay SET by_key"),
    ("audit", r"^INSERT INTO outbox\.audit"),
    ("pace", r"^UPDATE outbox\.replay r SET pace"),
    ("stop", r"^UPDATE outbox\.replay SET stopped_at = now"),
    ("take", "replay_take"),
    ("finish", r"^UPDATE outbox\.replay SET finished_at"),
)
REPLAYS += [
    Statement(
        "replay/commit", f"^{REPLAY}$", "^COMMIT$", "replaying", relays=(3,), nth=(1, 2, 3, 4)
    ),
    Statement("replay/take later", f"^{REPLAY}$", "replay_take", "replaying", nth=(2, 3)),
]
PERSONS = [
    *of(
        *("person", f"^{PERSON}$", "intervening"),
        ("read connect", f"^{CONNECT}$"),
        ("read events", r"^SELECT e\.event_id"),
        ("read begin", "^BEGIN$"),
        ("read patience", "^SET LOCAL lock_timeout"),
        ("read lanes", r"^SELECT l\.token"),
        ("lock", r"^SELECT r\.id FROM outbox\.event"),
        ("read delivery", r"^SELECT r\.id, e\.seq"),
        ("retry", r"^UPDATE outbox\.delivery d SET available_at"),
        ("claim", r"^UPDATE outbox\.delivery d SET state = 'CLAIMED'"),
        ("declare dead", r"^UPDATE outbox\.delivery d SET state = 'DEAD'"),
        ("replay", "replay_one"),
        ("release", "release_behind"),
        ("audit", r"^INSERT INTO outbox\.audit \(actor, action, relay, event_id"),
    ),
    Statement("person/hold up", f"^{PERSON}$", r"^SELECT 1 FROM outbox\.holder", "intervening",
              orderings=KEY, relays=(3,)),
    Statement("person/skip", f"^{PERSON}$", "SET hold = 'NONE' WHERE", "intervening",
              orderings=KEY, relays=(3,)),
    Statement("person/commit", f"^{PERSON}$", "^COMMIT$", "intervening", "lock_timeout",
              nth=(1, 2, 3, 4, 5, 6, 7), relays=(3,)),
    *of(
        *("person", f"^{PERSON}$", "retiring"),
        ("read found", r"^SELECT id FROM outbox\.relay"),
        ("read retired", r"^SELECT r\.id FROM outbox\.relay"),
        ("read at work", "at_work"),
        ("retire", "retire_relay"),
        ("xid", "pg_current_xact_id"),
        ("read horizon", "^SELECT pg_snapshot_xmin"),
        ("drop", "drop_waiting"),
        ("read in flight", "^SELECT EXISTS"),
        ("note drop", r"^INSERT INTO outbox\.audit \(actor, action, relay, reason"),
    ),
    *counting("person", f"^{PERSON}$", "retiring")[1:],
]  # fmt: skip
TABLE = [*WORKERS, *KEEPERS, *REAPERS, *STARTS, *REPORTS, *LISTENERS, *REPLAYS, *PERSONS]
BY_NAME = {statement.name: statement for statement in TABLE}


def unknown(trips: list[Trip]) -> list[Trip]:
    """Those that are not in the table."""
    return [t for t in dict.fromkeys(trips) if not any(s.matches(t) for s in TABLE)]
