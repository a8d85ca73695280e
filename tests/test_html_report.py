"""HTML reports: both use the shared style, every class and colour is defined, and text is escaped."""

from __future__ import annotations

import re

import pytest

from legato.bench.rendering import Plot, ReportTable, html_page
from legato.html_report import STYLE, cell, html_document, metadata_list, section, table
from legato.verify.compare import Comparison, Tolerance
from legato.verify.report import to_html
from legato.verify.results import CheckLine, ExecutionInfo, Kind, Report

FACTS = (("model", "a <model>"), ("seed", "0"))


def bench_page() -> str:
    grid = ReportTable("A table", ("what", "ms"), (("a", "1.0"), ("sum", "1.0")), note="read it so", highlighted=(1,))
    return html_page("bench", FACTS, [grid, Plot("A plot", '<svg><text class="small end">a</text></svg>', "and so")])


def verify_page() -> str:
    where, limit = ExecutionInfo("cpu", "float32", 1, ""), Tolerance(1e-5, "rounding")
    lines = (
        CheckLine(
            group="codec",
            claim="holds",
            setting="",
            execution=where,
            comparison=Comparison(error, error, 1),
            tolerance=limit,
            kind=kind,
        )
        for error in (0.0, 1.0)
        for kind in Kind
    )
    return to_html(Report(FACTS, tuple(lines)))


PAGES = pytest.mark.parametrize("page", [bench_page(), verify_page()], ids=["bench", "verify"])


def style_of(page: str) -> str:
    (found,) = re.findall(r"<style>(.*?)</style>", page, flags=re.DOTALL)
    assert isinstance(found, str)
    return found


def undefined_classes(page: str) -> set[str]:
    """Classes that a page uses but its style does not define."""
    known = set(re.findall(r"\.([a-z][a-z0-9]*)", re.sub(r"\{[^{}]*\}", "", style_of(page))))
    used = {each for classes in re.findall(r'class="([^"]*)"', page) for each in classes.split()}
    return used - known


def colours(style: str) -> tuple[set[str], set[str], set[str]]:
    """CSS variables: used, defined for light mode, defined for dark mode."""
    dark = "".join(re.findall(r"@media \(prefers-color-scheme: dark\) \{ :root \{([^}]*)\}", style))
    roots = "".join(re.findall(r":root \{([^}]*)\}", style))
    names = re.compile(r"(--[a-z0-9]+):")
    in_dark = names.findall(dark)
    light = names.findall(roots)
    for name in in_dark:
        light.remove(name)
    return set(re.findall(r"var\((--[a-z0-9]+)\)", style)), set(light), set(in_dark)


@PAGES
def test_own_style_follows_the_shared_style(page: str) -> None:
    style = style_of(page)
    assert style.startswith(STYLE)
    assert "body { max-width:" in style.removeprefix(STYLE)
    assert page.startswith('<!doctype html>\n<html lang="en">')
    assert page.count("<h1>") == page.count("<title>") == page.count("</html>") == 1


@PAGES
def test_every_class_is_defined(page: str) -> None:
    assert undefined_classes(page) == set()
    assert undefined_classes(page.replace("<h1>", '<h1 class="lost">')) == {"lost"}


@PAGES
def test_every_colour_is_defined_for_light_and_dark(page: str) -> None:
    used, light, dark = colours(style_of(page))
    assert light == dark
    assert used <= light
    assert {"--ink", "--paper"} <= used


@PAGES
def test_both_reports_show_facts_the_same_way(page: str) -> None:
    assert metadata_list(FACTS) in page
    assert "<dt>model</dt><dd>a &lt;model&gt;</dd>" in page
    assert '<div class="wide">' in page


def test_text_is_escaped_and_html_is_not() -> None:
    rows = [f"<tr>{cell('<td>', 'number')}</tr>"]
    part = section("<h2>", table([cell("<th>", tag="th")], rows), "<note>")
    page = html_document("<title>", [part], style=".own { top: 0; }")
    assert "<title>&lt;title&gt;</title>" in page
    assert '<h2>&lt;h2&gt;</h2><p class="note">&lt;note&gt;</p><div class="wide"><table>' in page
    assert "<thead><tr><th>&lt;th&gt;</th></tr></thead>" in page
    assert '<tr><td class="number">&lt;td&gt;</td></tr>' in page
    assert ".own { top: 0; }</style>" in page
    assert "<p" not in section("a title", "content")
