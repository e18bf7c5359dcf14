"""Tests of the experiment files and of their list in reproduction/README.md."""

import re

import pytest

from bitta.bench.experiment import Experiment
from bitta.bench.sweep_grid import read_jobs
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
QUARTER_STREAMS = (
    *("feedback-errors", "number-of-questions", "skip", "delay", "components", "thresholds"),
    *("selection", "epochs", "dropouts", "no-dropout", "policies", "calibration"),
)
FOLDERS_WITH_ONE_SEED = ("cifar10-c", "stream-memory", "simatta-step-size")
FOLDERS_WITH_ONE_STREAM = (
    *("cifar10-c", "main-cifar10-c", "main-cifar100-c", "main-tiny-imagenet-c", "pacs-domains"),
    *(
        "pacs-mixed",
        "non-iid",
        "batch-size-1",
        "resnet50",
        "vit",
        "enhanced",
        "memory",
        *QUARTER_STREAMS,
    ),
)


def answers(job):
    """Return the kind of answers that a run learns from: none, verdict or full."""
    asked = job.experiment.feedback.n_queries
    asked = METHODS[job.experiment.method].n_queries if asked < 0 else asked
    return job.experiment.feedback.labels if asked else "none"


def file_id(path):
    return f"{path.parent.name}/{path.stem}"


@pytest.mark.parametrize("path", FILES, ids=file_id)
def test_runs_of_a_file_have_its_name_and_one_or_three_seeds(path):
    jobs = [job for job in JOBS[path.parent.name] if job.file == path]
    assert jobs
    assert all(job.experiment.name.startswith(path.stem) for job in jobs)
    assert {job.experiment.seed for job in jobs} in ({0}, {0, 1, 2})


@pytest.mark.parametrize("folder", sorted(set(FOLDERS) - set(FOLDERS_WITH_ONE_SEED)))
def test_each_run_of_a_folder_has_three_seeds(folder):
    seeds = {}
    for job in JOBS[folder]:
        seeds.setdefault(job.experiment.name, []).append(job.experiment.seed)
    assert all(of_one == [0, 1, 2] for of_one in seeds.values())


@pytest.mark.parametrize("folder", FOLDERS_WITH_ONE_STREAM)
def test_compared_runs_share_stream_and_model(folder):
    tables = [job.experiment.as_table() for job in JOBS[folder]]
    assert all(table["stream"] == tables[0]["stream"] for table in tables)
    assert all(table["model"] == tables[0]["model"] for table in tables)


@pytest.mark.parametrize("folder", QUARTER_STREAMS)
def test_ablations_use_a_quarter_of_each_corruption(folder):
    assert {job.experiment.stream.kind for job in JOBS[folder]} == {"cifar10-c"}
    assert {job.experiment.stream.n_samples for job in JOBS[folder]} == {2496}


@pytest.mark.parametrize("method", sorted({job.experiment.method for job in JOBS["cifar10-c"]}))
def test_each_method_of_the_comparison_has_all_its_rows(method):
    kind = METHODS[method]
    wanted = {method} if method != "simatta" else {"simatta-feedback", "simatta-labels"}
    if issubclass(kind, UnsupervisedAdapter):
        wanted |= {f"{method}-feedback"}
        if "reference" in kind.Config.presets:
            wanted |= {f"{method}-reference"}
    assert wanted <= ROWS


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.id)
def test_each_row_of_the_paper_has_an_experiment(table):
    """A folder of the table has a run with the same method, kind of answers and dataset."""
    jobs = [job for folder in table.experiments for job in JOBS[folder]]
    there = {(j.experiment.method, answers(j), j.experiment.stream.kind) for j in jobs}
    for row in table.rows:
        for kind in table.datasets:
            assert (row.method, row.feedback, kind) in there
    tuned = {job.experiment.method for job in jobs if job.experiment.before_stream}
    assert tuned == {row.method for row in table.rows if row.label == "E"}


@pytest.mark.parametrize("table", ["app_augment", "app_epoch", "gpu_memory"])
def test_experiments_have_the_settings_of_the_papers_rows(table):
    table = paper_table(f"tab:{table}")
    methods = [vars(job.experiment.settings) for job in JOBS[table.experiments[0]]]
    for row in table.rows:
        assert any(row.settings.items() <= settings.items() for settings in methods), row.name


def test_readme_lists_each_folder_with_its_number_of_runs():
    rows = re.findall(r"^\| \[([\w-]+)\]\(experiments/([\w-]+)\) \|.*\| (\d+) \|$", PAGE, re.M)
    assert all(name == target for name, target, _ in rows)
    assert {name: int(runs) for name, _, runs in rows} == {
        folder: len(jobs) for folder, jobs in JOBS.items()
    }
    assert len(rows) == len(FOLDERS)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.id)
def test_readme_lists_each_table_beside_its_experiments(table):
    number = table.title.removeprefix("Table ")
    folder = table.experiments[0]
    (line,) = [line for line in PAGE.splitlines() if line.startswith(f"| [{folder}]")]
    paper = line.split("|")[2]
    assert re.search(rf"\b({number}|{number.rstrip('abc')})\b", paper)


def test_readme_lists_each_figure_with_measurements():
    table = [line.split("|")[2] for line in PAGE.splitlines() if "](experiments/" in line]
    listed = {n for cell in table for text in re.findall(r"Figures? ([\d, ]+)", cell)
              for n in re.findall(r"\d+", text)}  # fmt: skip
    assert listed == {str(number) for number in (2, *range(4, 14))}


def test_readme_explains_all_weights():
    weights = {job.experiment.model.weights for jobs in JOBS.values() for job in jobs}
    assert all(f"`{name}`" in PAGE for name in weights)


def test_readme_lists_wrong_means_of_the_paper():
    for table in TABLES:
        for row in table.rows:
            if row.recomputed is not None:
                printed = row.values[table.columns.index("mean")]
                assert f"{printed:.2f}" in PAGE
                assert f"{row.recomputed:.2f}" in PAGE


def test_experiment_without_a_sweep_runs_by_itself():
    alone = [path for path in FILES if path.parent.name == "cifar10-c"]
    assert all(Experiment.read(path).name == path.stem for path in alone)


def test_links_of_the_readme_point_to_existing_files():
    for target in re.findall(r"\]\(([^)#:]+)\)", PAGE):
        assert (ROOT / "reproduction" / target).exists(), target
