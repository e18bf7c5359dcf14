"""Tests of the table and the plot of a speed measurement."""

from PIL import Image

from bitta.report import failure_lines, growth_lines, heading_lines, speed_rows, write_speed_plot
from bitta.report.speed import speed_page
from bitta.speed_records import SpeedCase, SpeedMeasurement

COMMON = {
    "model": "resnet18", "n_classes": 10, "size": 32, "n_queries": 3, "memory": 64, "passes": 4,
    "epochs": 3,
}  # fmt: skip


def measurement(method="bitta", *, batch=64, **measured):
    values = {"execution": "eager, float32", "ms": 8.0, "ms_p25": 7.5, "ms_p75": 9.0, **measured}
    return SpeedMeasurement(case=SpeedCase(method=method, batch=batch, **COMMON), **values)


MEASURED = measurement(
    serve_ms=1.25, peak_memory=3_000_000, forwards=48, backwards=12, flops=2_500_000_000,
    matmul_share=0.125,
)  # fmt: skip
TOO_LARGE = measurement(batch=256, ms=0.0, execution="", failure="does not fit")


def test_speed_row_has_every_measurement():
    assert speed_rows([MEASURED]) == [
        ["method", "ms", "p25-p75", "images/s", "serve ms", "peak MB", "forwards", "backwards",
         "GFLOP", "of matmul"],
        ["bitta", "8.00", "7.50-9.00", "8000", "1.25", "3", "48", "12", "2.5", "12.5 %"],
    ]  # fmt: skip


def test_differing_fields_are_columns_and_equal_ones_a_line():
    rows = speed_rows([MEASURED, TOO_LARGE])
    assert [row[:3] for row in rows] == [
        ["method", "batch", "ms"],
        ["bitta", "64", "8.00"],
        ["bitta", "256", "does not fit"],
    ]
    assert {len(row) for row in rows} == {11}
    assert heading_lines([MEASURED, TOO_LARGE]) == [
        "eager, float32",
        "model resnet18, classes 10, px 32, asked 3, memory 64, N 4, E 3",
    ]


def test_long_reason_of_a_failure_is_below_the_table():
    refused = measurement(failure="nothing to train.")
    assert speed_rows([refused])[1][1] == "not measured"
    assert failure_lines([MEASURED, TOO_LARGE, refused]) == ["bitta on resnet18: nothing to train."]


def test_growth_line_has_the_exponents():
    grown = [measurement(batch=b, ms=float(b)) for b in (16, 64, 256)]
    assert growth_lines(grown) == [
        "time of bitta grows like batch^1.00 from 16 to 256, like batch^1.00 from 64 on"
    ]
    assert growth_lines(grown[:2]) == []


def test_speed_page_has_machine_table_and_growth():
    grown = [measurement(batch=b, ms=float(b)) for b in (16, 64, 256)]
    machine = {"device": "abacus", "threads": 2, "torch": "2", "bitta": "0"}
    page = speed_page(grown, environment=machine, matmul={"float32": 2e12})
    assert "abacus, CPU threads 2, torch 2, bitta 0, 2 TFLOP/s float32 matmul" in page
    assert "| bitta | 16 | 16.00 |" in page
    assert "* time of bitta grows like batch^1.00" in page


def test_speed_plot_is_written_for_curves_bars_and_failures(tmp_path):
    grown = [measurement(batch=b, ms=float(b), ms_p25=b, ms_p75=b) for b in (16, 64, 256)]
    write_speed_plot([*grown, measurement("tent"), TOO_LARGE], tmp_path / "both.png", title="t")
    write_speed_plot([MEASURED], tmp_path / "bar.png", title="t")
    write_speed_plot([TOO_LARGE], tmp_path / "none.png", title="t")
    for name in ("both", "bar", "none"):
        with Image.open(tmp_path / f"{name}.png") as picture:
            assert min(picture.size) > 400
