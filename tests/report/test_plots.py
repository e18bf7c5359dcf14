"""Tests that plots show what was measured."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from bitta.metrics import Reliability
from bitta.report import write_accuracy_plot
from bitta.report.comparison import compare
from bitta.report.plots import section_plots
from bitta.report.stream_plots import accuracy_curve, agreement_curves, confidence_curve
from bitta.report.sweeps import find_sweeps
from bitta.report.tables import measures_table
from made_results import made_run, made_section

FAST, SLOW = 0.01, 1.0


def plots_by_name(section):
    return {plot.name: plot for plot in section_plots(section)}


def figure_of(section, name):
    return plots_by_name(section)[name].figure


def legend_of(figure):
    [legend] = figure.legends
    return [text.get_text() for text in legend.get_texts()]


@pytest.fixture
def compared(tmp_path):
    """Section with source model, a better method, one that collapsed in snow, and BiTTA."""
    return made_section(
        tmp_path,
        [
            made_run("source", "source", [4, 4, 6, 6], seconds=FAST),
            made_run("tent", "tent", [8, 8, 8, 8], n_queries=0),
            made_run("sar", "sar", [7, 7, 1, 1], n_queries=0),
            made_run("bitta", "bitta", [6, 6, 8, 8], seconds=SLOW),
        ],
    )


def test_accuracy_over_time_is_a_moving_average(compared):
    run = compared.rows[-1].first_run
    assert accuracy_curve(run, 2).tolist() == [60, 60, 70, 80]
    figure = figure_of(compared, "accuracy-over-time")
    lines = {line.get_label(): line for line in figure.axes[0].lines}
    np.testing.assert_allclose(lines["BiTTA (70.0)"].get_ydata(), [60, 60, 200 / 3, 70])
    assert lines["BiTTA (70.0)"].get_xdata().tolist() == [1, 2, 3, 4]


def test_legend_is_sorted_by_accuracy_and_marks_collapsed_rows(compared):
    figure = figure_of(compared, "accuracy-over-time")
    assert legend_of(figure) == ["TENT (80.0)", "BiTTA (70.0)", "Source (50.0)", "SAR † (40.0)"]
    assert "† collapsed" in plots_by_name(compared)["accuracy-over-time"].caption


def test_accuracy_over_time_is_averaged_over_seeds(tmp_path):
    runs = [made_run("bitta", "bitta", [right] * 4, seed=s) for s, right in enumerate((4, 8))]
    figure = figure_of(made_section(tmp_path, runs), "accuracy-over-time")
    np.testing.assert_allclose(figure.axes[0].lines[0].get_ydata(), 60)


def test_caption_has_the_number_of_seeds_per_row(tmp_path):
    runs = [made_run("bitta", "bitta", [5] * 4, seed=seed) for seed in (0, 1, 2)]
    runs += [made_run("tent", "tent", [5] * 4), made_run("sar", "sar", [5] * 4, seed=1)]
    section = made_section(tmp_path, runs)

    def caption(*names):
        shown = section.with_rows(names) if names else section
        return plots_by_name(shown)["accuracy-over-time"].caption

    assert "mean of 1 to 3 seeds" in caption()
    assert "mean of 3 seeds" in caption("bitta")
    assert "batches, seed 1." in caption("sar")
    assert "one seed per row" in caption("tent", "sar")


def test_line_of_a_long_stream_has_400_points(tmp_path):
    section = made_section(tmp_path, [made_run("bitta", "bitta", [5] * 2340)])
    [line] = [
        line
        for line in figure_of(section, "accuracy-over-time").axes[0].lines
        if line.get_label().startswith("BiTTA")
    ]
    assert len(line.get_xdata()) == 400
    assert (line.get_xdata()[0], line.get_xdata()[-1]) == (1, 2340)


def test_agreement_over_time_has_three_curves(tmp_path):
    """8 of 10 samples agree, 6 of them are correct, and 1 of the other 2."""
    step = {"n_measured": 10, "n_agreeing": 8, "n_agreeing_correct": 6}
    section = made_section(tmp_path, [made_run("bitta", "bitta", [7] * 4, step=step)])
    curves = agreement_curves(section.rows[0].first_run, 8)
    assert [curve.tolist() for curve in curves] == [[80] * 4, [75] * 4, [50] * 4]
    lines = figure_of(section, "agreement-over-time").axes[0].lines
    assert [line.get_ydata()[0] for line in lines[:3]] == [80, 75, 50]


def test_agreement_is_drawn_at_the_batches_with_a_policy(tmp_path):
    """One sample of every fourth batch has a policy. Averages are over 64 of these samples."""
    run = made_run("bitta", "bitta", [1] * 400)
    asked = {"n_measured": 1, "n_agreeing": 1, "n_agreeing_correct": 1}
    run = replace(
        run, steps=[replace(s, **asked) if at % 4 == 3 else s for at, s in enumerate(run.steps)]
    )
    axes = figure_of(made_section(tmp_path, [run]), "agreement-over-time").axes[0]
    assert axes.lines[0].get_xdata().tolist() == list(range(4, 401, 4))
    assert axes.get_ylabel() == "%, last 64 measured"


def test_agreement_plot_is_missing_without_measurements(compared):
    assert "agreement-over-time" not in plots_by_name(compared)


SURE = {"confidence": 6.0, "n_measured": 5, "n_agreeing": 5, "policy_confidence": 2.5}


def test_confidence_over_time_has_served_labels_and_policy(tmp_path):
    """10 samples per batch have a confidence of 6 in total, then 8; the policy has 2.5 for 5."""
    run = made_run("bitta", "bitta", [7] * 4, step=SURE)
    run = replace(run, steps=[*run.steps[:3], replace(run.steps[3], confidence=8.0)])
    np.testing.assert_allclose(confidence_curve(run, 2), [60, 60, 60, 70])
    lines = figure_of(made_section(tmp_path, [run]), "confidence-over-time").axes[0].lines
    np.testing.assert_allclose(lines[0].get_ydata(), [60, 60, 60, 65])
    np.testing.assert_allclose(lines[1].get_ydata(), 50)


def test_confidence_of_the_policy_is_drawn_only_for_rows_with_a_policy(tmp_path):
    runs = [
        made_run("source", "source", [4] * 4, step={"confidence": 5.0}),
        made_run("bitta", "bitta", [7] * 4, step=SURE),
    ]
    figure = figure_of(made_section(tmp_path, runs), "confidence-over-time")
    drawn = [[line for line in axes.lines if len(line.get_xdata()) == 4] for axes in figure.axes]
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["BiTTA", "Source"]
    assert [len(lines) for lines in drawn] == [2, 1]
    assert len(legend_of(figure)) == 2


def test_confidence_plot_omits_rows_with_a_seed_without_confidence(tmp_path):
    before = [made_run("bitta", "bitta", [7] * 4, seed=1)]
    runs = [made_run("bitta", "bitta", [7] * 4, step=SURE), *before]
    assert "confidence-over-time" not in plots_by_name(made_section(tmp_path, runs))


def test_few_rows_have_bars_by_domain(compared):
    axes = figure_of(compared, "accuracy-by-domain").axes[0]
    heights = {
        bars.get_label(): [bar.get_height() for bar in bars]
        for bars in axes.containers
        if bars.get_label()
    }
    assert heights == {
        "Source": [40, 60], "TENT": [80, 80], "SAR †": [70, 10], "BiTTA": [60, 80],
    }  # fmt: skip


def test_many_rows_have_a_map_of_differences_to_the_source_model(tmp_path):
    runs = [made_run("source", "source", [4, 6])]
    runs += [
        made_run(f"tent-{right}", "tent", [right, 9], n_queries=0, settings={"lr": right / 10})
        for right in range(3, 10)
    ]
    axes = figure_of(made_section(tmp_path, runs), "accuracy-by-domain").axes[0]
    shown = [text.get_text() for text in axes.texts]
    assert shown[:4] == ["−10", "+30", "0", "+30"]
    assert axes.get_yticklabels()[0].get_text() == "TENT (lr 0.3)"


def test_sweep_plot_has_means_and_deviations_by_value(tmp_path):
    runs = [made_run("source", "source", [5] * 4, seed=seed) for seed in (0, 1)]
    runs += [
        made_run(f"bitta-{k}", "bitta", [right + seed] * 4, n_queries=k, seed=seed)
        for k, right in ((8, 8), (1, 6), (0, 5))
        for seed in (0, 1)
    ]
    section = made_section(tmp_path, runs)
    figure = figure_of(section, "accuracy-against-feedback-n-queries")
    axes = figure.axes[0]
    [bars] = axes.containers
    line, _, [errors] = bars.lines
    assert line.get_xdata().tolist() == [0, 1, 8]
    assert line.get_ydata().tolist() == pytest.approx([55, 65, 85])
    # Two seeds ten points apart: a standard deviation of 10 / √2.
    heights = [segment[1, 1] - segment[0, 1] for segment in errors.get_segments()]
    np.testing.assert_allclose(heights, 2 * 10 / 2**0.5)
    assert axes.get_xlabel() == "questions per batch k"
    assert sorted(legend_of(figure)) == ["BiTTA", "Source"]


@pytest.fixture
def priced(tmp_path):
    """Section with 10 verdicts per batch, and the labels of equal cost: 2 in bits, 1 in seconds."""
    return made_section(
        tmp_path,
        [
            made_run("source", "source", [2, 2]),
            made_run("bitta", "bitta", [8, 8], n_queries=10, equal="bits", extra={"price": 1.0}),
            *(
                made_run(
                    f"simatta-{equal}", "simatta", [right] * 2, n_queries=n, labels="full",
                    equal=equal, extra={"price": price},
                )
                for equal, right, n, price in (("bits", 6, 2, 5.0), ("seconds", 4, 1, 10.0))
            ),
        ],
    )  # fmt: skip


def test_cost_panels_use_their_own_price_of_a_label(priced):
    panels = figure_of(priced, "accuracy-against-cost").axes
    assert [axes.get_title() for axes in panels] == [
        "in bits: 5.00 a label",
        "in seconds: 10.00 a label",
    ]
    drawn = [
        {bars.get_label(): tuple(bars.lines[0].get_xydata()[0]) for bars in axes.containers}
        for axes in panels
    ]
    assert drawn[0] == {
        "BiTTA": (10, 80),
        "SimATTA (full labels, n_queries 2, equal bits)": (10, 60),
        "SimATTA (full labels, n_queries 1, equal seconds)": (5, 40),
    }
    assert [list(points.values()) for points in drawn[1:]] == [[(10, 80), (20, 60), (10, 40)]]
    assert panels[0].lines[-1].get_ydata()[0] == 20  # the source model's level


def test_rows_with_full_labels_have_hollow_markers(priced):
    [first, _] = figure_of(priced, "accuracy-against-cost").axes
    faces = {bars.get_label(): bars.lines[0].get_markerfacecolor() for bars in first.containers}
    assert faces.pop("BiTTA") != "white"
    assert list(faces.values()) == ["white", "white"]


def test_rows_with_a_priced_budget_come_first_if_rows_do_not_fit(tmp_path, priced):
    folder = tmp_path / "many"
    folder.mkdir()
    paid = [run for row in priced.rows for run in row.runs.values()]
    more = [made_run(f"b{k}", "bitta", [5, 5], n_queries=k) for k in range(1, 12)]
    # A result of another program may lack this setting.
    for run in more:
        del run.experiment["feedback"]["equal"]
    section = made_section(folder, [*paid, *more])
    plot = plots_by_name(section)["accuracy-against-cost"]
    plot.figure.savefig(folder / "plot.png")  # fits: a warning would be an error
    labels = legend_of(plot.figure)
    assert len(labels) == 8 + 1  # the source's level
    assert {"SimATTA (full labels, n_queries 2, equal bits)", "Source"} <= set(labels)
    assert "Not drawn for lack of space: BiTTA (n_queries" in plot.caption


def test_cost_plot_is_missing_without_priced_labels(compared):
    assert "accuracy-against-cost" not in plots_by_name(compared)


def test_collapsed_point_of_a_sweep_has_a_mark(tmp_path):
    runs = [made_run("source", "source", [8, 8])]
    runs += [
        made_run(f"b{flip}", "bitta", [right] * 2, flip=flip)
        for flip, right in ((0.0, 9), (0.1, 8), (0.3, 3))
    ]
    axes = figure_of(made_section(tmp_path, runs), "accuracy-against-feedback-flip").axes[0]
    assert [(text.get_text(), text.xy) for text in axes.texts] == [("†", (0.3, 30.0))]


def test_sweep_over_words_has_bars_and_marks_the_collapsed_one(tmp_path):
    runs = [made_run("source", "source", [8, 8])]
    runs += [
        made_run(name, "bitta", [right] * 2, settings={"selection": name})
        for name, right in (("entropy", 8), ("mc_confidence", 9), ("random", 2))
    ]
    axes = figure_of(made_section(tmp_path, runs), "accuracy-against-method-selection").axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == [
        "entropy", "mc confidence", "random",
    ]  # fmt: skip
    assert [text.get_text() for text in axes.texts] == ["80.0", "90.0", "20.0 †"]


def bins(**filled):
    """Return 15 bins. Each is (samples, confidence, correct) by its index: b13 is .87 to .93."""
    parts = [filled.get(f"b{index}", (0.0, 0.0, 0.0)) for index in range(15)]
    return Reliability(*(list(part) for part in zip(*parts, strict=True)))


def without_nan(values):
    return [value for value in values if not np.isnan(value)]


def test_run_with_nan_predictions_has_no_reliability_diagram(tmp_path):
    """NaN confidences are stored in the first bin, where they would look calibrated."""
    sound = made_run("bitta", "bitta", [6, 6], reliability=bins(b13=(10.0, 9.0, 6.0)))
    lost = made_run("tent", "tent", [6, 0], reliability=bins(b0=(10.0, 0.0, 0.0)))
    steps = [lost.steps[0], replace(lost.steps[1], confidence=0.0)]
    section = made_section(tmp_path, [sound, replace(lost, steps=steps)])
    [axes] = figure_of(section, "reliability").axes
    assert axes.get_title(loc="left").startswith("BiTTA")
    table = measures_table(compare(section), ["ece"])
    assert [row[-1].text for row in table.rows] == ["–", "30.0"]


def test_reliability_diagram_has_accuracy_gap_and_calibration_error(tmp_path):
    """60 of 100 predictions of confidence .9 are correct: gap and error are 30 %."""
    served, policy = bins(b13=(100.0, 90.0, 60.0)), bins(b13=(100.0, 90.0, 80.0))
    run = made_run("bitta", "bitta", [6, 6], reliability=served, policy_reliability=policy)
    axes = figure_of(made_section(tmp_path, [run]), "reliability").axes[0]
    bars, gap = axes.containers
    assert [bar.get_height() for bar in bars] == [60]
    assert [bar.get_height() for bar in gap] == pytest.approx([30])
    assert axes.get_title("left") == "BiTTA\nECE 30.0 %\npolicy's ECE 10.0 %"
    assert list(axes.texts) == []  # texts could cover the bars
    line = next(line for line in axes.lines if line.get_label() == "policy π")
    assert (without_nan(line.get_xdata()), without_nan(line.get_ydata())) == ([90], [80])


def test_bins_of_few_samples_are_not_drawn_but_count_for_the_error(tmp_path):
    """All 24 of confidence .2 and 15 of 25 of .9 are correct: (24 x .8 + 25 x .3) / 49 is .545."""
    some = bins(b3=(24.0, 4.8, 24.0), b13=(25.0, 22.5, 15.0))
    run = made_run("bitta", "bitta", [6, 6], reliability=some, policy_reliability=some)
    section = made_section(tmp_path, [run])
    axes = figure_of(section, "reliability").axes[0]
    assert [bar.get_height() for bar in axes.containers[0]] == [60]
    line = next(line for line in axes.lines if line.get_label() == "policy π")
    assert (without_nan(line.get_xdata()), without_nan(line.get_ydata())) == ([90], [60])
    assert "ECE 54.5 %" in axes.get_title("left")
    assert "fewer than 25 samples" in plots_by_name(section)["reliability"].caption


def test_short_run_has_an_empty_reliability_panel(tmp_path):
    run = made_run("bitta", "bitta", [6, 6], reliability=bins(b13=(10.0, 9.0, 6.0)))
    figure = figure_of(made_section(tmp_path, [run]), "reliability")
    assert [len(bars) for bars in figure.axes[0].containers] == [0, 0]


def test_reliability_diagram_pools_the_seeds(tmp_path):
    """20 samples of one seed and 30 of the other: 12 and 24 of 50 are correct."""
    runs = [
        made_run("bitta", "bitta", [6, 6], seed=seed, reliability=bins(b13=(n, 0.9 * n, correct)))
        for seed, (n, correct) in enumerate([(20.0, 12.0), (30.0, 24.0)])
    ]
    axes = figure_of(made_section(tmp_path, runs), "reliability").axes[0]
    assert [bar.get_height() for bar in axes.containers[0]] == [72]


def test_time_plot_has_a_point_per_method_of_one_machine(compared):
    figure = figure_of(compared, "accuracy-against-time")
    lines = figure.axes[0].lines
    assert [(line.get_xdata()[0], line.get_ydata()[0]) for line in lines] == [
        (500, 80), (1000, 70), (10, 50), (500, 40),
    ]  # fmt: skip
    assert legend_of(figure) == ["TENT", "BiTTA", "Source", "SAR †"]


def test_rows_of_one_method_have_different_styles_in_the_time_plot(tmp_path):
    runs = [made_run("source", "source", [4, 4], seconds=FAST), made_run("tent", "tent", [5, 5])]
    runs += [
        made_run(f"bitta-{part}", "bitta", [6, 6], settings={"micro_batch": part})
        for part in (0, 63)
    ]
    figure = figure_of(made_section(tmp_path, runs), "accuracy-against-time")
    assert legend_of(figure)[:2] == ["BiTTA", "BiTTA (micro_batch 63)"]
    assert len({line.get_color() for line in figure.axes[0].lines}) == 4


def test_memory_plot_exists_only_for_a_gpu(tmp_path, compared):
    """1, 2 and 3 MB, and two seeds of 3 and 5 for BiTTA."""
    assert "memory" not in plots_by_name(compared)
    gpu = compared.rows[0].first_run.environment | {"device": "NVIDIA H200"}
    most = {"source": 1, "tent": 2, "sar": 3}
    runs = [made_run(name, name, [5, 5], n_queries=0) for name in most]
    runs += [made_run("bitta", "bitta", [5, 5], seed=seed) for seed in (0, 1)]
    taken = [*most.values(), 3, 5]
    section = made_section(
        tmp_path / "gpu",
        [replace(run, environment=gpu, peak_memory=int(mb * 1e6))
         for run, mb in zip(runs, taken, strict=True)],
    )  # fmt: skip
    axes = figure_of(section, "memory").axes[0]
    bars = next(found for found in axes.containers if hasattr(found, "patches"))
    assert [bar.get_width() for bar in bars.patches] == [1, 2, 3, 4]
    assert [label.get_text() for label in axes.get_yticklabels()][-1] == "BiTTA"


def test_sweep_over_passes_has_a_plot_of_the_policys_calibration(tmp_path):
    """Confidence .9 and 60, 70 and 80 % right: errors of 30, 20 and 10 %."""
    runs = [
        made_run(
            f"bitta-{passes}", "bitta", [6, 6], settings={"passes": passes},
            policy_reliability=bins(b13=(100.0, 90.0, right)),
        )
        for passes, right in ((1, 60.0), (2, 70.0), (4, 80.0))
    ]  # fmt: skip
    figure = figure_of(made_section(tmp_path, runs), "calibration-against-method-passes")
    line = figure.axes[0].lines[0]
    np.testing.assert_allclose(line.get_xydata(), [[1, 30], [2, 20], [4, 10]])


def thresholds(folder):
    """Section with three thresholds, and a row that uses the policy and no threshold."""
    runs = [
        made_run(f"fixed-{value}", "bitta", [right] * 4, settings=by_threshold(value))
        for value, right in ((0.8, 8), (0.9, 7), (0.99, 5))
    ]
    policy = {"agreement": "policy", "threshold": 0.9}
    runs += [made_run("policy", "bitta", [6 + s] * 4, seed=s, settings=policy) for s in (0, 1)]
    return made_section(folder, runs)


def by_threshold(value):
    return {"agreement": "threshold", "threshold": value}


def test_row_in_which_the_setting_has_no_effect_is_a_horizontal_line(tmp_path):
    """60 and 70 % with two seeds: the line is at 65, without a point at the threshold of 0.9."""
    section = thresholds(tmp_path)
    [sweep] = find_sweeps(section)
    [series], [constant] = sweep.series, sweep.constant_rows
    assert (series.label, series.values) == (
        "BiTTA (test of agreement: threshold)",
        (0.8, 0.9, 0.99),
    )
    assert (constant.label, constant.row.name) == ("BiTTA (test of agreement: policy)", "policy")
    figure = figure_of(section, "accuracy-against-method-threshold")
    [drawn] = [line for line in figure.axes[0].lines if line.get_label() == constant.label]
    assert list(drawn.get_ydata()) == [65, 65]
    assert list(drawn.get_xdata()) == [0, 1]  # of the axes: from edge to edge
    assert constant.label in legend_of(figure)
    assert constant.label in plots_by_name(section)["accuracy-against-method-threshold"].caption


def test_accuracy_plot_is_written_as_an_image(tmp_path):
    results = {name: made_run(name, name, [3, 9]) for name in ("source", "bitta")}
    write_accuracy_plot(results, tmp_path / "p.png", title="t")
    with Image.open(tmp_path / "p.png") as picture:
        assert picture.size == pytest.approx((1040, 585), abs=2)
