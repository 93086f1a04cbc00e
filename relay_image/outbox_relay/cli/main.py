"""
`outbox-relay`: the commands in one group, and their exit codes.

Exit codes: 0 done; 1 an error that its text explains, or something was refused or failed a check;
2 the command line is wrong; 130 interrupted. In a container the error is also written to its
termination message, see `cli.termination`.
"""

import os
import sys
from collections.abc import Sequence

import click

from outbox_core import __version__
from outbox_core.errors import Defect, OutboxError, SettingsError
from outbox_relay.cli import (
    check,
    inspect,
    intervene,
    lineage,
    problems,
    replays,
    retire,
    serve,
    termination,
)

SECTIONS = {
    "Run": [serve.migrate, serve.run, serve.reap, serve.validate, check.check],
    "Inspect (read-only, no relay needs to run)": [
        inspect.list_,
        inspect.show,
        problems.dead,
        problems.stuck,
        problems.counts,
        lineage.trace,
        lineage.causes,
        lineage.effects,
        inspect.audit,
        inspect.relays,
        replays.replays,
    ],
    "Intervene (each with --reason, each in the audit)": [
        intervene.retry,
        intervene.reschedule,
        intervene.declare_dead,
        intervene.replay,
        intervene.skip,
        retire.retire,
    ],
}


class Sections(click.Group):
    """Help that lists the commands by purpose."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(c.name or "", c.get_short_help_str(limit=90)) for c in commands]
                )


@click.group(
    cls=Sections,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Examples:
  outbox-relay migrate --dsn postgresql://owner@db/shop
  outbox-relay run --config relay.yaml
  export OUTBOX_DSN=postgresql://reader@db/shop
  outbox-relay list --state DEAD --type 'order.*' --created-after 2h
  outbox-relay dead
  outbox-relay replay 3f2b... --reason 'topic created, OPS-42'
""",
)
@click.version_option(__version__, prog_name="outbox-relay")
def cli() -> None:
    """The transactional outbox in PostgreSQL: publish, inspect, intervene.

    The database comes from --dsn, from --config relay.yaml, or from $OUTBOX_DSN.
    """


for section in SECTIONS.values():
    for command in section:
        cli.add_command(command)


def main(args: Sequence[str] | None = None) -> int:
    args = sys.argv[1:] if args is None else args
    command = next(iter(args), "")
    try:
        code = cli.main(args=args, prog_name="outbox-relay", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        termination.report(command, SettingsError(error.format_message()))
        return error.exit_code
    except click.Abort:
        return 130
    except BrokenPipeError:
        # The reader of our output has closed the pipe. What is still buffered is discarded.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OutboxError as error:
        click.echo(f"error: {error}", err=True)
        termination.report(command, error)
        return 1
    except Exception as error:
        termination.report(command, Defect(f"{error!r}: the log has the stack trace"))
        raise
    return code if isinstance(code, int) else 0


if __name__ == "__main__":
    sys.exit(main())
