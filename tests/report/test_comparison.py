"""Tests of the comparison of rows with a baseline, and of the notes on collapsed rows."""

from dataclasses import replace

from bitta.report.comparison import PairedTest, compare, default_baseline, paired_tests
from made_results import made_run, made_section


def collapses(folder, *right, domains=("fog", "snow")):
    """Return the collapse note of a row. `right` holds its correct samples per domain by seed."""
    runs = [made_run("source", "source", [8] * len(domains), domains=domains)]
    runs += [made_run("sar", "sar", n, seed=s, domains=domains) for s, n in enumerate(right)]
    [_, note] = compare(made_section(folder, runs)).collapse_notes
    return note.strip()


def test_few_collapsed_domains_are_listed_with_their_seeds(tmp_path):
    assert collapses(tmp_path, [1, 8], [1, 1]) == "SAR*: in fog, all seeds; in snow, seed 1 of 2"


def test_many_collapsed_domains_are_counted_by_seed(tmp_path):
    """Seed 0 collapsed in b, c, d and e, seed 1 also in a: four to five domains, never six."""
    right = [8, 1, 1, 1, 1, 8], [1, 1, 1, 1, 1, 8]
    assert collapses(tmp_path, *right, domains="abcdef") == (
        "SAR*: in 4 to 5 of 6 domains, depending on the seed (b, c, d, e, ...), all seeds"
    )


def test_note_names_the_first_batch_of_nan_predictions(tmp_path):
    """Seed 1 has a confidence in its first batch, and NaN afterwards."""
    source, well, lost = (
        made_run("source", "source", [8, 8]),
        made_run("sar", "sar", [8, 8], step={"confidence": 9.0}),
        made_run("sar", "sar", [8, 0], seed=1, step={"confidence": 9.0}),
    )
    steps = [lost.steps[0], replace(lost.steps[1], confidence=0.0)]
    runs = [source, well, replace(lost, steps=steps)]
    [_, note] = compare(made_section(tmp_path, runs)).collapse_notes
    assert note == "  SAR*: in snow, seed 1 of 2; all predictions NaN first in batch 2, seed 1 of 2"


def test_rows_are_paired_by_domain_and_seed(tmp_path):
    """Seed 1 is BiTTA's alone. Tent: -10 and -30, median -20, p 2 / 2². Source: 0 and -10."""
    runs = [made_run("bitta", "bitta", [5, 8], seed=seed) for seed in (0, 1)]
    runs += [made_run("tent", "tent", [4, 5]), made_run("source", "source", [5, 7])]
    section = made_section(tmp_path, runs)
    tests = paired_tests(section.rows, default_baseline(section))
    assert tests == {"source": PairedTest(-5.0, 1.0, 2), "tent": PairedTest(-20.0, 1.0, 2)}
    alone = paired_tests([row for row in section.rows if row.name != "source"], section.rows[2])
    assert alone == {"tent": PairedTest(-20.0, 0.5, 2)}


def test_default_baseline_is_bitta_or_the_best_row(tmp_path):
    runs = [made_run("bitta", "bitta", [1, 1]), made_run("tent", "tent", [9, 9])]
    section = made_section(tmp_path, runs)
    assert default_baseline(section).name == "bitta"
    assert default_baseline(section.with_rows(["tent"])).name == "tent"
