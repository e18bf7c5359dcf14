"""Every experiment in the repository can be read, says what it is, and is told of in the docs."""

import re

import pytest

from bitta.bench.expand import read_jobs
from bitta.bench.experiment import Experiment
from bitta.bench.sets import KINDS
from bitta.methods import METHODS
from bitta.methods.base import UnsupervisedAdapter
from reproduction.claims.tables import paper_table, paper_tables
from reproduction.paths import EXPERIMENTS, ROOT

FOLDERS = sorted(path.name for path in EXPERIMENTS.iterdir())
FILES = sorted(EXPERIMENTS.rglob("*.toml"))
ROWS = {path.stem for path in (EXPERIMENTS / "cifar10-c").glob("*.toml")}
JOBS = {folder: read_jobs([EXPERIMENTS / folder]) for folder in FOLDERS}
TABLES = [paper_table(table_id) for table_id in paper_tables()]
PAGE = (ROOT / "reproduction" / "README.md").read_text()
NOT_HERE = ("tiny-imagenet-c", "imagenet-c", "imagenet-r", "visda2021", "domainnet126")
AT_HAND = (
    "checkpoint.safetensors",  # reproduction/README.md says how it is made
    "weights/cifar100-resnet18.safetensors",
    "weights/coloured_digits-resnet20.safetensors",
)
QUARTERS = (
    *("feedback-errors", "number-of-questions", "skip", "delay", "components", "thresholds"),
    *("selection", "epochs", "dropouts", "no-dropout", "policies", "calibration"),
)
ONE_SEED = ("cifar10-c", "stream-memory", "simatta-step-size")
ONE_STREAM = (
    *("cifar10-c", "main-cifar10-c", "main-cifar100-c", "main-tiny-imagenet-c", "pacs-domains"),
    *("pacs-mixed", "non-iid", "batch-size-1", "resnet50", "vit", "enhanced", "memory", *QUARTERS),
)


def answers(job):
    """What a run learns from: none, verdict or full."""
    asked = job.experiment.feedback.n_queries
    asked = METHODS[job.experiment.method].n_queries if asked < 0 else asked
    return job.experiment.feedback.labels if asked else "none"


def file_id(path):
    return f"{path.parent.name}/{path.stem}"


@pytest.mark.parametrize("path", FILES, ids=file_id)
def test_an_experiment_begins_with_what_it_is_and_its_runs_are_called_after_it(path):
    lines = path.read_text().splitlines()
    jobs = [job for job in JOBS[path.parent.name] if job.file == path]
    assert re.fullmatch(r"# .+\.", lines[0])
    assert jobs
    assert all(job.experiment.name.startswith(path.stem) for job in jobs)
    assert {job.experiment.seed for job in jobs} in ({0}, {0, 1, 2})


@pytest.mark.parametrize("path", FILES, ids=file_id)
def test_what_cannot_be_had_here_is_asked_for_in_the_first_line(path):
    jobs = [job for job in JOBS[path.parent.name] if job.file == path]
    weights = jobs[0].experiment.model.weights
    away = any(job.experiment.stream.kind in NOT_HERE for job in jobs) or weights not in AT_HAND
    first, second = path.read_text().splitlines()[:2]
    assert first.startswith("# Needs ") == away
    if away:
        assert weights in first
        assert re.fullmatch(r"# .+\.", second)


@pytest.mark.parametrize("folder", sorted(set(FOLDERS) - set(ONE_SEED)))
def test_every_run_of_a_folder_has_three_seeds(folder):
    seeds = {}
    for job in JOBS[folder]:
        seeds.setdefault(job.experiment.name, []).append(job.experiment.seed)
    assert all(of_one == [0, 1, 2] for of_one in seeds.values())


@pytest.mark.parametrize("folder", ONE_STREAM)
def test_runs_that_are_compared_have_one_stream_and_one_model(folder):
    tables = [job.experiment.as_table() for job in JOBS[folder]]
    assert all(table["stream"] == tables[0]["stream"] for table in tables)
    assert all(table["model"] == tables[0]["model"] for table in tables)


@pytest.mark.parametrize("folder", QUARTERS)
def test_ablations_have_a_quarter_of_cifar10_c(folder):
    assert {job.experiment.stream.kind for job in JOBS[folder]} == {"cifar10-c"}
    assert {job.experiment.stream.n_samples for job in JOBS[folder]} == {2496}


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_its_rows(method):
    kind = METHODS[method]
    wanted = {method} if method != "simatta" else {"simatta-feedback", "simatta-labels"}
    if issubclass(kind, UnsupervisedAdapter):
        wanted |= {f"{method}-feedback"}
        if "reference" in kind.Config.presets:
            wanted |= {f"{method}-reference"}
    assert wanted <= ROWS


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.id)
def test_every_row_of_the_paper_can_be_measured(table):
    """By a run of the same method, answers and set, in a folder that the table names."""
    jobs = [job for folder in table.experiments for job in JOBS[folder]]
    there = {(j.experiment.method, answers(j), j.experiment.stream.kind) for j in jobs}
    for row in table.rows:
        for kind in kinds_of(table):
            assert (row.method, row.feedback, kind) in there
    tuned = {job.experiment.method for job in jobs if job.experiment.enhanced.n_samples}
    assert tuned == {row.method for row in table.rows if row.label == "E"}


def kinds_of(table):
    """The sets that a table is about: its columns, its part, or what its caption says."""
    part = table.id.partition("/")[2]
    named = [name for name in (*table.columns, part) if name in KINDS]
    said = {"PACS": "pacs", "Tiny-ImageNet-C": "tiny-imagenet-c", "CIFAR-10-C": "cifar10-c"}
    return named or [next(kind for name, kind in said.items() if name in table.caption)]


@pytest.mark.parametrize("table", ["app_epoch", "gpu_memory"])
def test_variants_of_the_paper_are_files(table):
    table = paper_table(f"tab:{table}")
    files = {job.file.stem for job in JOBS[table.experiments[0]]}
    assert {row.variant for row in table.rows if row.variant} <= files


def test_folders_are_listed_with_their_number_of_runs():
    rows = re.findall(r"^\| \[([\w-]+)\]\(experiments/([\w-]+)\) \|.*\| (\d+) \|$", PAGE, re.M)
    assert all(name == target for name, target, _ in rows)
    assert {name: int(runs) for name, _, runs in rows} == {
        folder: len(jobs) for folder, jobs in JOBS.items()
    }
    assert len(rows) == len(FOLDERS)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.id)
def test_a_table_of_the_paper_is_listed_beside_what_measures_it(table):
    number = table.title.removeprefix("Table ")
    folder = table.experiments[0]
    (line,) = [line for line in PAGE.splitlines() if line.startswith(f"| [{folder}]")]
    paper = line.split("|")[2]
    assert re.search(rf"\b({number}|{number.rstrip('abc')})\b", paper)


def test_every_figure_that_shows_measurements_is_listed():
    table = [line.split("|")[2] for line in PAGE.splitlines() if "](experiments/" in line]
    listed = {n for cell in table for text in re.findall(r"Figures? ([\d, ]+)", cell)
              for n in re.findall(r"\d+", text)}  # fmt: skip
    assert listed == {str(number) for number in (2, *range(4, 14))}


def test_weights_are_explained():
    weights = {job.experiment.model.weights for jobs in JOBS.values() for job in jobs}
    assert all(f"`{name}`" in PAGE for name in weights)


def test_means_that_the_paper_got_wrong_are_listed():
    for table in TABLES:
        for row in table.rows:
            if row.recomputed is not None:
                printed = row.values[table.columns.index("mean")]
                assert f"{printed:.2f}" in PAGE
                assert f"{row.recomputed:.2f}" in PAGE


def test_an_experiment_without_a_sweep_can_be_run_by_itself():
    alone = [path for path in FILES if path.parent.name == "cifar10-c"]
    assert all(Experiment.read(path).name == path.stem for path in alone)
