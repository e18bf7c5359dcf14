"""Tests of our rows for the paper's tables, of the two averages, and of the generated page."""

import tomllib
from dataclasses import replace

import pytest

from bitta.bench.sweep_grid import read_jobs
from bitta.corruptions import CORRUPTIONS
from bitta.methods import METHODS
from bitta.metrics import Reliability
from made_results import made_run, numbers_in
from reproduction.claims.averages import BASELINES, check_gain_from_answers, leads_by_stream
from reproduction.claims.claim import ClaimStatus, evaluate_claim
from reproduction.claims.claim_list import claims_by_heading
from reproduction.claims.numbers import stated_numbers
from reproduction.claims.orders import (
    check_best_in_all_domains,
    count_best_domains,
    order_claims,
    order_in_paper,
)
from reproduction.claims.page import reproduction_page
from reproduction.claims.results import SUBSTITUTE_FOLDERS, ResultFolders
from reproduction.claims.tables import compare_table, paper_table, paper_tables
from reproduction.paths import EXPERIMENTS, REASONS
from reproduction.write_page import NOT_OF_THE_PAPER

FOLDERS = sorted(path.name for path in EXPERIMENTS.iterdir() if path.is_dir())
EVERY = [claim for group in claims_by_heading().values() for claim in group]
MAIN = "tab:tinyimagenetc/cifar10-c"
BINS = Reliability(*([0.0] * 13 + [value, 0.0] for value in (10.0, 9.0, 6.0)))
DOMAINS = {"pacs": ("art_painting", "cartoon", "sketch"), "domainnet126": ("clipart", "painting")}


def job_run(experiment, right):
    """Make a result of an experiment with `right` of 10 samples right in each domain."""
    table = experiment.as_table()
    stream, kind = table["stream"], table["method"]["name"]
    domains = CORRUPTIONS if stream["kind"].endswith("-c") else DOMAINS.get(stream["kind"], ("a",))
    if stream["corruptions"]:
        domains = (stream["corruptions"],)
    if stream["order"] == "mixed":
        domains = ("mixed",)
    asked = table["feedback"]["n_queries"]
    asked = METHODS[kind].n_queries if asked == -1 else asked
    run = made_run(
        table["name"], kind, [right] * len(domains), domains=tuple(domains), n_queries=asked,
        reliability=BINS, policy_reliability=BINS, seed=table["seed"],
        step={"n_measured": 10, "n_agreeing": 6, "n_agreeing_correct": 6, "confidence": 8.0,
              "policy_confidence": 7.0},
    )  # fmt: skip
    protocol = f"{sorted(stream.items())}, seed {table['seed']}"
    elsewhere = {
        **run.environment, "device": "a GPU",
        "stream": protocol, "source_weights": table["model"]["weights"],
    }  # fmt: skip
    return replace(run, experiment=table, protocol=protocol, environment=elsewhere)


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """Results of all experiments with one or two seeds: BiTTA 90 %, SimATTA 70, the others 80."""
    root, expected = tmp_path_factory.mktemp("results"), {}
    for folder in FOLDERS:
        (root / folder).mkdir()
        seeds = [0, 1] if folder == "thresholds" else [0]
        jobs = read_jobs([EXPERIMENTS / folder], seeds=seeds)
        expected[folder] = [job.label for job in jobs]
        for job in jobs:
            right = {"bitta": 9, "simatta": 7}.get(job.experiment.method, 8)
            job_run(job.experiment, right).save(root / folder / f"{job.label}.json")
    return ResultFolders(root, expected)


def cifar10(tmp_path, accuracies, folder="cifar10-c"):
    """Write rows of CIFAR-10-C with binary answers, in percent. The source model has 50."""
    (tmp_path / folder).mkdir()
    for method, right in {"source": 50, **accuracies}.items():
        settings = {"policy": "dropout", "mecta": "off", "micro_batch": 0, "epochs": 3}
        run = made_run(
            method, method, [right] * 15, n=100, domains=tuple(CORRUPTIONS), settings=settings
        )
        run.save(tmp_path / folder / f"{method}-seed0.json")
    return ResultFolders(tmp_path)


ALL = {"tent": 60, "eata": 62, "sar": 64, "cotta": 76, "rotta": 66, "sotta": 68, "simatta": 60}


def order_of(results, table_id=MAIN):
    [claim] = [claim for claim in order_claims() if claim.id == table_id]
    return evaluate_claim(claim, results, {})


def test_each_stated_number_and_table_has_one_claim():
    ids = [claim.id for claim in EVERY]
    assert len(ids) == len(set(ids))
    assert {number.id for number in stated_numbers()} | set(paper_tables()) <= set(ids)


def test_each_claim_has_a_check_or_a_reason():
    for claim in EVERY:
        assert (claim.check is None) == bool(claim.not_measurable)
        assert (claim.check is None) == (not claim.experiments)
        assert set(claim.experiments) <= set(FOLDERS)


def test_recorded_reasons_belong_to_claims():
    reasons = tomllib.loads(REASONS.read_text())
    assert set(reasons) <= {claim.id for claim in EVERY}


def test_each_folder_of_experiments_is_used_by_a_claim():
    used = {folder for claim in EVERY for folder in claim.experiments}
    # The choice of settings is not described in the paper.
    chosen_by = {"stream-memory", "simatta-step-size"}
    others = chosen_by | set(NOT_OF_THE_PAPER)
    assert set(FOLDERS) == used | set(SUBSTITUTE_FOLDERS.values()) | others


@pytest.mark.parametrize("table_id", paper_tables())
def test_paper_fulfils_its_own_order_claims(table_id):
    summary, holds = order_in_paper(paper_table(table_id))
    assert summary
    assert holds


def test_no_claim_is_undecided_once_all_is_run(everything):
    outcomes = [evaluate_claim(claim, everything, {}) for claim in EVERY]
    undecided = [
        (outcome.claim.id, outcome.status, outcome.summary)
        for outcome in outcomes
        if outcome.status in (ClaimStatus.NOT_RUN, ClaimStatus.PARTLY_RUN)
    ]
    assert undecided == []


def test_each_row_of_the_paper_matches_one_of_ours_once_all_is_run(everything):
    for table in map(paper_table, paper_tables()):
        comparison = compare_table(table, everything)
        missing = [
            (table.title, row.name, column)
            for column in comparison.columns
            for row in table.rows
            if (row.name, column) not in comparison.fair
        ]
        assert missing == []


def test_page_of_all_results_shows_each_table(everything):
    page = reproduction_page(everything, {}, "# Title")
    assert page.startswith("# Title\n\n## What was run\n")
    for table in map(paper_table, paper_tables()):
        assert f"\n### {table.title}\n" in page
    assert "Not run" not in page


def test_page_without_results_names_each_command(tmp_path):
    page = reproduction_page(ResultFolders(tmp_path, dict.fromkeys(FOLDERS, ())), {}, "# Title")
    assert "Nothing was run." in page
    assert "holds 0, does not hold 0, partly run 0" in page
    for folder in set(FOLDERS) - set(SUBSTITUTE_FOLDERS.values()):
        assert f"experiments/{folder} " in page or f"`{folder}`" in page


def test_order_claim_holds_if_bitta_is_best(tmp_path):
    results = cifar10(tmp_path, {**ALL, "bn_stats": 55, "bitta": 80})
    outcome = order_of(results)
    assert (outcome.status, outcome.summary) == (ClaimStatus.HOLDS, "+4.00 over CoTTA* (1 seed)")
    assert count_best_domains(compare_table(paper_table(MAIN), results)) == (14, 15)


def test_best_domains_are_counted_against_rows_with_labels_too(everything):
    """SimATTA with labels is above BiTTA in two of the three domains of Table 13.

    The claim about the order of Table 13 exempts that row. The count of domains does not.
    """
    comparison = compare_table(paper_table("tab:app_original_pacs"), everything)
    assert count_best_domains(comparison) == (1, 3)
    assert order_of(everything, "tab:app_original_pacs").status is ClaimStatus.HOLDS


@pytest.mark.parametrize(
    ("source", "stream", "n_collapsed"), [(50, "c" * 64, 0), (70, "c" * 64, 15), (70, "another", 0)]
)
def test_collapse_is_marked_by_the_source_row_of_any_folder(tmp_path, source, stream, n_collapsed):
    """DeYO* has 30. The source model has 50 or 70 in another folder, or saw other images."""
    runs = {"main-cifar10-c": ("source", source), "recent-baselines": ("deyo", 30)}
    for folder, (method, right) in runs.items():
        run = made_run(method, method, [right] * 15, n=100, domains=tuple(CORRUPTIONS))
        if method == "source":
            run = replace(run, environment=run.environment | {"stream": stream})
        (tmp_path / folder).mkdir()
        run.save(tmp_path / folder / f"{method}-seed0.json")
    row = compare_table(paper_table("tab:add_baselines"), ResultFolders(tmp_path)).our_rows(
        "cifar10-c"
    )["DeYO*"]
    assert sum(map(len, row.collapsed_domains.values())) == n_collapsed


def test_order_claim_fails_if_bitta_is_not_best(tmp_path):
    outcome = order_of(cifar10(tmp_path, {"bitta": 70, "cotta": 76}, "main-cifar10-c"))
    assert (outcome.status, outcome.summary) == (ClaimStatus.FAILS, "-6.00 over CoTTA* (1 seed)")


def test_order_claim_is_partly_run_without_all_rows(tmp_path):
    outcome = order_of(cifar10(tmp_path, {"bitta": 80, "cotta": 76}))
    assert outcome.status is ClaimStatus.PARTLY_RUN


def test_handicapped_row_is_kept_apart_from_the_fair_row(everything):
    comparison = compare_table(paper_table(MAIN), everything)
    fair, handicapped = (
        slots["TENT*", "mean"] for slots in (comparison.fair, comparison.handicapped)
    )
    assert "reference" in handicapped.qualifiers
    assert "reference" not in fair.qualifiers


def test_leads_over_best_and_mean_agree_with_hand_computation(tmp_path):
    """The leads are 80 - 76, and 80 - (60 + 62 + 64 + 76 + 66 + 68 + 60) / 7."""
    [first, *others] = leads_by_stream(cifar10(tmp_path, {**ALL, "bitta": 80}))
    assert first.fair.over_best == pytest.approx(4)
    assert first.fair.over_mean == pytest.approx(80 - 456 / 7)
    assert first.fair.mean_gain is None
    assert first.handicapped is None
    assert [stream.fair for stream in others] == [None] * 4
    every = [stream.paper for stream in (first, *others)]
    assert sum(paper.over_best for paper in every) / 5 == pytest.approx(4.1, abs=0.05)
    assert sum(paper.over_mean for paper in every) / 5 == pytest.approx(14.6, abs=0.05)


def test_lead_is_also_given_without_collapsed_rows(tmp_path):
    """The source model has 50, so 20 is a collapse. The other six baselines sum to 396."""
    results = cifar10(tmp_path, {**ALL, "tent": 20, "bitta": 80})
    [first, *_] = leads_by_stream(results)
    assert first.fair.over_mean == pytest.approx(80 - 416 / 7)
    assert first.fair.over_mean_of_stable == pytest.approx(80 - 396 / 6)
    assert first.fair.collapsed == ("TENT*",)
    page = reproduction_page(results, {}, "# Title")
    assert "| TENT\\* | 80.49 | 20.00, collapsed in 15 of 15 domains | – |" in page
    assert "CIFAR-10-C, fair: +14.0 over the mean without TENT\\*." in page


def test_one_exception_refutes_best_in_all_domains(tmp_path):
    results = cifar10(tmp_path, {"bitta": 80, "cotta": 76}, "main-cifar10-c")
    finding = check_best_in_all_domains(MAIN, results)
    assert (finding.summary, finding.holds, finding.is_complete) == (
        "15 of 15 (1 seed)",
        True,
        False,
    )
    rights = [85, *[76] * 14]
    made_run("sar", "sar", rights, n=100, domains=tuple(CORRUPTIONS)).save(
        tmp_path / "main-cifar10-c" / "sar-seed0.json"
    )
    finding = check_best_in_all_domains(MAIN, ResultFolders(tmp_path))
    assert numbers_in(finding.summary) == [14, 15, -5, 1]
    assert "gaussian_noise" in finding.summary
    assert "SAR*" in finding.summary
    assert finding.holds is False


def test_page_shows_points_of_a_mixed_stream_beside_the_papers(tmp_path):
    """Batches of 10 have 2, 4, 6 and 8 right: 20, 30, 40 and 50 % so far."""
    run = made_run("bitta", "bitta", [2, 4, 6, 8], domains=("mixed",))
    stream = {**run.experiment["stream"], "kind": "pacs", "order": "mixed"}
    (tmp_path / "pacs-mixed").mkdir()
    replace(run, experiment={**run.experiment, "stream": stream}).save(
        tmp_path / "pacs-mixed" / "bitta-seed0.json"
    )
    page = reproduction_page(ResultFolders(tmp_path), {}, "# Title")
    for percent, paper, ours in (
        (25, 59.65, 20),
        (50, 64.7, 30),
        (75, 69.23, 40),
        (100, 72.18, 50),
    ):
        assert (
            f"| BiTTA | mixed-{percent} | {paper:.2f} | {ours:.2f} | {ours - paper:+.2f} |" in page
        )


def test_leads_and_gains_exist_for_all_five_streams_once_all_is_run(everything):
    """BiTTA has 90, SimATTA* 70, the six others 80 with and without answers: 90 - 550 / 7."""
    for stream in leads_by_stream(everything):
        assert stream.fair.over_best == pytest.approx(10)
        assert stream.fair.over_mean == pytest.approx(90 - 550 / 7)
        assert stream.fair.mean_gain == pytest.approx(0)
    assert len(BASELINES) == 7


def test_gain_is_also_given_without_the_method_that_gains_most(tmp_path):
    """Without answers all have 60. The gains are 0, 2, 4, 16, 6 and 8: 6, and 4 without CoTTA."""
    results = cifar10(tmp_path, {**ALL, "bitta": 80})
    (tmp_path / "original").mkdir()
    for method in ("tent", "eata", "sar", "cotta", "rotta", "sotta"):
        made_run(method, method, [60] * 15, n=100, domains=tuple(CORRUPTIONS), n_queries=0).save(
            tmp_path / "original" / f"{method}-seed0.json"
        )
    finding = check_gain_from_answers(1.14, results)
    assert numbers_in(finding.summary) == [1, 5, 6, 4]
    assert "CoTTA" in finding.summary
    assert (finding.holds, finding.is_complete) == (None, False)


def test_page_names_rows_that_handicaps_raise(tmp_path):
    """TENT* has 60 without and 70 with handicaps, SAR* 64 and 63."""
    cifar10(tmp_path, {"tent": 60, "sar": 64}, "main-cifar10-c")
    for method, right in (("tent", 70), ("sar", 63)):
        preset = METHODS[method].Config.presets["reference"]
        made_run(
            f"reference-{method}", method, [right] * 15, n=100, domains=tuple(CORRUPTIONS),
            settings=dict(preset),
        ).save(tmp_path / "main-cifar10-c" / f"reference-{method}-seed0.json")  # fmt: skip
    [first, *_] = leads_by_stream(ResultFolders(tmp_path))
    assert (first.raised_by_handicaps, first.n_run_both_ways) == (("TENT*",), 2)
    page = reproduction_page(ResultFolders(tmp_path), {}, "# Title")
    assert "CIFAR-10-C 1 of 2 (TENT\\*)." in page


def test_page_gives_the_lead_over_better_variants(tmp_path):
    """CoTTA* has 76, and 78 with more epochs. Only that variant counts: BiTTA's 80 leads by 2.

    Rows with full labels (90) or of another folder with equal settings (79) are no variants.
    """
    cifar10(tmp_path, {**ALL, "bitta": 80}, "main-cifar10-c")
    (tmp_path / "cifar10-c").mkdir()
    for folder, name, right, epochs, labels in (
        ("main-cifar10-c", "cotta", 76, 1, "verdict"),
        ("main-cifar10-c", "longer", 78, 2, "verdict"),
        ("main-cifar10-c", "labels", 90, 2, "full"),
        ("cifar10-c", "same", 79, 1, "verdict"),
    ):
        made_run(
            name, "cotta", [right] * 15, n=100, domains=tuple(CORRUPTIONS),
            settings={"epochs": epochs}, labels=labels,
        ).save(tmp_path / folder / f"{name}-seed0.json")  # fmt: skip
    [first, *_] = leads_by_stream(ResultFolders(tmp_path))
    assert {star: row.name for star, row in first.better_variants.items()} == {"CoTTA*": "longer"}
    page = reproduction_page(ResultFolders(tmp_path), {}, "# Title")
    assert "CIFAR-10-C CoTTA\\* 78.00 (`longer`)" in page
    assert "BiTTA's lead is +2.0 over the best and +14.6 over the mean." in page


def test_rows_are_compared_by_their_common_seeds(tmp_path):
    """Fair TENT* has 60 and 80. With handicaps it has 65 for the first seed alone."""
    cifar10(tmp_path, {"tent": 60}, "main-cifar10-c")
    usual = {"policy": "dropout", "mecta": "off", "micro_batch": 0, "epochs": 3}
    preset = usual | METHODS["tent"].Config.presets["reference"]
    for name, right, seed, settings in (("tent", 80, 1, usual), ("reference", 65, 0, preset)):
        made_run(
            name, "tent", [right] * 15, n=100, domains=tuple(CORRUPTIONS), seed=seed,
            settings=settings,
        ).save(tmp_path / "main-cifar10-c" / f"{name}-seed{seed}.json")  # fmt: skip
    [first, *_] = leads_by_stream(ResultFolders(tmp_path))
    assert (first.raised_by_handicaps, first.n_run_both_ways) == (("TENT*",), 1)


def test_page_averages_the_paper_over_the_streams_that_were_run(tmp_path):
    """The paper has +3.4 and +7.1 on CIFAR-10-C alone, and +4.1 and +14.6 over all five."""
    page = reproduction_page(cifar10(tmp_path, {**ALL, "bitta": 80}), {}, "# Title")
    lines = [line for line in page.splitlines() if line.startswith("| mean")]
    assert lines[0].startswith("| mean | +4.1 | +14.6 | +0.7 | – |")
    assert lines[1].startswith("| mean of the streams run | +3.4 | +7.1 | +5.3 | +4.0 | +14.9 |")


def test_shorter_streams_are_found_by_run_name(everything):
    tables = paper_tables().values()
    assert everything.has_other_lengths("beta", tables, "cifar10-c-*")
    assert not everything.has_other_lengths("beta", tables, "pacs-*")


def test_rows_of_shorter_streams_have_no_difference(tmp_path):
    page = reproduction_page(cifar10(tmp_path, {**ALL, "bitta": 80}), {}, "# Title")
    assert "| BiTTA | 87.20 | 80.00 | – |" in page
    assert page.count("+4.00 over CoTTA\\* (1 seed) †") == 2  # among the claims, and below Table 1a


def test_time_is_the_median_over_batches(tmp_path):
    """The batches take 40, 0.1 and 0.3 seconds. The first one loads libraries."""
    (tmp_path / "runtime").mkdir()
    run = made_run("bitta", "bitta", [9] * 3, domains=("fog",))
    run.steps[:] = [replace(run.steps[0], seconds=value) for value in (40.0, 0.1, 0.3)]
    run.save(tmp_path / "runtime" / "bitta-seed0.json")
    comparison = compare_table(paper_table("tab:wall_clock_time"), ResultFolders(tmp_path))
    [row] = comparison.our_rows("cifar10-c").values()
    assert comparison.our_value(row).mean == pytest.approx(0.3)
