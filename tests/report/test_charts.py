from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup
from sklearn.isotonic import IsotonicRegression

from headstart.report import charts
from headstart.report.axes import axis, log_axis, setting_axis
from headstart.report.charts import Look, Point, Row, Series, spread
from headstart.report.svg import LONGEST, cut, width_of

NUMBERS = st.floats(-1e4, 1e4, allow_nan=False)


def texts(svg: Markup) -> list[str]:
    return ["".join(each.itertext()) for each in ET.fromstring(svg).iter("text")]


@given(st.lists(NUMBERS, min_size=1, max_size=8), st.integers(2, 6))
def test_an_axis_holds_its_values_between_round_numbers(values: list[float], count: int) -> None:
    found = axis("x", values, count=count)
    nothing = 1e-6 * max(1, found.high - found.low)  # no eye sees it
    assert found.low <= min(values) + nothing and found.high >= max(values) - nothing
    assert 2 <= len(found.ticks) <= count + 1
    steps = np.diff(found.ticks)
    assert np.allclose(steps, steps[0], rtol=1e-6)
    shown = [found.show(tick) for tick in found.ticks]
    assert len(set(shown)) == len(shown)  # as many digits as tell them apart
    for tick, text in zip(found.ticks, shown, strict=True):
        assert float(text.replace(",", "").replace("−", "-")) == pytest.approx(tick, abs=1e-9 + 1e-6 * abs(tick))


def test_an_axis_of_whole_numbers_has_no_half_epochs() -> None:
    assert axis("epoch", [1, 3], whole=True).ticks == (1, 2, 3)
    assert axis("step", [0, 400], count=4, whole=True).ticks == (0, 100, 200, 300, 400)


def test_a_doubling_is_as_long_everywhere_on_a_logarithmic_axis() -> None:
    found = log_axis("labels", [400, 50, 100, 200])
    places = [found.place(labels, 0, 300) for labels in (50, 100, 200, 400)]
    assert places == pytest.approx([0, 100, 200, 300])
    assert [found.show(labels) for labels in (50, 1600)] == ["50", "1,600"]


@given(st.lists(st.floats(0, 200, allow_nan=False), min_size=1, max_size=10))
def test_labels_are_moved_apart_as_little_as_can_be(wanted: list[float]) -> None:
    found = spread(wanted, 13, -1000, 1000)
    order = np.argsort(wanted, kind="stable")
    ramp = 13 * np.arange(len(wanted))
    best = IsotonicRegression().fit_transform(np.arange(len(wanted)), np.array(wanted)[order] - ramp) + ramp
    assert np.array(found)[order] == pytest.approx(best, abs=1e-4)


@given(st.lists(st.floats(-50, 250, allow_nan=False), min_size=1, max_size=10))
def test_labels_stay_a_gap_apart_and_inside(wanted: list[float]) -> None:
    found = sorted(spread(wanted, 13, 0, 200))
    assert found[0] >= -1e-9 and found[-1] <= 200 + 1e-9
    assert all(b - a >= 13 - 1e-9 for a, b in itertools.pairwise(found))


def test_every_line_is_named_at_its_end_and_told_apart_without_colour() -> None:
    series = [Series(f"arm {k}", Look(k), ((1, 0.5), (2, 0.5)), ((1, 0.4, 0.6), (2, 0.4, 0.6))) for k in range(5)]
    svg = charts.lines("by epoch", series, axis("epoch", [1, 2]), axis("accuracy", [0.4, 0.6]))
    assert {f"arm {k}" for k in range(5)} <= set(texts(svg))
    assert svg.count('class="band') == 5
    dashes = [line.get("stroke-dasharray") for line in ET.fromstring(svg).iter("polyline")]
    assert len(set(dashes)) == 5


def test_no_two_of_thirty_arms_look_the_same() -> None:
    assert len({(look.colour, look.dash) for look in map(Look, range(30))}) == 30


def test_no_colour_is_baked_in() -> None:
    rows = [Row("full", Look(0), 0.8, "0.800", 0.7, 0.9), Row("tfidf", Look(0, True), 0.7, "0.700", 0.6, 0.8)]
    x = axis("accuracy", [0.6, 0.9])
    drawn = [
        charts.dots("dots", rows, x, zero=True),
        charts.bars("bars", rows, x),
        charts.matrix("matrix", ["a", "b"], [[3, 1], [0, 4]]),
        charts.reliability("reliability", Look(1), [(0.6, 0.5, 10), (0.9, 0.8, 30)], 0.5),
    ]
    for svg in drawn:
        assert not re.search(r"#[0-9a-f]{3}|rgb|(fill|stroke)=", svg)
        root = ET.fromstring(svg)
        assert root.get("role") == "img" and root.get("aria-label")


def test_a_bar_is_as_long_as_its_number() -> None:
    rows = [Row("a", Look(0), 10.0, "10"), Row("b", Look(1), 20.0, "20")]
    bars = ET.fromstring(charts.bars("time", rows, axis("s", [0, 20]))).iter("rect")
    short, long = (float(bar.get("width", "")) for bar in bars)
    assert long == pytest.approx(2 * short, abs=0.2)


def test_a_matrix_shows_shares_of_each_true_class() -> None:
    svg = charts.matrix("matrix", ["neg", "pos"], [[9, 3], [0, 0]])
    assert texts(svg)[-4:] == ["75 %", "25 %", "0 %", "0 %"]  # a class that is not there has no share
    opacities = [rect.get("fill-opacity") for rect in ET.fromstring(svg).iter("rect")]
    assert opacities == ["0.75", "0.25", "0.00", "0.00"]
    assert "neg taken for pos: 3 of 12" in svg


def test_names_of_many_classes_stand_on_end_and_are_whole() -> None:
    labels = [f"question {k}" for k in range(12)]
    counts = [[10 if i == j else 1 for j in range(12)] for i in range(12)]
    drawn = str(charts.matrix("Confusion", labels, counts))
    assert drawn.count("rotate(-90)") == 12
    assert all(drawn.count(f">{label}<") == 2 for label in labels)
    assert "rotate" not in str(charts.matrix("Confusion", ["no", "yes"], [[3, 1], [1, 3]]))


def test_names_that_tags_are_made_of_stay_names() -> None:
    evil = '<script>alert("x")</script>'
    series = [Series(evil, Look(0), ((1, 0.5),))]
    for svg in (
        charts.matrix(evil, [evil, "b"], [[1, 0], [0, 1]]),
        charts.lines(evil, series, axis(evil, [1]), axis(evil, [0.5])),
    ):
        assert "<script" not in svg and ET.fromstring(svg).get("aria-label") == evil


def test_a_long_name_is_cut_and_kept_whole_for_whoever_points_at_it() -> None:
    name = "full:a-base-with-a-very-long-name-indeed"
    assert cut(name).endswith("…") and width_of(cut(name)) <= LONGEST
    assert cut("深層学習" * 10, 60) == "深層学習深…"  # wide letters count for more
    svg = charts.bars("time", [Row(name, Look(0), 1.0, "1")], axis("s", [0, 1]))
    assert f"<title>{name}</title>" in svg


def test_values_on_the_x_axis_that_would_touch_are_not_named() -> None:
    x = log_axis("labels", [50, 1600, 1700])
    svg = charts.lines("labels", [Series("full", Look(0), ((50, 0.5), (1700, 0.6)))], x, axis("accuracy", [0.5, 0.6]))
    assert "1,700" in texts(svg) and "1,600" not in texts(svg)


def test_many_bands_are_drawn_lighter() -> None:
    series = [Series(f"arm {k}", Look(k), ((1, 0.5), (2, 0.5)), ((1, 0.4, 0.6), (2, 0.4, 0.6))) for k in range(5)]
    kinds = [
        ET.fromstring(charts.lines("by epoch", series[:n], axis("epoch", [1, 2]), axis("accuracy", [0.4, 0.6]))).get(
            "class"
        )
        for n in (4, 5)
    ]
    assert kinds == [None, "many"]


def test_few_values_of_a_setting_are_named_and_many_are_not() -> None:
    few = setting_axis("batch size", [16, 8, 12, 8])
    assert (few.ticks, few.log) == ((8, 12, 16), False) and few.low < 8 and few.high > 16
    rates = setting_axis("learning rate", [1e-5, 1e-4, 1e-3])
    places = [rates.place(value, 0, 300) for value in rates.ticks]
    assert rates.log and places[1] == pytest.approx(150) and places[0] > 0
    searched = setting_axis("learning rate", [2e-5 * 1.5**k for k in range(15)])  # up to 0.0058
    assert [searched.show(tick) for tick in searched.ticks] == ["1e-05", "0.0001", "0.001", "0.01"]
    assert setting_axis("dropout", [k / 20 for k in range(10)]).ticks == (0, 0.1, 0.2, 0.3, 0.4, 0.5)
    wild = setting_axis("learning rate", [1e-3, 1e20])
    assert [wild.show(tick) for tick in wild.ticks] == ["0.001", "1e+20"]
    assert setting_axis("epochs", [3]).ticks == (3,)
    assert setting_axis("dropout", [0.0]).ticks == (0,)


@given(st.lists(st.floats(1e-7, 1e4), min_size=1, max_size=20))
def test_an_axis_of_a_setting_holds_its_values(values: list[float]) -> None:
    found = setting_axis("lr", values)
    assert found.low <= min(values) + 1e-6 and found.high >= max(values) - 1e-6 and found.low < found.high
    assert all(-1e-6 <= found.place(value, 0, 1) <= 1 + 1e-6 for value in values)


def test_a_scatter_has_a_dot_a_point_its_best_by_name_and_a_cross_where_there_is_no_score() -> None:
    points = [Point(1, 0.5, "trial 1"), Point(2, 0.7, "trial 2", "best: 2"), Point(3, 0.6, "trial 3")]
    svg = charts.scatter(
        "trials", points, points[1], [Point(4, 0, "trial 4: failed")], axis("trial", [1, 4]), axis("a", [0.5, 0.7])
    )
    root = ET.fromstring(svg)
    kinds = ["circle", "polygon", "path"]
    drawn = [sum(len(mark.findall(kind)) for mark in root.iter("g")) for kind in kinds]
    assert drawn == [2, 1, 1]
    assert "best: 2" in texts(svg) and [title.text for title in root.iter("title")].count("trial 4: failed") == 1
    heights = [float(dot.get("cy", "")) for dot in root.iter("circle")]
    assert heights[0] > heights[1]  # 0.5 stands below 0.6
