"""The documents: what the specification asks to be documented is, and nothing is stale."""

import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from dev.reference import configuration
from outbox_core.contract.settings import RelaySettings, RetryPolicy, load_relay
from outbox_core.contract.values import format_duration
from outbox_core.model.attempt import ErrorClass
from outbox_core.model.lifecycle import TRANSITIONS, Hold
from outbox_core.observe.metrics import RelayMetrics
from outbox_core.store.lanes import LANES
from outbox_operator.metrics import Metrics as OperatorMetrics
from outbox_relay.cli.main import SECTIONS
from outbox_relay.worker.breaker import TRIAL_BATCH_EVENTS
from outbox_spark.replay_metrics import ReplayMetrics

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *sorted(DOCS.rglob("*.md")),
]
FOLDERS = (
    *("bench", "charts", "core", "crds", "dev", "docs", "examples", "operator"),
    *("relay_image", "spark_image", "tests"),
)
SOURCES = (".py", ".sql", ".md", ".tpl", ".toml", ".lua")
"""Endings of files that the pages name by the end of their path."""
TEXTS = (".py", ".sql", ".yaml")
"""Endings of examples."""


def section(page: str, heading: str) -> str:
    """What stands under a heading, up to the next one that is not below it, on one line."""
    lines = (ROOT / page).read_text().splitlines()
    starts = [n for n, line in enumerate(lines) if line.lstrip("#") == f" {heading}"]
    assert starts, f"{page} has no section {heading!r}"
    level = len(lines[starts[0]]) - len(lines[starts[0]].lstrip("#"))
    body = []
    for line in lines[starts[0] + 1 :]:
        if re.match(rf"#{{1,{level}}} ", line):
            break
        body.append(line)
    return " ".join(" ".join(body).split())


def tables(page: str, heading: str) -> dict[str, list[list[str]]]:
    """The tables right under a heading: by the first column's name, the cells of each row."""
    text = re.split(r"^#+ ", (ROOT / page).read_text(), flags=re.M)
    (under,) = [part for part in text if part.startswith(f"{heading}\n")]
    found = re.findall(r"^\| ([^|]+) \|.*\n\|[-|]+\n((?:\|.*\n)+)", under, re.M)
    return {name: [cells(row) for row in rows.splitlines()] for name, rows in found}


def cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip("|").split("|")]


# Nothing is stale ---------------------------------------------------------------------------


def test_the_configuration_reference_is_current() -> None:
    made = configuration.page()
    assert (DOCS / "configuration.md").read_text() == made, "make docs"


def test_the_configuration_reference_has_every_field_with_its_reason() -> None:
    page = (DOCS / "configuration.md").read_text()
    for field in [*RelaySettings.model_fields.values(), *RetryPolicy.model_fields.values()]:
        assert f"| `{field.alias}` |" in page
        assert " ".join((field.description or "").split()) in page


def test_the_example_settings_are_valid() -> None:
    settings = load_relay(ROOT / "examples" / "relay.yaml")
    assert settings.ordering == "Key"


def test_settings_in_the_documents_are_valid() -> None:
    found = re.findall(r"```yaml\n(.*?)```", (DOCS / "delivery.md").read_text(), re.S)
    assert found
    for n, text in enumerate(found):
        config = "name: n\npublisher: {kafka: {bootstrapServers: 'b:1'}}\n" + text
        check = subprocess.run(
            [sys.executable, "-m", "outbox_relay.cli.main", "validate", "--config", "/dev/stdin"],
            input=config,
            text=True,
            capture_output=True,
        )
        assert check.returncode == 0, f"example {n}: {check.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if target.startswith("https://"):
            continue
        file, _, anchor = target.partition("#")
        other = (page.parent / file).resolve() if file else page
        assert other.exists(), f"{page.name}: {target}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", other.read_text(), re.M)
            anchors = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}
            assert anchor in anchors, f"{page.name}: {target}"


def test_every_command_is_documented() -> None:
    page = (DOCS / "operations.md").read_text()
    for command in (c for group in SECTIONS.values() for c in group):
        assert re.search(rf"`(outbox-relay )?{command.name}\b|outbox-relay {command.name}\b", page)


@pytest.mark.parametrize(
    ("heading", "registry"),
    [
        ("Metrics", RelayMetrics().registry),
        ("Metrics of the operator", OperatorMetrics().registry),
        ("Metrics of a replay", ReplayMetrics().registry),
    ],
)
def test_every_metric_is_documented(heading: str, registry: CollectorRegistry) -> None:
    table = tables("docs/operations.md", heading)["metric"]
    named = {re.findall(r"\w+", name)[0].removesuffix("_total"): kind for name, kind, _ in table}
    assert named == {metric.name: metric.type for metric in registry.collect()}


@pytest.fixture(scope="module")
def files() -> set[str]:
    """Every file and folder of the repository, as pages name them."""
    found = {
        str(path.relative_to(ROOT))
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if "__pycache__" not in path.parts
    }
    return found | {*FOLDERS} | {path.name for path in ROOT.iterdir()}


# Not of conformance.md: it names tests, which a test of its own compares.
@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name != "conformance.md"], ids=lambda page: page.name
)
def test_the_files_that_are_named_exist(page: Path, files: set[str]) -> None:
    named = {
        name.rstrip("/").partition("::")[0]
        for name in re.findall(r"`([\w./-]+(?:::\w+)?)`", page.read_text())
        if not re.search(r"pigeon|NNNN|^bench/results/?$", name)  # examples, and what is written
    }
    whole = {name for name in named if "/" in name and name.partition("/")[0] in FOLDERS}
    assert whole <= files, page
    ends = {name for name in named - whole if name.endswith(SOURCES) and name not in SOURCES}
    unknown = {end for end in ends if not any(f"/{file}".endswith(f"/{end}") for file in files)}
    assert not unknown, page


def test_the_numbers_in_the_texts_are_those_of_the_code() -> None:
    settings = load_relay(ROOT / "examples" / "relay.yaml")
    assert f"one of {LANES} *lanes*" in section("docs/ordering.md", "How it works")
    assert f"{LANES} in all" in section("docs/operations.md", "/status")
    drain = f"so {settings.drain / timedelta(seconds=1):g} s by default"
    assert drain in section("docs/delivery.md", "Draining")
    polling, pause = settings.polling, section("docs/operations.md", "NOTIFY or polling")
    assert f"every {polling.shortest / timedelta(milliseconds=1):g} ms while events" in pause
    assert f"{polling.longest / timedelta(seconds=1):g} s at most" in pause
    assert f"`lease` ({settings.lease / timedelta(seconds=1):g} s)" in section(
        "docs/delivery.md", "Leases and fencing"
    )
    assert f"a batch of {TRIAL_BATCH_EVENTS} events" in section(
        "docs/delivery.md", "Outages: the circuit breaker"
    )


# What the specification requires to be documented -------------------------------------------


def test_em_53_nothing_stronger_than_at_least_once_is_claimed() -> None:
    assert section("docs/delivery.md", "At least once")
    promises = tables("README.md", "What is promised")
    assert [row[0] for row in promises["promised"] if "at least once" in row[0]]
    (denied,) = [row[0] for row in promises["not promised"] if "Exactly once" in row[0]]
    assert "(docs/delivery.md#duplicates)" in denied


def test_em_54_stronger_guarantees_have_conditions_limits_and_failure_modes() -> None:
    text = section("docs/delivery.md", "Exactly-once")
    assert "| way | conditions | costs and limits | when it fails |" in text
    for way in ("Idempotent consumer", "Deduplicating consumer", "Hand the key on"):
        assert f"| {way}: " in text


def test_oo_07_exactly_once_needs_and_trade_offs_are_documented() -> None:
    ways = tables("docs/delivery.md", "Exactly-once")["way"]
    assert len(ways) >= 3
    for way, needs, costs, fails in ways:
        assert all((way, needs, costs, fails))
    assert [way for way, *_ in ways if "(#idempotent-consumers)" in way]


def test_oo_29_stronger_guarantees_are_implied_nowhere() -> None:
    # README denies it; the only other place that mentions it is the section about what it takes.
    examples = [path for path in (ROOT / "examples").rglob("*") if path.suffix in TEXTS]
    pages = {page: page.read_text() for page in [*PAGES, *examples]}
    delivery = pages[DOCS / "delivery.md"]
    pages[DOCS / "delivery.md"] = re.sub(r"## Exactly-once\n.*?(?=\n## )", "", delivery, flags=re.S)
    core, relay = ROOT / "core/outbox_core", ROOT / "relay_image/outbox_relay"
    sql = [core / "schema", core / "schema/migrations", core / "schema/functions"]
    for folder in (*sql, core / "contract", relay / "cli"):
        for file in folder.glob("*.*"):
            pages[file] = file.read_text()
    for page, text in pages.items():
        for found in re.finditer(r"(?i)(exactly|effectively)[- ]once", text):
            assert text[: found.start()].endswith("| not promised | instead |\n|---|---|\n| "), page


def test_tc_16_published_is_documented_not_to_mean_consumed() -> None:
    text = section("docs/delivery.md", "What PUBLISHED means")
    assert "`acks=all`" in text
    assert re.search(r"does not mean [^.]* consumed", text)


def test_oo_20_what_the_client_resends_is_documented_as_one_attempt() -> None:
    text = section("docs/delivery.md", "What one attempt is")
    assert "one attempt per event" in text
    assert "`deliveryTimeout` (30 s)" in text
    assert "**one attempt**" in text
    assert "within the same attempt" in text


def test_oo_31_the_retry_defaults_are_documented_with_their_reasons() -> None:
    text = section("docs/delivery.md", "Retry defaults")
    policy = RetryPolicy()
    for field, value in (
        ("maxAttempts", str(policy.max_attempts)),
        ("baseDelay", format_duration(policy.base_delay)),
        ("maxDelay", format_duration(policy.max_delay)),
        ("jitter", str(policy.jitter)),
        ("maxAge", "none" if policy.max_age is None else format_duration(policy.max_age)),
        ("maxCrashes", str(policy.max_crashes)),
    ):
        assert re.search(rf"\| `{field}` \| {re.escape(value)} \| \w[^|]{{20,}} \|", text), field
    assert "retries + 1" in section("docs/delivery.md", "Overrides per event type")


def test_lc_26_every_way_to_the_end_is_documented() -> None:
    text = section("docs/delivery.md", "Failures and retries")
    for kind in ErrorClass:
        assert f"| `{kind.value}` |" in text


def test_lc_01_the_six_transitions_are_documented_and_no_other() -> None:
    text = section("docs/delivery.md", "Lifecycle")
    found = set(re.findall(r"\| ([A-Z]+) to ([A-Z]+) \|", text))
    assert found == {(a.value, b.value) for a, b in TRANSITIONS}
    for hold in Hold:
        assert f"| {hold.value} |" in text


def test_oo_44_what_blocks_what_is_documented() -> None:
    text = section("docs/ordering.md", "Failures: what waits for what")
    for policy in ("Block", "Continue"):
        assert re.search(rf"\| is DEAD, `onDead: {policy}` \| [^|]+ \| [^|]+ \|", text)
    block = section("docs/ordering.md", "onDead: Block")
    assert "`replay`" in block
    assert "`skip`" in block
    assert "gap" in section("docs/ordering.md", "onDead: Continue")


def test_tc_39_no_global_order_is_promised() -> None:
    text = section("docs/ordering.md", "Scope")
    assert "no global order" in text
    not_promised = section("README.md", "What is promised").partition("| not promised |")[2]
    assert "order across keys" in not_promised


def test_oo_55_replay_is_documented() -> None:
    text = section("docs/operations.md", "Replay")
    for named in ("`replay_id`", "`previous_published_at`", "(ordering.md#replay)"):
        assert named in text
    assert section("docs/ordering.md", "Replay")


def test_oo_59_operators_are_warned_of_duplicates_and_order_before_a_replay() -> None:
    text = section("docs/operations.md", "Replay")
    before, dry_run, _ = text.partition("--dry-run")
    assert dry_run
    assert "**Duplicates.**" in before
    assert "**Order.**" in before


def test_oo_08_what_synchronous_commit_off_means_is_documented() -> None:
    text = section("docs/producers.md", "Durability")
    assert "`synchronous_commit = off`" in text
    assert "`outbox-relay check`" in text
    promised = tables("README.md", "What is promised")["promised"]
    assert [row for row in promised if "(docs/producers.md#durability)" in row[1]]


def test_ek_04_the_metadata_keys_of_actions_are_documented() -> None:
    text = section("docs/producers.md", "A record that is never published")
    for key in ("action_id", "action_name", "action_params", "started_at"):
        assert f"| `{key}`" in text


# The deduplicating consumer -----------------------------------------------------------------


def test_tc_19_consumers_must_be_idempotent_and_are_shown_how() -> None:
    text = section("docs/delivery.md", "Idempotent consumers")
    assert "idempotent" in text
    assert "event's id" in text
    shown = re.search(r"```python\n(.*?)```", (DOCS / "delivery.md").read_text(), re.S)
    assert shown
    code = (ROOT / "examples" / "dedup_consumer.py").read_text()
    for part in shown[1].strip().split("\n\n"):
        assert part in code  # what is shown is what runs
