"""
The events in some state, in the order of their seq. Called by `listing`.

There is a branch for each place where a delivery can be (schema/functions/batch.sql): rows of its
own come from their state's small index, members of a batch and of what was published together from
those. Each branch has the first rows of a page, so the page is among those of all branches.
"""

from collections.abc import Iterator

from psycopg import sql

from outbox_core.model.lifecycle import State

OWN_ROWS = sql.SQL("""(
    SELECT d.seq FROM outbox.delivery d {event}
     WHERE d.relay_id = r.id AND {state} AND {where}
     ORDER BY d.seq {direction} LIMIT %(rows)s)
""")
IN_LINE = sql.SQL("""(
    SELECT d.seq
      FROM generate_series(CASE r.ordering WHEN 'Key' THEN 0 ELSE -1 END,
                           CASE r.ordering WHEN 'Key' THEN outbox.lanes() - 1 ELSE -1 END)
               AS own (lane),
           LATERAL (SELECT d.seq FROM outbox.delivery d {event}
                     WHERE d.relay_id = r.id AND d.lane = own.lane
                       AND d.state = 'PENDING' AND d.hold = 'NONE' AND {where}
                     ORDER BY d.seq {direction} LIMIT %(rows)s) d
     ORDER BY d.seq {direction} LIMIT %(rows)s)
""")
OWN_CONDITIONS = {
    State.PENDING: ("d.state = 'PENDING' AND d.hold IN ('TIME', 'SUSPECT')", "d.hold = 'KEY'"),
    State.CLAIMED: ("d.state = 'CLAIMED'",),
    State.PUBLISHED: ("d.state = 'PUBLISHED'",),
    State.DEAD: ("d.state = 'DEAD'",),
}

IN_FLIGHT = sql.SQL("""(
    SELECT d.seq FROM outbox.batch b CROSS JOIN LATERAL unnest(b.seqs) AS d (seq) {event_of_member}
     WHERE b.relay_id = r.id AND {where_together}
     ORDER BY d.seq {direction} LIMIT %(rows)s)
""")

# What was published together overlaps: two processes claim at the same time. So the seqs are cut
# into stretches, each from one row's last_seq to the next one's; every member is in one of them.
# They are read in order, and of each the members of all rows that reach into it, until there are
# enough for the page. The highest is the first that reaches the upper bound. `neighbour` finds the
# next smaller last_seq. Each OFFSET 0 is a look-up that the planner must not turn around: it may
# take all events of a tenant for few, and then read them once per stretch.
PUBLISHED_TOGETHER = sql.SQL("""(
    SELECT d.seq
      FROM (SELECT p.last_seq AS high,
                   {neighbour}(p.last_seq, 1, %(published_low)s::bigint - 1)
                       OVER (ORDER BY p.last_seq {direction}) AS below
              FROM outbox.published p
             WHERE p.relay_id = r.id AND p.last_seq >= %(published_low)s
               AND p.last_seq <= coalesce((
                       SELECT top.last_seq FROM outbox.published top
                        WHERE top.relay_id = r.id AND top.last_seq >= %(published_high)s
                        ORDER BY top.last_seq LIMIT 1), %(published_high)s)) stretch
     CROSS JOIN LATERAL (
           SELECT m.seq, coalesce(m.at, p.first_at) AS published_at
             FROM outbox.published p, unnest(p.seqs, p.times) AS m (seq, at)
            WHERE int8range(p.first_seq, p.last_seq, '[]')
                  && int8range(stretch.below, stretch.high, '(]')
              AND p.relay_id + 0 = r.id  -- not by the index of all that the relay published
              AND m.seq > stretch.below AND m.seq <= stretch.high AND {meanwhile}
           OFFSET 0) d {event_of_member}
     WHERE {where_together}
     ORDER BY stretch.high {direction} FETCH FIRST (%(rows)s) ROWS WITH TIES)
""")
EVENT_OF_MEMBER = sql.SQL("""
    CROSS JOIN LATERAL (SELECT FROM outbox.event e
                         WHERE e.seq = d.seq AND {on_event} OFFSET 0) event
""")
MEANWHILE = {
    "published_after": "p.last_at >= %(published_after)s",
    "published_before": "p.first_at < %(published_before)s",
}
"""Filters: some members may have been published in that period."""


def branches_of(
    states: tuple[State, ...], how: dict[str, sql.Composable], attempted_once: bool, timed: bool
) -> Iterator[sql.Composable]:
    """
    `attempted_once`: deliveries that needed one attempt only may be among them; the others all have
    a row of their own. `timed`: only those that are published in some period.
    """
    if set(states) == set(State):
        yield OWN_ROWS.format(**how, state=sql.SQL("true"))
    else:
        if State.PENDING in states:
            yield IN_LINE.format(**how)
        for state in dict.fromkeys(states):
            for condition in OWN_CONDITIONS[state]:
                yield OWN_ROWS.format(**how, state=sql.SQL(condition))
    if State.CLAIMED in states and attempted_once and not timed:
        yield IN_FLIGHT.format(**how)
    if State.PUBLISHED in states and attempted_once:
        yield PUBLISHED_TOGETHER.format(**how)
