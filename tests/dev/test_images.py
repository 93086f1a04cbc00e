"""The image tool: what is built again, what is handed in, what is said when it cannot go on."""

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from dev.images import __main__ as command_line
from dev.images import base, build, docker, engines
from dev.images.buildah import Buildah, must_be_root
from dev.images.cache import Cache, Image, digest
from dev.images.commands import CommandFailed, run
from dev.images.errors import ImageError
from dev.images.handed import Handed, handed
from dev.images.keys import key
from dev.images.orders import Order, arguments
from dev.images.progress import Report, duration, step
from dev.images.recipes import ROOT, STEPS, context, recipes, version, what_is_installed

PYTHON_IMAGES = ("relay", "operator", "spark")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A copy of all that goes into images, to be changed."""
    copy = tmp_path / "clone"
    for recipe in recipes().values():
        for source in (recipe.dockerfile, *recipe.sources, "dev/kafka/pom.xml"):
            target = copy / source
            target.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, target, dirs_exist_ok=True)
            else:
                shutil.copy2(ROOT / source, target)
    return copy


@pytest.fixture
def jars(tmp_path: Path) -> Path:
    """A cache as `dev/setup` leaves it, with a very small Kafka."""
    libs = tmp_path / "cache" / recipes()["kafka"].from_cache["kafka-libs"]
    libs.mkdir(parents=True)
    (libs / "kafka.jar").write_text("a broker")
    return tmp_path / "cache"


def keys(root: Path, cache: Path, base: str = "base", index: str = "") -> dict[str, str]:
    return {
        name: key(context(recipe, root, cache), base, recipe.reference(version(root)), index)
        for name, recipe in recipes(root).items()
    }


def changed(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {name for name in before if before[name] != after[name]}


# What is built again -------------------------------------------------------------------------


def test_a_clean_clone_builds_nothing_that_another_has_built(clone: Path, jars: Path) -> None:
    before = keys(clone, jars)
    for path in clone.rglob("*"):
        os.utime(path, (1, 1))  # a checkout sets times as it likes
        if path.is_file() and not path.stat().st_mode & 0o100:
            path.chmod(0o600)  # and modes follow the umask
    (clone / "relay_image/outbox_relay/__pycache__").mkdir(exist_ok=True)
    (clone / "relay_image/outbox_relay/__pycache__/cli.cpython-311.pyc").write_text("compiled")
    assert keys(clone, jars) == before


@pytest.mark.parametrize(
    ("file", "images"),
    [
        ("core/outbox_core/errors.py", {"relay", "operator", "spark"}),
        ("relay_image/Dockerfile", {"relay"}),
        ("operator/outbox_operator/__init__.py", {"operator"}),
        ("spark_image/outbox_spark/__init__.py", {"spark"}),
        ("spark_image/entrypoint", {"spark"}),
        ("spark_image/driver", {"spark"}),
        ("dev/images/steps/spark", {"spark"}),
        ("dev/images/steps/java", {"spark", "kafka"}),
        ("dev/images/steps/python", {"relay", "operator", "spark"}),
        ("dev/images/steps/debian", {"relay", "operator", "spark", "postgres", "kafka"}),
        ("dev/images/postgres/entrypoint", {"postgres"}),
        ("dev/images/kafka/server.properties", {"kafka"}),
        ("dev/kafka/log4j2.properties", {"kafka"}),
    ],
)
def test_an_edit_builds_the_images_that_it_is_in_and_no_other(
    file: str, images: set[str], clone: Path, jars: Path
) -> None:
    before = keys(clone, jars)
    with (clone / file).open("a") as edited:
        edited.write("# edited\n")
    assert changed(before, keys(clone, jars)) == images


def test_a_new_file_and_a_renamed_one_count(clone: Path, jars: Path) -> None:
    package = clone / "spark_image/outbox_spark"
    before = keys(clone, jars)
    (package / "chunks.py").write_text("")
    added = keys(clone, jars)
    assert changed(before, added) == {"spark"}
    (package / "chunks.py").rename(package / "chunk.py")
    assert changed(added, keys(clone, jars)) == {"spark"}


def test_a_file_that_becomes_executable_counts(clone: Path, jars: Path) -> None:
    before = keys(clone, jars)
    (clone / "spark_image/outbox_spark/__init__.py").chmod(0o755)
    assert changed(before, keys(clone, jars)) == {"spark"}


def test_dependencies_count_and_settings_of_linters_and_tests_do_not(
    clone: Path, jars: Path
) -> None:
    pyproject = clone / "pyproject.toml"
    text, before = pyproject.read_text(), keys(clone, jars)
    pyproject.write_text(text.replace("line-length = 100", "line-length = 99"))
    assert keys(clone, jars) == before
    pyproject.write_text(text.replace("click>=8.1", "click>=8.2"))
    assert changed(before, keys(clone, jars)) == set(PYTHON_IMAGES)


def test_a_new_version_builds_everything(clone: Path, jars: Path) -> None:
    pyproject = clone / "pyproject.toml"
    before = keys(clone, jars)
    pyproject.write_text(pyproject.read_text().replace('version = "', 'version = "9', 1))
    assert changed(before, keys(clone, jars)) == set(recipes())


def test_the_jars_of_kafka_count(clone: Path, jars: Path) -> None:
    before = keys(clone, jars)
    (jars / recipes()["kafka"].from_cache["kafka-libs"] / "kafka.jar").write_text("another")
    assert changed(before, keys(clone, jars)) == {"kafka"}


def test_another_base_or_package_index_builds_everything(clone: Path, jars: Path) -> None:
    before = keys(clone, jars)
    assert changed(before, keys(clone, jars, base="another")) == set(recipes())
    assert changed(before, keys(clone, jars, index="another")) == set(recipes())


def test_parts_of_a_key_do_not_run_into_each_other() -> None:
    assert key([("a", b"bc", False)]) != key([("ab", b"c", False)])
    assert key([], "ab", "c") != key([], "a", "bc")


def lists(root: Path, target: Path) -> dict[str, list[str]]:
    """By image: what the layer of its dependencies is made from, by the step that a build runs."""
    found = {}
    for image in PYTHON_IMAGES:
        step = ["sh", str(root / STEPS / "python"), "declared", image, str(target / image)]
        subprocess.run(step, cwd=root, check=True)
        found[image] = [path.read_text() for path in sorted((target / image).iterdir())]
    return found


@pytest.mark.parametrize(
    ("old", "new", "images"),
    [
        ("line-length = 100", "line-length = 99", set()),
        ('"mypy>=1.13"', '"mypy>=1.14"', set()),
        ('version = "', 'version = "9', set()),
        ('outbox-relay = "', 'another = "outbox_relay:x"\noutbox-relay = "', set()),
        ("dependencies = [", "# The same.\ndependencies = [", set()),
        ('    "kopf>=1.45",\n', '    "kopf>=1.46",\n', {"operator"}),
        ('"hiredis>=3"', '"hiredis>=4"', {"relay"}),  # of an extra that `relay` names
        ('"pyspark>=4,<5"', '"pyspark>=4,<5", "numpy"', {"spark"}),
        ('"pydantic>=2.11"', '"pydantic>=2.12"', {"relay", "operator", "spark"}),
        ('requires = ["hatchling>=1.26"]', 'requires = ["hatchling"]', set(PYTHON_IMAGES)),
    ],
)
def test_dependencies_are_installed_again_if_those_of_the_image_changed(
    old: str, new: str, images: set[str], clone: Path, tmp_path: Path
) -> None:
    before = lists(clone, tmp_path / "before")
    pyproject = clone / "pyproject.toml"
    assert old in pyproject.read_text()
    pyproject.write_text(pyproject.read_text().replace(old, new, 1))
    after = lists(clone, tmp_path / "after")
    assert {image for image in before if before[image] != after[image]} == images


def test_the_order_of_dependencies_does_not_matter(clone: Path, tmp_path: Path) -> None:
    pyproject = clone / "pyproject.toml"
    before = lists(clone, tmp_path / "before")
    one, other = '    "click>=8.1",\n', '    "pyyaml>=6",\n'
    text = pyproject.read_text().replace(one, "", 1).replace(other, other + one, 1)
    assert text != pyproject.read_text()
    pyproject.write_text(text)
    assert lists(clone, tmp_path / "after") == before


@pytest.mark.parametrize("name", PYTHON_IMAGES)
def test_the_layer_of_dependencies_sees_nothing_else_of_the_project(name: str) -> None:
    recipe = recipes()[name]
    text = (ROOT / recipe.dockerfile).read_text().replace("\\\n", " ")
    stages = {stage.split()[2]: stage for stage in text.split("\nFROM ") if " AS " in stage}
    assert f"python declared {name} /declared" in stages["declared"]
    base, _, last = stages["build"].partition("\n")
    until = last.partition("python dependencies /declared")[0]
    lines = [*stages[base.split()[0]].splitlines(), *until.splitlines()]
    copied = [line.split()[1:-1] for line in lines if line.startswith("COPY ")]
    assert ["--from=declared", "/declared"] in copied
    others = [source for sources in copied if sources[0] != "--from=declared" for source in sources]
    assert others
    assert all(source.startswith(f"{STEPS}/") for source in others)


def test_what_is_installed_is_all_that_a_build_reads() -> None:
    kept = what_is_installed((ROOT / "pyproject.toml").read_text())
    assert "[build-system]" in kept
    assert "[project.optional-dependencies]" in kept
    assert "[tool.hatch.build.targets.wheel]" in kept
    assert "[tool.ruff" not in kept
    assert "[[tool.importlinter" not in kept


# What goes in --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", recipes())
def test_everything_that_a_dockerfile_copies_is_in_its_context(name: str, jars: Path) -> None:
    recipe = recipes()[name]
    have = {path for path, _, _ in context(recipe, ROOT, jars)}
    text = (ROOT / recipe.dockerfile).read_text().replace("\\\n", " ")
    copied = [
        source
        for line in text.splitlines()
        if line.startswith("COPY ") and "--from" not in line
        for source in line.split()[1:-1]
    ]
    assert copied
    for source in copied:
        assert any(path == source or path.startswith(f"{source}/") for path in have), source


@pytest.mark.parametrize("name", recipes())
def test_every_image_is_non_root_labelled_and_on_one_base(name: str) -> None:
    recipe = recipes()[name]
    text = (ROOT / recipe.dockerfile).read_text()
    assert text.count("ARG BASE") == 1
    begun = [line.split() for line in text.splitlines() if line.startswith("FROM ")]
    stages = {words[3] for words in begun[:-1]}
    assert {words[1] for words in begun} - stages == {"${BASE}", "scratch"}
    assert begun[-1] == ["FROM", "scratch"]
    assert "USER 65532:65532" in text
    assert 'org.opencontainers.image.version="${VERSION}"' in text
    assert f'org.opencontainers.image.title="{recipe.title}"' in text
    assert "HEALTHCHECK" not in text


def test_a_missing_input_says_what_makes_it(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"the kafka image needs .*kafka-.*/libs.*\n  make dev"):
        list(context(recipes()["kafka"], ROOT, tmp_path))


# Selecting and naming ------------------------------------------------------------------------


def test_images_are_built_in_one_order_whatever_the_order_of_names() -> None:
    assert [r.name for r in build.select(["kafka", "relay"])] == ["relay", "kafka"]
    assert [r.name for r in build.select([])] == list(recipes())


def test_an_unknown_image_is_refused_with_those_that_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command_line.main(["build", "relais"]) == 1
    said = capsys.readouterr().err
    assert "no such image: relais" in said
    assert "known: relay, operator, spark, postgres, kafka" in said


def test_references_carry_the_version_and_move_to_a_registry() -> None:
    reference = recipes()["relay"].reference(version())
    assert reference == f"localhost/outbox-relay:{version()}"
    moved = f"example.com/team/outbox-relay:{version()}"
    assert build.in_registry(reference, "example.com/team/") == moved


# The cache -----------------------------------------------------------------------------------


def write_archive(path: Path, config: str = "abc.json") -> None:
    manifest = json.dumps([{"Config": config, "RepoTags": [], "Layers": []}]).encode()
    with tarfile.open(path, "w") as tar:
        member = tarfile.TarInfo("manifest.json")
        member.size = len(manifest)
        tar.addfile(member, io.BytesIO(manifest))


@pytest.mark.parametrize("config", ["abc.json", "blobs/sha256/abc"])  # buildah's, and Docker's
def test_the_digest_is_read_from_the_archive(config: str, tmp_path: Path) -> None:
    write_archive(tmp_path / "a.tar", config)
    assert digest(tmp_path / "a.tar") == "sha256:abc"


def test_an_interrupted_build_leaves_nothing_behind(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    archive = cache.archive("relay", "k")

    def interrupted() -> None:
        with cache.new(archive) as partial:
            partial.write_text("half an im")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_the_cache_keeps_the_two_archives_that_were_wanted_last(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    for n, name in enumerate(("one", "two", "three")):
        write_archive(cache.archive("relay", name))
        os.utime(cache.archive("relay", name), (n, n))
    write_archive(cache.archive("spark", "one"))
    os.utime(cache.archive("spark", "one"), (0, 0))
    assert cache.find("relay", "one", "r")  # wanted again, hence not the oldest any more
    cache.prune("relay")
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"relay-one.tar", "relay-three.tar", "spark-one.tar"}


# Building, with a builder that only writes down what it is asked for ---------------------------


class Notebook:
    """Not a fake of Docker or buildah: it shows which orders `build` gives."""

    name = "a notebook"

    def __init__(self) -> None:
        self.orders: list[Order] = []
        self.contexts: list[set[str]] = []

    def base(self, refresh: bool) -> str:
        return "base"

    def build(self, order: Order, report: Report) -> None:
        self.orders.append(order)
        files = (path for path in order.context.rglob("*") if path.is_file())
        self.contexts.append({str(path.relative_to(order.context)) for path in files})
        write_archive(order.archive)

    def push(self, image: Image, target: str, log: Path) -> None:
        raise AssertionError


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch, jars: Path) -> Notebook:
    monkeypatch.setenv("XDG_CACHE_HOME", str(jars.parent / "xdg"))
    (jars.parent / "xdg").mkdir()
    jars.rename(jars.parent / "xdg/outbox-operator")
    made = Notebook()
    monkeypatch.setattr(build, "choose", lambda folder: made)
    return made


def test_what_was_built_is_not_built_again_until_it_changes(notebook: Notebook) -> None:
    first = build.built()
    assert [order.reference for order in notebook.orders] == [i.reference for i in first]
    assert [image.name for image in first] == list(recipes())
    assert build.built() == first
    assert len(notebook.orders) == len(first)

    first[1].archive.unlink()
    assert build.built() == first
    assert [order.reference for order in notebook.orders[len(first) :]] == [first[1].reference]


def test_a_refresh_builds_again_what_is_there(notebook: Notebook) -> None:
    build.built(["relay"])
    build.built(["relay"], refresh_base=True)
    assert [order.afresh for order in notebook.orders] == [False, True]


def test_a_build_sees_its_inputs_and_nothing_else(notebook: Notebook) -> None:
    build.built(["postgres"])
    assert notebook.contexts == [
        {
            "dev/images/postgres/Dockerfile",
            "dev/images/postgres/entrypoint",
            "dev/images/steps/debian",
        }
    ]
    assert not notebook.orders[0].context.exists()


def test_a_full_disk_is_noticed_before_the_build(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        build, "recipes", lambda: {n: replace(r, space=1e9) for n, r in recipes().items()}
    )
    with pytest.raises(ImageError, match=r"(?s)takes up to 1e\+09 GB.* GB left\n  make room there"):
        build.built(["relay"])
    assert notebook.orders == []


# What is handed in ---------------------------------------------------------------------------


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    path = tmp_path / "company.pem"
    path.write_text("a certificate")
    return path


def test_pip_settings_come_from_files_and_the_environment_wins(tmp_path: Path) -> None:
    conf = tmp_path / "pip.conf"
    conf.write_text(
        "[global]\nindex-url = https://one/simple\ntrusted-host = one\n"
        "find-links = /somewhere\n[install]\nextra-index-url =\n  https://two\n  https://three\n"
    )
    got = handed({"PIP_INDEX_URL": "https://mine/simple"}, [conf], tmp_path / "none")
    assert got.pip == {
        "index-url": "https://mine/simple",
        "extra-index-url": "\nhttps://two\nhttps://three",
        "trusted-host": "one",
    }
    again = tmp_path / "again.conf"
    again.write_text(got.pip_conf())
    assert handed({}, [again], tmp_path / "none").pip == got.pip


@pytest.mark.parametrize("name", ["PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"])
def test_a_bundle_of_certificates_is_handed_in_by_the_names_that_pip_and_openssl_know(
    name: str, bundle: Path
) -> None:
    got = handed({name: str(bundle)}, [])
    assert got.ca == bundle
    assert got.pip_conf() == "[global]\ncert = /run/secrets/ca.crt\n"


def test_without_any_setting_builds_trust_what_the_machine_trusts(
    bundle: Path, tmp_path: Path
) -> None:
    assert handed({}, [], system=bundle).ca == bundle
    nothing = handed({}, [], system=tmp_path / "none")
    assert nothing.ca is None
    assert nothing.pip_conf() == "[global]\n"


def test_a_bundle_that_is_not_there_is_an_error_that_names_the_variable(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"SSL_CERT_FILE names /no/such.pem, which is not a file"):
        handed({"SSL_CERT_FILE": "/no/such.pem"}, [])


def test_a_broken_pip_conf_is_an_error(tmp_path: Path) -> None:
    conf = tmp_path / "pip.conf"
    conf.write_text("index-url = x\n")
    with pytest.raises(ImageError, match="pip's configuration: File contains no section headers"):
        handed({}, [conf])


def test_certificates_do_not_change_keys_and_indexes_do(bundle: Path) -> None:
    plain = Handed(None, {}, ())
    assert replace(plain, ca=bundle, proxies=("http_proxy",)).decisive == plain.decisive
    assert replace(plain, pip={"timeout": "9"}).decisive == plain.decisive
    assert replace(plain, pip={"index-url": "https://one"}).decisive != plain.decisive


def test_what_is_handed_in_reaches_a_build_as_secrets_only(bundle: Path, tmp_path: Path) -> None:
    given = Handed(bundle, {"index-url": "https://user:password@host/"}, ("https_proxy",))
    order = Order("r", tmp_path, tmp_path, "1", "base", given, tmp_path, tmp_path)
    with arguments(order) as words:
        assert "password" not in " ".join(words)
        (conf,) = (Path(w.rpartition("=")[2]) for w in words if w.startswith("id=pip.conf,"))
        assert "https://user:password@host/" in conf.read_text()
        assert conf.parent.stat().st_mode & 0o077 == 0
        assert f"id=ca.crt,src={bundle}" in words
        # The variable's name alone: its value stays in the environment.
        assert words[words.index("https_proxy") - 1] == "--build-arg"
    assert not conf.exists()


# What is said --------------------------------------------------------------------------------


@pytest.fixture
def no_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A PATH with nothing in it."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def program(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def test_without_docker_and_buildah_it_says_what_to_install(no_programs: Path) -> None:
    with pytest.raises(
        ImageError,
        match=r"(?s)no Docker engine answers, and buildah and mmdeb.*"
        r"apt-get install buildah mmdebstrap \(dev/setup cluster does it\)",
    ):
        engines.choose(no_programs)


def test_docker_without_an_engine_does_not_count(no_programs: Path) -> None:
    program(no_programs, "docker", "exit 1")
    program(no_programs, "buildah", "")
    program(no_programs, "mmdebstrap", "")
    assert isinstance(engines.choose(no_programs), Buildah)
    program(no_programs, "docker", "exit 0")
    assert isinstance(engines.choose(no_programs), docker.Docker)


def test_without_root_buildah_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ImageError, match=r"(?s)building images needs root.*sudo make images"):
        must_be_root()
    monkeypatch.delenv("OUTBOX_BASE", raising=False)
    with pytest.raises(ImageError, match="needs root"):
        Buildah(tmp_path).base(refresh=False)


def test_a_base_is_found_by_its_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OUTBOX_BASE", raising=False)
    made = tmp_path / f"base-{base._recipe()}-0123456789ab.tar"
    made.touch()
    name = Buildah(tmp_path).base(refresh=False)
    assert name == f"localhost/outbox-{made.stem}"
    monkeypatch.setattr(base, "COMMAND", [*base.COMMAND, "--another"])
    assert base.find(tmp_path) is None


def python(script: str) -> list[str]:
    return [sys.executable, "-c", script]


def test_a_failing_build_shows_the_end_of_its_output_and_names_the_log(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "relay.log"
    with pytest.raises(CommandFailed) as failed:
        run(python("for n in range(99): print('line', n)\nraise SystemExit(3)"), log)
    said = str(failed.value)
    assert "  | line 98\n" in said
    assert "line 42" not in said
    assert said.endswith(f"all of it: {log}")
    assert "line 42" in log.read_text()


def test_a_disk_that_fills_up_meanwhile_is_told_as_such(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match=r"is full: make room there$"):
        run(python("raise SystemExit('cp: x: No space left on device')"), tmp_path / "log")


def test_the_steps_of_a_build_are_reported(tmp_path: Path) -> None:
    seen: list[str] = []
    lines = [
        "[1/2] STEP 3/8: RUN python root",
        "Get:1 a package",
        "#7 [build 2/8] COPY x",
        "#7 0.1 y",
    ]
    run(python(f"print({chr(10).join(lines)!r})"), tmp_path / "log", seen.append)
    assert seen == ["STEP 3/8: RUN python root", "[build 2/8] COPY x"]


def test_a_race_in_buildah_is_tried_again_and_other_failures_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    builder = Buildah(tmp_path)
    tried = tmp_path / "tried"
    race = f"[ -e {tried} ] || {{ : >{tried}; echo sealing memfd copy: busy; exit 1; }}"
    program(tmp_path, "racing", race)
    builder._run(["racing"], tmp_path / "log")
    program(tmp_path, "broken", f"echo x >>{tmp_path}/count; exit 1")
    with pytest.raises(CommandFailed):
        builder._run(["broken"], tmp_path / "log")
    assert (tmp_path / "count").read_text() == "x\n"


def test_a_step_says_what_it_costs_and_how_it_ended(capsys: pytest.CaptureFixture[str]) -> None:
    with step("spark: building", "about 3 minutes") as report:
        report("STEP 1/2")
    with pytest.raises(ImageError), step("kafka: building"):
        raise ImageError("no")
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "images: spark: building, about 3 minutes ...",
        "images:   [   0 s] STEP 1/2",
        "images: spark: building: done in 0 s",
        "images: kafka: building ...",
        "images: kafka: building: failed after 0 s",
    ]


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (59, "59 s"), (61, "1:01 min")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
